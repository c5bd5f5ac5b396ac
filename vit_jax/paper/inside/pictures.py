"""Draws Figures 6, 7, 10, 11, 14 and masked patches from weights.

A panel is first measured and then drawn, alone or in a row with
others. Its numbers become rows of one table, with the columns `panel` (its
title), `part` (what is measured), indices, and `value`.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vit_jax import checkpoint
from vit_jax.inspection import attention_maps, figures, views
from vit_jax.inspection import masked_patches as predicted_patches
from vit_jax.pages import drawing
from vit_jax.paper.inside import weights

# The least side of a shown image in pixels; smaller images are enlarged.
_SHOWN = 224
# With more images than this, a number beside each identifies it (Figure 14).
_NUMBERED = 12

UNIFORM = 'uniform attention'
NEAREST_HALF = 'uniform attention to the nearest half'


# A panel, see `draw`, and what to draw of it, see `measured`.
Shown = tuple[Mapping[str, Any], Any]


def draw(
  panels: Sequence[Mapping[str, Any]], stem: pathlib.Path, mark: str
) -> tuple[list[str], list[str]]:
  """Draws what it can of some panels.

  Args:
    panels: each with `kind`, `title` and `images` as in `inside.Panel`; `run`,
      a name for messages; `workdir`, the path of a run or a `.npz` file; and
      some with `images_from`, see `weights.held_out_images`.
    stem: the picture's files are STEM.png, STEM.pdf and STEM.csv.
    mark: see `drawing.save`.

  Returns:
    The titles of the panels in the picture, and why others are not in it.
  """
  done, tables, failures = [], [], []
  for panel in panels:
    try:
      shown, table = measured(panel)
      done.append((panel, shown))
      # Indices stay whole numbers where some parts do not have them.
      tables.append(table.convert_dtypes())
    # Any failure becomes a note on the page: other panels are still drawn.
    except Exception as error:
      kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}:'
      why = ' '.join(f'{kind} {error}'.split())
      what = panel['kind'].replace('_', ' ')
      failures.append(f'Not drawn: {what} of {panel["run"]}: {why}')
  if done:
    data = pd.concat(tables, ignore_index=True)
    data['value'] = data.pop('value')  # Becomes the last column.
    drawing.save(compose(done), stem, data, mark=mark)
  return list(dict.fromkeys(panel['title'] for panel, _ in done)), failures


# What is measured. ------------------------------------------------------------


def measured(panel: Mapping[str, Any]) -> tuple[Any, pd.DataFrame]:
  """Returns what to draw of a panel, and the same numbers as a table.

  Args:
    panel: see `draw`.

  Returns:
    For filters and similar positions, the array of `views`. For attention
    distances, [depth, heads], the width of the image and the distance of
    uniform attention, all in pixels. For rollouts, images and their maps. For
    masked patches, three arrays of images: the model's input, its prediction
    and the original.
  """
  kind, workdir, count = panel['kind'], panel['workdir'], panel['images']
  if kind == 'masked_patches':
    checkpoint.find(workdir)  # Before the images, which take longer.
    *shown, patch = predicted_patches.predict_pictures(workdir, count)
    axes = (*views.AXES['rollout'], 'channel')
    tables = [
      _table(_patch_means(images, patch), axes, part)
      for part, images in zip(
        ('input', 'prediction', 'image'), shown, strict=True
      )
    ]
    shown = [*map(enlarged, shown)]
  else:
    run, given = weights.load(workdir), []
    if count:
      images, places = weights.held_out_images(
        workdir, count, panel.get('images_from')
      )
      given = [images]
    shown = getattr(views, kind)(run, *given)
    tables = [_table(shown, views.AXES[kind], kind.replace('_', ' '))]
    if kind == 'attention_distance':
      grid = run.model.token_grid(run.image_size)
      uniform, half = attention_maps.uniform_distances(grid, run.image_size)
      shown = shown, run.image_size[1], uniform
      # Two distances to compare with.
      theory = {'part': [UNIFORM, NEAREST_HALF], 'value': [uniform, half]}
      tables.append(pd.DataFrame(theory))
    if kind == 'rollout':
      shown = enlarged(images), shown
      [table] = tables
      table.insert(2, 'place_in_split', places[table['image']])
      table['image'] += 1  # The figure counts from 1.
  numbers = pd.concat(tables, ignore_index=True)
  numbers.insert(0, 'panel', panel['title'])
  return shown, numbers


def _table(values: np.ndarray, axes: Sequence[str], part: str) -> pd.DataFrame:
  found = figures.table(values, axes, 'value')
  found.insert(0, 'part', part)
  return found


def _patch_means(images: np.ndarray, patch: tuple[int, int]) -> np.ndarray:
  """Returns the mean of each patch: [N, H, W, C] -> [N, rows, columns, C]."""
  count, height, width, channels = images.shape
  rows, columns = height // patch[0], width // patch[1]
  split = images.reshape(count, rows, patch[0], columns, patch[1], channels)
  return split.mean(axis=(2, 4))


def enlarged(images: np.ndarray) -> np.ndarray:
  """Enlarges images to at least `_SHOWN` px by repeating their pixels.

  The images of a miniature then look as the model sees them, under a smooth
  map.
  """
  times = math.ceil(_SHOWN / min(images.shape[1:3]))
  return images.repeat(times, axis=1).repeat(times, axis=2)


# What is drawn. ---------------------------------------------------------------


@drawing.styled
def compose(panels: Sequence[Shown]) -> Any:
  """Draws one figure: a picture of images alone, other kinds side by side.

  Args:
    panels: from left to right. All attention distances share one axis and come
      last.

  Returns:
    A `matplotlib.figure.Figure`.
  """
  kinds = [panel['kind'] for panel, _ in panels]
  if kinds[0] == 'rollout':
    [(_, (images, maps)), *_] = panels
    return figures.rollout(images, maps, numbered=len(images) > _NUMBERED)
  if kinds[0] == 'masked_patches':
    return predicted_patches.draw(*panels[0][1])
  single, distances = [], {}
  for panel, shown in panels:
    if panel['kind'] == 'attention_distance':
      distances[panel['title']] = shown
    else:
      single.append((panel, shown))
  # With these widths, four rows of seven filters or a map fill the height.
  widths = [5.0 if p['kind'] == 'filters' else 4.2 for p, _ in single]
  if distances:
    widths.append(0.4 + 3.6 * len(distances))
  figure = drawing.new_figure((sum(widths), 3.6))
  parts = figure.subfigures(1, len(widths), squeeze=False, width_ratios=widths)
  parts = list(parts[0])
  for (panel, shown), part in zip(single, parts, strict=False):
    if panel['kind'] == 'filters':
      figures.filters(shown, into=part)
    else:
      # A single map has the title of its kind, several have their panels'.
      only = kinds.count('position_similarity') == 1
      options = {} if only else {'title': panel['title']}
      figures.position_similarity(shown, into=part, **options)
  if distances:
    figures.attention_distance(
      {title: values for title, (values, _, _) in distances.items()},
      max(width for _, width, _ in distances.values()),
      uniform={title: line for title, (_, _, line) in distances.items()},
      into=parts[-1],
    )
  return figure
