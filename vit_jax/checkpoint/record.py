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
_FILE = 'metadata'  # Orbax's name for the file of a JSON item.


class DamagedError(ValueError):
  """A checkpoint is not what was saved."""


@dataclasses.dataclass(frozen=True)
class Record:
  """The content of a checkpoint.

  Attributes:
    shapes: the shapes of the arrays by name, such as `params/head/kernel`.
    dtypes: their dtypes.
    digests: their digests.
    empty: the names of the nodes without arrays, sorted.
    metrics: the finite metrics of the saved step.
  """

  shapes: dict[str, tuple[int, ...]]
  dtypes: dict[str, str]
  digests: dict[str, str]
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
    tree = {part: tree} if part else tree
    saved = {
      name: digest
      for name, digest in self.digests.items()
      if not part or name.startswith(f'{part}/')
    }
    found = fingerprint.digests(tree)
    damaged = sorted(
      name
      for name in saved.keys() | found.keys()
      if saved.get(name) != found.get(name)
    )
    if damaged:
      raise DamagedError(
        f'{len(damaged)} of {len(saved)} arrays differ from what was saved:'
        f' {", ".join(damaged[:5])}{", ..." if len(damaged) > 5 else ""}'
      )

  def difference(self, state: Any) -> str:
    """Lists how another state differs from the saved one; '' if it does not.

    Args:
      state: a tree of arrays, or of their shapes and dtypes.
    """
    shapes = {k: v.shape for k, v in fingerprint.named_leaves(state).items()}
    # Orbax also refuses a state with other nodes without arrays, such as the
    # states of an optimizer's stateless parts.
    return mismatch(
      shapes | dict.fromkeys(empty_nodes(state), 'without arrays'),
      self.shapes | dict.fromkeys(self.empty, 'without arrays'),
    )


def build(tree: Any, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
  """Builds the record of a state about to be saved, as JSON values.

  All processes must call this; see `fingerprint.digests`.
  """
  digests = fingerprint.digests(tree)
  values = {k: float(v) for k, v in (metrics or {}).items()}
  content = {
    'version': 1,
    'arrays': {
      name: {
        'shape': list(np.shape(leaf)),
        'dtype': fingerprint.dtype_of(leaf).name,
        'digest': digests[name],
      }
      for name, leaf in fingerprint.named_leaves(tree).items()
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


def read(path: epath.Path) -> Record:
  """Reads the record of a checkpoint.

  Raises:
    DamagedError: the record is missing, or not what was written.
    OSError: the record cannot be read.
  """
  try:
    content = json_text.loads((path / ITEM / _FILE).read_text())
    checksum = content.pop('checksum')
    intact = checksum == _checksum(content)
  except FileNotFoundError:
    raise DamagedError(f'{ITEM}/{_FILE} is missing') from None
  except (ValueError, KeyError, AttributeError, TypeError):
    intact = False
  if not intact:
    raise DamagedError(f'{ITEM}/{_FILE} is not what was written')
  arrays = content['arrays'].items()
  return Record(
    shapes={name: tuple(array['shape']) for name, array in arrays},
    dtypes={name: array['dtype'] for name, array in arrays},
    digests={name: array['digest'] for name, array in arrays},
    empty=content['empty'],
    metrics=content['metrics'],
  )


def read_metrics(path: epath.PathLike) -> dict[str, float]:
  """Returns the metrics saved with a checkpoint; {} if none can be read."""
  try:
    return read(epath.Path(path)).metrics
  except (DamagedError, OSError):
    return {}


def mismatch(
  expected: Mapping[str, tuple[int, ...]],
  found: Mapping[str, tuple[int, ...]],
) -> str:
  """Lists all differences between two sets of named shapes; '' if none."""
  groups = {
    'missing': [
      f'{k} {expected[k]}' for k in sorted(expected.keys() - found.keys())
    ],
    'extra': [
      f'{k} {found[k]}' for k in sorted(found.keys() - expected.keys())
    ],
    'wrong shape': [
      f'{k} is {found[k]}, expected {expected[k]}'
      for k in sorted(expected.keys() & found.keys())
      if expected[k] != found[k]
    ],
  }
  return '\n'.join(
    f'  {name} ({len(lines)}):\n    ' + '\n    '.join(lines)
    for name, lines in groups.items()
    if lines
  )
