"""Reads images of an evaluation again, small, for the page on mistakes."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import ml_collections
import numpy as np
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import inputs
from vit_jax.data import ops
from vit_jax.runtime import errors

# Longer sides are shrunk to this many pixels.
_SIDE = 160
# Images up to this side are kept exactly: JPEG would blur them.
_EXACT = 64


def read(
  workdir: epath.Path | None,
  facts: Mapping[str, Any],
  wanted: Mapping[int, str],
  *,
  count: int,
  dataset: str = '',
) -> tuple[dict[int, str], str]:
  """Reads images of the evaluated split.

  Args:
    workdir: the run, whose config has the options of the data; None if the
      predictions lie in no run.
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
    view, config = _open(workdir, facts, dataset)
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
      found[index] = _thumbnail(view[index], name, config, view)
    except (ValueError, OSError, errors.ReadError, cv2.error) as error:
      reason = reason or f'{name}: {error}'
  missing = len(wanted) - len(found)
  if not missing:
    return found, ''
  return found, (
    f'{missing} of {len(wanted)} pictures are missing, such as {reason}'
  )


def _open(
  workdir: epath.Path | None, facts: Mapping[str, Any], dataset: str
) -> tuple[data.View, ml_collections.ConfigDict]:
  """Opens the evaluated split; raises ValueError if that is impossible."""
  saved = config_lib.load(workdir)
  if saved is None:
    raise ValueError(
      f'{workdir or "a file outside a run"} has no {config_lib.FILE}, which'
      ' names the data.'
    )
  config = ml_collections.ConfigDict(saved)
  section = saved.get('evals', {}).get(facts['evaluation'], {})
  source = inputs.open_source(
    config,
    dataset or facts['dataset'],
    label_key=section.get('label_key', ''),
    own_classes=True,
  )
  return data.View(source, facts['split']), config


def _thumbnail(
  record: data.Record,
  name: str,
  config: ml_collections.ConfigDict,
  view: data.View,
) -> str:
  """Returns a record's image as a `data:` URI.

  Raises:
    ValueError: the image is unreadable, or is that of another example.
  """
  if _tail(record.name) != _tail(name):
    raise ValueError(f'{record.name} is in its place now.')
  upright = inputs.is_upright(config, view.source.info.spec)
  image = ops.decode(record.image, 3, upright=upright)
  return data_uri(image)


def data_uri(image: np.ndarray) -> str:
  """Returns an image, uint8 [h, w, 3], as a small `data:` URI."""
  height, width = image.shape[:2]
  scale = _SIDE / max(height, width)
  if scale < 1:
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
  kind = 'png' if max(height, width) <= _EXACT else 'jpeg'
  encoded = cv2.imencode(f'.{kind}', np.ascontiguousarray(image[..., ::-1]))[1]
  return f'data:image/{kind};base64,{base64.b64encode(encoded).decode()}'


def _tail(name: str) -> Sequence[str]:
  """Returns the end of a name, which stays if a folder is moved."""
  return name.split('/')[-2:]
