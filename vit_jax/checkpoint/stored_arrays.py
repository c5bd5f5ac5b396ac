"""Reads a checkpoint's arrays, and compares names and shapes."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.checkpoint import folders
from vit_jax.checkpoint.record import DamagedError


class _ThoroughLoop(asyncio.SelectorEventLoop):
  """An event loop that finishes all of its tasks before it closes."""

  def close(self) -> None:
    if not self.is_closed() and (tasks := asyncio.all_tasks(self)):
      self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    super().close()


class _ThoroughLoops(asyncio.DefaultEventLoopPolicy):
  def new_event_loop(self) -> asyncio.AbstractEventLoop:
    return _ThoroughLoop()


@contextlib.contextmanager
def _thorough_loops():
  """Lets the other reads finish after an array that cannot be read.

  Otherwise Orbax closes its event loop at once, and each unfinished read prints
  one or more tracebacks.
  """
  before = asyncio.get_event_loop_policy()
  asyncio.set_event_loop_policy(_ThoroughLoops())
  try:
    yield
  finally:
    asyncio.set_event_loop_policy(before)


def read(path: epath.Path) -> Any:
  """Reads the saved tree of a checkpoint, with metadata in place of arrays.

  Raises:
    DamagedError: the metadata cannot be read.
  """
  # Orbax's manager is only for the run that writes the checkpoints.
  with (
    contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler,
    _thorough_loops(),
  ):
    try:
      return handler.metadata(path / folders.STATE).tree
    except Exception as error:  # Damaged files raise errors of many types.
      lines = str(error).splitlines() or ['']
      raise DamagedError(
        f'the metadata of {folders.STATE}/ cannot be read: {lines[0]}'
      ) from error


def read_arrays(
  path: epath.Path, item: Any, restore_args: Any, *, partial: bool = False
) -> Any:
  """Reads arrays without verifying them; damaged files raise any exception.

  Does not use Orbax's manager or a checkpointer: if one process raised, the
  others would wait for it at their barriers.
  """
  with (
    contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler,
    _thorough_loops(),
  ):
    return handler.restore(
      path / folders.STATE,
      args=ocp.args.PyTreeRestore(
        item=item, restore_args=restore_args, partial_restore=partial
      ),
    )


def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  """Flattens a tree of arrays (or metadata) to `{'a/b': shape}`."""
  flat = flax.traverse_util.flatten_dict(tree, sep='/')
  return {k: tuple(v.shape) for k, v in flat.items() if hasattr(v, 'shape')}


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
