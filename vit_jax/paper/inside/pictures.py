"""Draws Figures 6, 7, 10, 11, 14 and masked patches from weights.

A panel is first measured (see `KINDS`) and then drawn, alone or in a row with
others. Its numbers become rows of one table, with the columns `panel` (its
title), `part` (what is measured), indices, and `value`.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import pandas as pd

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

_load = functools.cache(weights.load)


@dataclasses.dataclass(frozen=True)
class Measured:
  """A panel with its data, ready to be drawn.

  Attributes:
    kind: a key of `KINDS`.
    title: of the panel.
    shown: the arrays to draw; their form depends on the kind.
    numbers: the same as a table.
  """

  kind: str
  title: str
  shown: Any
  numbers: pd.DataFrame


def answer(request: Mapping[str, Any]) -> None:
  """Draws what it can of a request, and writes the stamp.

  Args:
    request: `stem` and `stamp`, paths; `mark`, see `drawing.save`; `panels`,
      each with `kind`, `title`, `run`, `workdir` and `images`, and some with
      `images_from`. All of the request goes into the stamp.
  """
  measured, failures = [], []
  for panel in request['panels']:
    try:
      options = {k: panel[k] for k in ('images_from',) if k in panel}
      shown, numbers = KINDS[panel['kind']](
        panel['workdir'], panel['images'], **options
      )
    # Any failure becomes a note on the page: other panels are still drawn.
    except Exception as error:
      kind = '' if isinstance(error, ValueError) else f'{type(error).__name__}:'
      why = ' '.join(f'{kind} {error}'.split())
      what = panel['kind'].replace('_', ' ')
      failures.append(f'Not drawn: {what} of {panel["run"]}: {why}')
      continue
    numbers.insert(0, 'panel', panel['title'])
    measured.append(Measured(panel['kind'], panel['title'], shown, numbers))
  if measured:
    # Indices stay whole numbers where some parts do not have them.
    frames = [m.numbers.convert_dtypes() for m in measured]
    data = pd.concat(frames, ignore_index=True)
    data['value'] = data.pop('value')  # Becomes the last column.
    drawing.save(compose(measured), request['stem'], data, mark=request['mark'])
  titles = list(dict.fromkeys(m.title for m in measured))
  stamp = {**request, 'drawn': titles, 'failures': failures}
  pathlib.Path(request['stamp']).write_text(json.dumps(stamp, indent=1))


# What is measured. ------------------------------------------------------------


def filters(workdir: str, count: int) -> tuple[np.ndarray, pd.DataFrame]:
  """Returns up to 28 principal components of the patch embedding."""
  del count
  found = views.filters(_load(workdir))
  return found, _table(found, views.AXES['filters'], 'filters')


def similarity(workdir: str, count: int) -> tuple[np.ndarray, pd.DataFrame]:
  """Returns cosines of position embeddings, [rows, columns, rows, columns]."""
  del count
  found = views.position_similarity(_load(workdir))
  axes = views.AXES['position_similarity']
  return found, _table(found, axes, 'position similarity')


def distance(
  workdir: str, count: int, images_from: Mapping[str, str] | None = None
) -> tuple[Any, pd.DataFrame]:
  """Returns mean attention distances, the image width and a uniform distance.

  The distances are [depth, heads], and all are in pixels.

  The table also has two distances to compare them with: that of uniform
  attention to all patches, and that of uniform attention to the nearest half of
  the patches.
  """
  run = _load(workdir)
  images, _ = _images(workdir, count, images_from)
  found = views.attention_distance(run, images)
  grid = run.model.token_grid(run.image_size)
  uniform, half = attention_maps.uniform_distances(grid, run.image_size)
  numbers = _table(
    found, views.AXES['attention_distance'], 'attention distance'
  )
  theory = pd.DataFrame(
    {'part': [UNIFORM, NEAREST_HALF], 'value': [uniform, half]}
  )
  numbers = pd.concat([numbers, theory], ignore_index=True)
  return (found, run.image_size[1], uniform), numbers


def rollout(
  workdir: str, count: int, images_from: Mapping[str, str] | None = None
) -> tuple[Any, pd.DataFrame]:
  """Returns images, uint8 [N, H, W, C], and their maps, [N, rows, columns]."""
  images, places = _images(workdir, count, images_from)
  maps = views.rollout(_load(workdir), images)
  numbers = _table(maps, views.AXES['rollout'], 'rollout')
  numbers.insert(2, 'place_in_split', places[numbers['image']])
  numbers['image'] += 1  # The figure counts from 1.
  return (enlarged(images), maps), numbers


def masked_patches(workdir: str, count: int) -> tuple[Any, pd.DataFrame]:
  """Returns the model's input, its prediction and the original image.

  Each is uint8 [N, H, W, C]. The table has the mean of each patch and channel.
  """
  *pictures, patch = predicted_patches.predict_pictures(workdir, count)
  tables = [
    _table(
      _patch_means(picture, patch), (*views.AXES['rollout'], 'channel'), part
    )
    for part, picture in zip(
      ('input', 'prediction', 'image'), pictures, strict=True
    )
  ]
  numbers = pd.concat(tables, ignore_index=True)
  return tuple(map(enlarged, pictures)), numbers


# `inside.Panel.kind` -> how a panel is measured.
KINDS = {
  'filters': filters,
  'position_similarity': similarity,
  'attention_distance': distance,
  'rollout': rollout,
  'masked_patches': masked_patches,
}


def _images(
  workdir: str, count: int, images_from: Mapping[str, str] | None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns images and their places: a run's own, or of a data set."""
  if images_from is None:
    return weights.held_out_images(workdir, count)
  return weights.images_of(images_from, _load(workdir).preprocess, count)


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
  if times == 1:
    return images
  size = (images.shape[2] * times, images.shape[1] * times)
  scaled = [
    cv2.resize(image, size, interpolation=cv2.INTER_NEAREST) for image in images
  ]
  return np.stack(scaled).reshape(len(images), *size[::-1], images.shape[-1])


