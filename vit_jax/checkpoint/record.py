"""The record in each checkpoint: digests, shapes, dtypes and metrics.

The record is a JSON item of the same Orbax checkpoint, so it becomes visible
together with the arrays. It contains a checksum of itself. If the checksum is
right, a state that differs from the record is damaged, and a model that differs
from it belongs to another run.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np
from etils import epath

from vit_jax.checkpoint import fingerprint
from vit_jax.runtime import json_text

ITEM = 'fingerprints'
# Orbax's names for the file of a JSON item and for the file that lists items.
_FILE = 'metadata'
_ITEMS = '_CHECKPOINT_METADATA'


class DamagedError(ValueError):
  """A checkpoint is not what was saved."""


@dataclasses.dataclass(frozen=True)
class Array:
  """One array of a state."""

  shape: tuple[int, ...]
  dtype: str
  digest: str


@dataclasses.dataclass(frozen=True)
class Record:
  """The content of a checkpoint.

  Attributes:
    arrays: the arrays by name, such as `params/head/kernel`.
    empty: the names of the nodes without arrays, sorted.
    metrics: the finite metrics of the saved step.
  """

  arrays: dict[str, Array]
  empty: list[str]
  metrics: dict[str, float]

  def check(self, tree: Any, part: str = '') -> None:
    """Compares arrays with the saved digests; see `fingerprint.digests`.

    Args:
      tree: the whole state, or the part of it that `part` names.
      part: '' or one of the state's top-level keys.

    Raises:
      DamagedError: arrays differ; names them.
    """
    prefix = f'{part}/' if part else ''
    saved = {
      name.removeprefix(prefix): array.digest
      for name, array in self.arrays.items()
      if name.startswith(prefix)
    }
    found = fingerprint.digests(tree)
    damaged = sorted(
      prefix + name
      for name in saved.keys() | found.keys()
      if saved.get(name) != found.get(name)
    )
    if damaged:
      raise DamagedError(
        f'{len(damaged)} of {len(saved)} arrays differ from what was saved:'
        f' {", ".join(damaged[:5])}{", ..." if len(damaged) > 5 else ""}'
      )


def build(tree: Any, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
  """Builds the record of a state about to be saved, as JSON values.

  All processes must call this; see `fingerprint.digests`.
  """
  leaves = fingerprint.named_leaves(tree)
  digests = fingerprint.digests(tree)
  values = {k: float(v) for k, v in (metrics or {}).items()}
  content = {
    'version': 1,
    'arrays': {
      name: {
        'shape': list(np.shape(leaf)),
        'dtype': (
          leaf if hasattr(leaf, 'dtype') else np.asarray(leaf)
        ).dtype.name,
        'digest': digests[name],
      }
      for name, leaf in leaves.items()
    },
    'empty': empty_nodes(tree),
    'metrics': {k: v for k, v in values.items() if math.isfinite(v)},
  }
  return content | {'checksum': _checksum(content)}


def empty_nodes(tree: Mapping[str, Any]) -> list[str]:
  """Returns the names of the nodes without arrays, which Orbax saves, too."""
  flat = flax.traverse_util.flatten_dict(tree, keep_empty_nodes=True)
  empty = flax.traverse_util.empty_node
  return sorted('/'.join(k) for k, v in flat.items() if v is empty or v is None)


def _checksum(content: Mapping[str, Any]) -> str:
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def read(path: epath.Path) -> Record | None:
  """Reads the record of a checkpoint.

  Returns:
    The record; None if an earlier version or another program saved the
    checkpoint without one.

  Raises:
    DamagedError: the record is missing, or not what was written.
    OSError: the record cannot be read.
  """
  try:
    text = (path / ITEM / _FILE).read_text()
  except FileNotFoundError:
    if _had_record(path):
      raise DamagedError(f'{ITEM}/{_FILE} is missing') from None
    return None
  except (NotADirectoryError, IsADirectoryError, UnicodeDecodeError) as error:
    raise DamagedError(f'{ITEM}/{_FILE} cannot be read: {error}') from error
  try:
    content = json_text.loads(text)
    checksum = content.pop('checksum')
    intact = checksum == _checksum(content)
  except (ValueError, KeyError, AttributeError, TypeError):
    intact = False
  if not intact:
    raise DamagedError(f'{ITEM}/{_FILE} is not what was written')
  return Record(
    arrays={
      name: Array(tuple(x['shape']), x['dtype'], x['digest'])
      for name, x in content['arrays'].items()
    },
    empty=content['empty'],
    metrics=content['metrics'],
  )


def _had_record(path: epath.Path) -> bool:
  """Whether a checkpoint without a record was saved with one.

  It was if its folder or Orbax's list of items still shows the record, or if an
  earlier step beside it has one: a run that saves records never stops doing so.
  """
  if (path / ITEM).exists():
    return True
  try:
    if f'"{ITEM}"' in (path / _ITEMS).read_text():
      return True
  except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
    pass
  except UnicodeDecodeError:
    pass
  try:
    return path.name.isdigit() and any(
      (other / ITEM).exists()
      for other in path.parent.iterdir()
      if other.name.isdigit() and int(other.name) < int(path.name)
    )
  except OSError:
    return False


def read_metrics(path: epath.PathLike) -> dict[str, float]:
  """Returns the metrics saved with a checkpoint; {} if none can be read."""
  try:
    record = read(epath.Path(path))
  except (DamagedError, OSError):
    return {}
  return record.metrics if record else {}
