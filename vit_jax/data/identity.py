"""Cheap digests that tell similar data sets apart."""

import hashlib
import json
from concurrent import futures
from typing import Any

import numpy as np

from vit_jax.data import source
from vit_jax.runtime import errors

# Number of examples, evenly spaced, whose bytes are read.
_SAMPLES = 128
_THREADS = 16


def digest(view: source.View) -> dict[str, Any]:
  """Describes what a view reads; equal for equal data, on any machine.

  The digest covers the names of all records, the sizes of many (see `facts` of
  the sources), and the bytes of 128. It misses any other change that keeps the
  size.

  Args:
    view: some records of a data set.

  Returns:
    JSON-able: the data spec, the split, the number of `examples`, the facts of
    the splits that the view reads, and `contents`: index of a record -> the end
    of its name and a digest of its bytes and label.
  """
  last = len(view) - 1
  indices = np.linspace(0, last, min(len(view), _SAMPLES)).astype(np.int64)
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    contents = dict(pool.map(lambda i: _content(view, i), indices.tolist()))
  splits = sorted({part.split for part in view.selection.ranges})
  return {
    'dataset': view.source.info.spec,
    'split': view.split,
    'examples': len(view),
    **{split: view.source.facts(split) for split in splits},
    'contents': contents,
  }


def short_hash(data: Any) -> str:
  """Returns a short digest of bytes, an array, or a JSON-able value."""
  if not isinstance(data, bytes | np.ndarray):
    data = json.dumps(data).encode()
  return hashlib.sha256(np.ascontiguousarray(data)).hexdigest()[:16]


def name_end(name: str) -> str:
  """Returns the end of a record's name, which stays if a folder is moved."""
  return '/'.join(name.split('/')[-2:])


def _content(view: source.View, index: int) -> tuple[str, str]:
  """Returns a record's index, and the end of its name with its digest."""
  try:
    record = view[index]
  except OSError:  # `data.unreadable` decides whether that ends the run.
    return str(index), errors.UNKNOWN
  except Exception as error:  # From a library, such as for a damaged shard.
    raise errors.ReadError(
      f'Reading record {index} of {view.split} of {view.source.info.spec}'
      f' failed: {type(error).__name__}: {error}. Restore the data set.'
    ) from error
  image = record.image
  if isinstance(image, np.ndarray):
    image = f'{image.shape}'.encode() + image.tobytes()
  label = np.atleast_1d(record.label).tolist()
  digest = short_hash(f'{label}'.encode() + image)
  return str(index), f'{name_end(record.name)} {digest}'
