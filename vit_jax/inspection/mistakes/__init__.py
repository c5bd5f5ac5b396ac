"""A page on the mistakes of a run, from its saved predictions."""

import pathlib
from collections.abc import Mapping
from typing import Any

import cv2
import ml_collections
import pandas as pd
from absl import logging
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data, pages
from vit_jax.config import inputs
from vit_jax.data import ops
from vit_jax.evaluators import predictions
from vit_jax.inspection.mistakes import tally
from vit_jax.runtime import errors
from vit_jax.workdir import files


def find(path: epath.PathLike) -> epath.Path:
  """Returns the file of predictions of a run, or the path of such a file.

  Raises:
    ValueError: the run has none, or those of several evaluations.
  """
  path = files.absolute(path)
  if not path.is_dir():
    return path
  found = sorted((path / predictions.FOLDER).glob('*.parquet'))
  if not found:
    raise ValueError(
      f'{path} has no saved predictions. Start the command of the run again,'
      ' with --config.evals.NAME.save_predictions=True: a finished run only'
      ' evaluates again. NAME is that of an evaluation, or auto if the config'
      ' file left the choice of the split to the data.'
    )
  if len(found) > 1:
    raise ValueError(
      f'{path} has predictions of several evaluations; choose one of'
      f' {", ".join(map(str, found))}.'
    )
  return found[0]


def write(
  path: epath.PathLike,
  to: epath.PathLike,
  *,
  worst: int = 60,
  dataset: str = '',
) -> str:
  """Writes the page `TO/index.html`, and its numbers as CSV files.

  Args:
    path: a run with saved predictions, or a file of them.
    to: a folder; older files in it are replaced.
    worst: how many of the most confident mistakes are shown.
    dataset: the data spec to read images from; '' is that of the evaluation.

  Returns:
    A line on what was written.

  Raises:
    ValueError: there are no predictions, or `dataset` cannot be read.
  """
  path, to = find(path), files.absolute(to)
  table, facts = predictions.read(path)
  numbers = tally.compute(table, facts)
  shown = numbers['wrong'][:worst]
  found = _pictures(path.parent.parent, facts, shown, dataset)
  to.mkdir(parents=True, exist_ok=True)
  page = to / 'index.html'
  page.write_text(render(numbers, shown, found), encoding='utf-8')
  names = numbers['classes']['name']
  for name, rows, columns in (
    ('confusions', numbers['pairs'], ('actual', 'predicted')),
    ('classes', numbers['classes'], ('confused_with',)),
  ):
    named = rows.assign(**{key: rows[key].map(names) for key in columns})
    (to / f'{name}.csv').write_text(named.to_csv(index=False))
  return (
    f'{len(numbers["wrong"]):,} mistakes on {numbers["counts"]["counted"]:,}'
    f' images (accuracy {numbers["metrics"]["accuracy"]:.2%}): {page}'
  )


def render(
  numbers: Mapping[str, Any], shown: pd.DataFrame, pictures: Mapping[int, str]
) -> str:
  """Returns the page.

  Args:
    numbers: from `tally.compute`.
    shown: the rows of `wrong` in it to show.
    pictures: index -> `data:` URI; an image may be missing.
  """
  classes = numbers['classes']
  seen = classes[(classes['images'] > 0) | (classes['predicted'] > 0)]
  return pages.render(
    pathlib.Path(__file__).with_name('page.html'),
    title=f'Mistakes on {numbers["facts"]["evaluation"]}',
    **numbers,
    seen=seen.sort_values(['recall', 'images'], ascending=[True, False]),
    shown=shown,
    pictures=pictures,
  )


def _pictures(
  workdir: epath.Path,
  facts: Mapping[str, Any],
  rows: pd.DataFrame,
  dataset: str,
) -> dict[int, str]:
  """Reads images of the evaluated split again, until one is missing.

  Args:
    workdir: the run, whose config has the options of the data.
    facts: see `predictions.read`.
    rows: of its table.
    dataset: the data spec to read from if it is not that of `facts`.

  Returns:
    Index in the split -> the image as a `data:` URI.

  Raises:
    ValueError: `dataset` is given, but cannot be read.
  """
  found = {}
  try:
    saved = config_lib.load(workdir)
    if saved is None:
      raise ValueError(f'{workdir} has no {config_lib.FILE} to name the data.')
    config = ml_collections.ConfigDict(saved)
    section = saved.get('evals', {}).get(facts['evaluation'], {})
    source = inputs.open_source(
      config,
      dataset or facts['dataset'],
      label_key=section.get('label_key', ''),
      own_classes=True,
    )
    upright = inputs.is_upright(config, source.info.spec)
    view = data.View(source, facts['split'])
    for index, name in zip(rows['index'], rows['name'], strict=True):
      record = view[index]
      # The end of a name stays if a folder is moved.
      if record.name.split('/')[-2:] != name.split('/')[-2:]:
        raise ValueError(f'{record.name} is in the place of {name} now.')
      image = ops.decode(record.image, 3, upright=upright)
      found[index] = pages.small_picture(image)
  except (ValueError, OSError, errors.ReadError, cv2.error) as error:
    if dataset:
      raise ValueError(f'--dataset={dataset}: {error}') from error
    logging.warning('Only %d images are shown: %s', len(found), error)
  return found
