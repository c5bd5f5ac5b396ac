"""What tells a data set from another one that looks like it, cheaply."""

import hashlib
import json
from concurrent import futures
from typing import Any

import numpy as np

from vit_jax.data import source
from vit_jax.runtime import errors

# Examples whose bytes are read, from the first to the last, evenly spaced.
_SAMPLES = 128
_THREADS = 16
# In place of a digest, of what could not be read just now: it is not compared.
UNKNOWN = 'unknown'


def digest(view: source.View) -> dict[str, Any]:
  """Describes what a view reads; equal for equal data, on any machine.

  Names are compared of all records, sizes of many (see the sources' `facts`),
  and bytes of 128: what else was changed without another size is not seen.

  Args:
    view: some records of a data set.

  Returns:
    JSON-able: the data spec, the split, the number of `examples`, the facts of
    the splits that they are from, and `contents`: by index the end of some
    records' names with a digest of bytes and label.
  """
  last = len(view) - 1
  indices = np.linspace(0, last, min(len(view), _SAMPLES)).astype(np.int64)
  with futures.ThreadPoolExecutor(_THREADS) as pool:
    contents = dict(pool.map(lambda i: _content(view, i), indices.tolist()))
  of_split = getattr(view.source, 'facts', lambda split: {})
  splits = sorted({part.split for part in view.selection.ranges})
  return {
    'dataset': view.source.info.spec,
    'split': view.split,
    'examples': len(view),
    **{split: of_split(split) for split in splits},
    'contents': contents,
  }


def short_hash(data: Any) -> str:
  """A short digest: of bytes, an array, or what JSON can hold."""
  if not isinstance(data, bytes | np.ndarray):
    data = json.dumps(data).encode()
  return hashlib.sha256(np.ascontiguousarray(data)).hexdigest()[:16]


def _content(view: source.View, index: int) -> tuple[str, str]:
  """A record's name, without the place of the data set, and its digest."""
  try:
    record = view[index]
  except OSError:  # Whether that ends the run is `data.unreadable`'s.
    return str(index), UNKNOWN
  except Exception as error:  # Of a library; a damaged shard, for example.
    raise errors.ReadError(
      f'Reading record {index} of {view.split} of {view.source.info.spec}'
      f' failed: {type(error).__name__}: {error}. Bring the data set back as it'
      ' was.'
    ) from error
  image = record.image
  if isinstance(image, np.ndarray):
    image = f'{image.shape}'.encode() + image.tobytes()
  label = np.atleast_1d(record.label).tolist()
  name = '/'.join(record.name.split('/')[-2:])
  return str(index), f'{name} {short_hash(f"{label}".encode() + image)}'
