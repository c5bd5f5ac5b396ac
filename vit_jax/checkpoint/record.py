"""The record in each checkpoint: digests, shapes and dtypes of its arrays.

The record is a JSON item of the same Orbax checkpoint, so it becomes visible
together with the arrays. It contains a checksum of itself. If the checksum is
right, a state that differs from the record is damaged, and a model that differs
from it belongs to another run.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import flax.serialization
import flax.traverse_util
from etils import epath

from vit_jax.checkpoint import fingerprint
from vit_jax.runtime import errors, json_text

ITEM = 'fingerprints'
_FILE = 'metadata'  # Orbax's name for the file of a JSON item.
_ERRNO = re.compile(r"os_error_code='(\d+)'")  # In TensorStore's messages.


class DamagedError(ValueError):
  """A checkpoint is not what was saved."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
  """Yields an error, and those that it was raised from."""
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__


def system_number(error: BaseException) -> int | None:
  """Returns the system's number of an error; None if it has none."""
  # Orbax and TensorStore wrap the errors of the system.
  if found := _ERRNO.search(str(error)):
    return int(found[1])
  return error.errno if isinstance(error, OSError) else None


def reason(error: BaseException) -> str:
  """Formats an error in one line, as part of a message."""
  for cause in causes(error):
    if number := system_number(cause):
      system = OSError(number, os.strerror(number))
      return errors.described(system).rstrip('.')
  return ' '.join(f'{type(error).__name__}: {error}'.split())[:300].rstrip('.')


@dataclasses.dataclass(frozen=True)
class Record:
  """The content of a checkpoint.

  Attributes:
    arrays: the shape and the dtype of each array by its name, such as
      `(8, 16) float32` of `params/head/kernel`.
    digests: the arrays' digests.
    empty: the names of the nodes without arrays, sorted.
  """

  arrays: dict[str, str]
  digests: dict[str, str]
  empty: list[str]

  def check(self, tree: Any, names: Iterable[str] | None = None) -> None:
    """Compares arrays with the saved digests; see `fingerprint.digests`.

    Args:
      tree: the whole state, or a part of it.
      names: the arrays that it must have; None stands for all that were saved.

    Raises:
      DamagedError: arrays differ, or are missing; names them.
    """
    found = fingerprint.digests(tree)
    names = {*found, *(self.digests if names is None else names)}
    damaged = sorted(k for k in names if self.digests.get(k) != found.get(k))
    if damaged:
      raise DamagedError(
        f'{len(damaged)} of {len(names)} arrays differ or are missing:'
        f' {", ".join(damaged[:5])}{", ..." if len(damaged) > 5 else ""}'
      )

  def difference(self, state: Any) -> str:
    """Lists how another state differs from the saved one; '' if it does not.

    Args:
      state: a tree of arrays, or of their shapes and dtypes.
    """
    arrays = {
      name: f'{tuple(leaf.shape)} {leaf.dtype.name}'
      for name, leaf in fingerprint.named_leaves(state).items()
    }
    # Orbax also refuses a state with other nodes without arrays, such as the
    # states of an optimizer's stateless parts.
    return mismatch(
      arrays | dict.fromkeys(empty_nodes(state), 'without arrays'),
      self.arrays | dict.fromkeys(self.empty, 'without arrays'),
    )


def digests(state: Any) -> dict[str, str]:
  """Returns the digests that the record of a state has, see `Record`.

  All processes must call this; see `fingerprint.digests`.
  """
  return fingerprint.digests(flax.serialization.to_state_dict(state))


def build(tree: Any, digests: Mapping[str, str]) -> dict[str, Any]:
  """Builds the record of a state about to be saved, as JSON values.

  Args:
    tree: the state as nested dicts of arrays.
    digests: those of its arrays.
  """
  content = {
    'version': 1,
    'arrays': {
      name: {
        'shape': list(leaf.shape),
        'dtype': leaf.dtype.name,
        'digest': digests[name],
      }
      for name, leaf in fingerprint.named_leaves(tree).items()
    },
    'empty': empty_nodes(tree),
  }
  return content | {'checksum': json_text.checksum(content)}


def empty_nodes(tree: Mapping[str, Any]) -> list[str]:
  """Returns the names of the nodes without arrays, which Orbax saves, too."""
  flat = flax.traverse_util.flatten_dict(tree, keep_empty_nodes=True)
  empty = flax.traverse_util.empty_node
  return sorted('/'.join(k) for k, v in flat.items() if v is empty or v is None)


def read(path: epath.Path) -> Record:
  """Reads the record of a checkpoint.

  Raises:
    DamagedError: the record is missing, or not what was written.
    OSError: the record cannot be read.
  """
  try:
    content = json_text.loads((path / ITEM / _FILE).read_text())
    checksum = content.pop('checksum')
    intact = checksum == json_text.checksum(content)
  except FileNotFoundError:
    raise DamagedError(f'{ITEM}/{_FILE} is missing') from None
  except (ValueError, KeyError, AttributeError, TypeError):
    intact = False
  if not intact:
    raise DamagedError(f'{ITEM}/{_FILE} is not what was written')
  arrays = content['arrays'].items()
  return Record(
    arrays={k: f'{tuple(v["shape"])} {v["dtype"]}' for k, v in arrays},
    digests={k: v['digest'] for k, v in arrays},
    empty=content['empty'],
  )


def mismatch(
  expected: Mapping[str, Any],
  found: Mapping[str, Any],
) -> str:
  """Lists all differences between two sets of named arrays; '' if none."""
  groups = {'missing': [], 'extra': [], 'different': []}
  for name in sorted(expected.keys() | found.keys()):
    if name not in found:
      groups['missing'].append(f'{name} {expected[name]}')
    elif name not in expected:
      groups['extra'].append(f'{name} {found[name]}')
    elif expected[name] != found[name]:
      groups['different'].append(
        f'{name} is {found[name]}, expected {expected[name]}'
      )
  return '\n'.join(
    f'  {name} ({len(lines)}):\n    ' + '\n    '.join(lines)
    for name, lines in groups.items()
    if lines
  )
