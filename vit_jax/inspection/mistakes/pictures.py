"""Reads images of an evaluation again, small, for the page on mistakes."""

from collections.abc import Mapping
from typing import Any

import cv2
import ml_collections
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data, pages
from vit_jax.config import inputs
from vit_jax.data import ops
from vit_jax.runtime import errors


def read(
  workdir: epath.Path,
  facts: Mapping[str, Any],
  wanted: Mapping[int, str],
  *,
  count: int,
  dataset: str = '',
) -> tuple[dict[int, str], str]:
  """Reads images of the evaluated split.

  Args:
    workdir: the run, whose config has the options of the data.
    facts: see `predictions.read`.
    wanted: index in the split -> name of the example.
    count: number of examples of the split.
    dataset: the data spec to read from if it is not that of `facts`.

  Returns:
    Index -> the image as a `data:` URI; and a sentence on what is missing, ''
    if nothing is.

  Raises:
    ValueError: `dataset` is given, but cannot be read.
  """
  try:
    view, upright = _open(workdir, facts, dataset)
    if len(view) != count:
      raise ValueError(
        f'it has {len(view)} examples now, not {count} as evaluated.'
      )
  except (ValueError, OSError, errors.ReadError) as error:
    if dataset:
      raise ValueError(f'--dataset={dataset}: {error}') from error
    return {}, f'There are no pictures: {error}'
  found, reason = {}, ''
  for index, name in wanted.items():
    try:
      record = view[index]
      # The end of a name stays if a folder is moved.
      if record.name.split('/')[-2:] != name.split('/')[-2:]:
        raise ValueError(f'{record.name} is in its place now.')
      image = ops.decode(record.image, 3, upright=upright)
      found[index] = pages.small_picture(image)
    except (ValueError, OSError, errors.ReadError, cv2.error) as error:
      reason = reason or f'{name}: {error}'
  missing = f'{len(wanted) - len(found)} of {len(wanted)} pictures are missing'
  return found, reason and f'{missing}, such as {reason}'


def _open(
  workdir: epath.Path, facts: Mapping[str, Any], dataset: str
) -> tuple[data.View, bool]:
  """Opens the evaluated split; also returns whether images are rotated."""
  saved = config_lib.load(workdir)
  if saved is None:
    raise ValueError(
      f'{workdir} has no {config_lib.FILE}, which names the data.'
    )
  config = ml_collections.ConfigDict(saved)
  section = saved.get('evals', {}).get(facts['evaluation'], {})
  source = inputs.open_source(
    config,
    dataset or facts['dataset'],
    label_key=section.get('label_key', ''),
    own_classes=True,
  )
  upright = inputs.is_upright(config, source.info.spec)
  return data.View(source, facts['split']), upright
