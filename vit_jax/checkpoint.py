"""Saving and restoring the training state, and reading its parameters.

A run keeps its states under `WORKDIR/checkpoints/STEP`. Saves are
asynchronous and atomic (Orbax): a directory exists under its final name only
when everything in it was written.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import flax.serialization
import flax.traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from vit_jax import paths

FOLDER = 'checkpoints'
# The folder in a checkpoint in which Orbax's manager puts an unnamed item.
_ITEM = 'default'


def _read_structure(path: epath.Path) -> Any:
  """Reads the saved tree of a checkpoint, with metadata in place of arrays."""
  # Not through the manager, which is made for the run that writes.
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    try:
      return handler.metadata(path / _ITEM).tree
    except (FileNotFoundError, ValueError) as error:
      raise ValueError(
        f'{path} is damaged, or not a checkpoint of this program; remove it to'
        f' use the one before it, if there is one. {error}'
      ) from error


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  """Flattens a tree of arrays (or metadata) to `{'a/b': shape}`."""
  flat = flax.traverse_util.flatten_dict(tree, sep='/')
  return {k: tuple(v.shape) for k, v in flat.items() if hasattr(v, 'shape')}


def mismatch(
  expected: Mapping[str, tuple[int, ...]],
  found: Mapping[str, tuple[int, ...]],
) -> str:
  """Lists every difference between two sets of named shapes; '' if none."""
  groups = {
    'missing': [
      f'{k} {expected[k]}' for k in sorted(expected.keys() - found.keys())
    ],
    'extra': [
      f'{k} {found[k]}' for k in sorted(found.keys() - expected.keys())
    ],
    'misshapen': [
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


class Checkpoints:
  """The checkpoints of one run."""

  def __init__(self, workdir: epath.PathLike, *, keep: int, keep_every: int):
    """Opens (and creates) the run's checkpoint folder.

    Args:
      workdir: the run's directory.
      keep: how many of the newest to keep.
      keep_every: steps whose multiples are kept for good; 0 keeps none.
    """
    policies = [checkpoint_managers.LatestN(keep)]
    if keep_every:
      policies.append(checkpoint_managers.EveryNSteps(keep_every))
    self.directory = paths.absolute(workdir) / FOLDER
    self._manager = ocp.CheckpointManager(
      self.directory,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
        enable_async_checkpointing=True,
        # What a killed run left half-written.
        cleanup_tmp_directories=True,
      ),
    )

  @property
  def latest_step(self) -> int | None:
    """The newest complete checkpoint's step, None if there is none."""
    return self._manager.latest_step()

  def save(self, step: int, state: Any) -> None:
    """Starts saving; returns when the state was copied off the devices."""
    tree = flax.serialization.to_state_dict(state)
    self._manager.save(step, args=ocp.args.PyTreeSave(tree))

  def restore(self, step: int, abstract_state: Any) -> Any:
    """Restores a state.

    Args:
      step: one of the saved steps.
      abstract_state: the state as `jax.ShapeDtypeStruct`s with shardings.

    Returns:
      The state, on the devices the shardings name.

    Raises:
      ValueError: the checkpoint holds another model's or optimizer's state;
        lists the missing, extra and misshapen arrays.
    """
    target = flax.serialization.to_state_dict(abstract_state)
    path = self.directory / str(step)
    difference = mismatch(_shapes(target), _shapes(_read_structure(path)))
    if difference:
      raise ValueError(
        f'The checkpoint {path} does not hold the state'
        f' of this run. Against what the config builds:\n{difference}\n'
        'Use another --workdir, or the config that wrote this one.'
      )
    restored = self._manager.restore(
      step,
      args=ocp.args.PyTreeRestore(
        item=target,
        restore_args=ocp.checkpoint_utils.construct_restore_args(target),
      ),
    )
    return flax.serialization.from_state_dict(abstract_state, restored)

  def close(self) -> None:
    """Waits for the last save and releases the manager."""
    self._manager.wait_until_finished()
    self._manager.close()


def latest_step(workdir: epath.PathLike) -> int | None:
  """The newest complete checkpoint of a run; only looks."""
  complete = _complete_steps(paths.absolute(workdir) / FOLDER)
  return int(complete[-1].name) if complete else None


def _complete_steps(folder: epath.Path) -> list[epath.Path]:
  """The complete checkpoints in a folder, oldest first."""
  # On gs:// what is half-written differs by more than its name.
  complete = ocp.utils.checkpoint_steps_paths(folder)
  steps = [path for path in complete if path.name.isdigit()]
  return sorted(steps, key=lambda path: int(path.name))


def find(path: epath.PathLike) -> epath.Path:
  """Resolves a run's directory, or a checkpoint's, to one checkpoint.

  Args:
    path: `WORKDIR` or `WORKDIR/checkpoints` (its newest checkpoint), or
      `WORKDIR/checkpoints/STEP`.

  Raises:
    ValueError: there is no checkpoint; says what is there instead.
  """
  path = paths.absolute(path)
  folder = path if path.name == FOLDER else path / FOLDER
  if steps := _complete_steps(folder):
    return steps[-1]
  # Only now: a run's directory may be called `3`, too.
  if path.name.isdigit() and path.is_dir():
    return path
  if not path.exists():
    found = 'the path does not exist'
  elif not path.is_dir():
    found = 'it is a file'
  else:
    names = sorted(p.name for p in path.iterdir())
    found = f'it holds {names[:8] or "nothing"}'
  raise ValueError(
    f"No checkpoint at {path}: {found}. Expected a run's directory (with"
    f' {FOLDER}/STEP in it) or WORKDIR/{FOLDER}/STEP.'
  )


def read_params(path: epath.PathLike) -> tuple[Any, epath.Path]:
  """Reads a run's parameters, averaged ones where the run kept an average.

  The optimizer's state is not read.

  Args:
    path: see `find`.

  Returns:
    The parameters as a tree of NumPy arrays, and the checkpoint's path.

  Raises:
    ValueError: no checkpoint, or one that holds no parameters.
  """
  path = find(path)
  tree = _read_structure(path)
  name = 'ema_params' if tree.get('ema_params') else 'params'
  if not tree.get(name):
    raise ValueError(
      f'{path} is not a checkpoint of a training run: it has no `params`,'
      f' only {sorted(tree)}.'
    )
  item = {name: tree[name]}
  with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
    restored = handler.restore(
      path / _ITEM,
      args=ocp.args.PyTreeRestore(
        item=item,
        restore_args=jax.tree.map(
          lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item
        ),
        partial_restore=True,
      ),
    )
  return restored[name], path