# What is drawn. ---------------------------------------------------------------


@drawing.styled
def compose(panels: Sequence[Measured]) -> Any:
  """Draws one figure: a picture of images alone, other kinds side by side.

  Args:
    panels: from left to right. All attention distances share one axis and come
      last.

  Returns:
    A `matplotlib.figure.Figure`.
  """
  first = panels[0]
  if first.kind == 'rollout':
    images, maps = first.shown
    return figures.rollout(images, maps, numbered=len(images) > _NUMBERED)
  if first.kind == 'masked_patches':
    return predicted_patches.draw(*first.shown)
  single = [p for p in panels if p.kind != 'attention_distance']
  distances = {
    p.title: p.shown for p in panels if p.kind == 'attention_distance'
  }
  # With these widths, four rows of seven filters or a map fill the height.
  widths = [5.0 if p.kind == 'filters' else 4.2 for p in single]
  if distances:
    widths.append(0.4 + 3.6 * len(distances))
  figure = drawing.new_figure((sum(widths), 3.6))
  parts = figure.subfigures(1, len(widths), squeeze=False, width_ratios=widths)
  parts = list(parts[0])
  for panel, part in zip(single, parts, strict=False):
    if panel.kind == 'filters':
      figures.filters(panel.shown, into=part)
    else:
      # A single map has the title of its kind, several have their panels'.
      only = sum(p.kind == panel.kind for p in single) == 1
      options = {} if only else {'title': panel.title}
      figures.position_similarity(panel.shown, into=part, **options)
  if distances:
    figures.attention_distance(
      {title: values for title, (values, _, _) in distances.items()},
      max(width for _, width, _ in distances.values()),
      uniform={title: line for title, (_, _, line) in distances.items()},
      into=parts[-1],
    )
  return figure
