"""Restores the newest intact checkpoint onto the devices."""

import time
from typing import Any

import flax.serialization
import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from vit_jax.checkpoint import (
  collective,
  damage,
  fingerprint,
  folders,
  record,
  stored_arrays,
)
from vit_jax.checkpoint.record import DamagedError
from vit_jax.runtime import errors
from vit_jax.workdir import files

# What a process can find when it reads a checkpoint.
_VERIFIABLE, _UNVERIFIABLE, _DAMAGED, _FOREIGN, _OUT_OF_REACH, _UNANSWERED = (
  range(6)
)

# Pauses in seconds before reading again, as a fault may be brief. A shared file
# system needs longer pauses: a host may have cached that a file is missing.
_PAUSES = (0.5, 1.0)
_SHARED_PAUSES = (1.0, 4.0, 10.0)


class _OnlySomeError(DamagedError):
  """Processes other than process 0 found damage."""


class _OutOfReachError(OSError):
  """A checkpoint cannot be read, and may be intact."""


def restore_newest(
  workdir: epath.PathLike, abstract_state: Any, *, set_aside: bool = True
) -> tuple[Any, int] | None:
  """Restores a run's newest intact checkpoint.

  Retries for some seconds if a checkpoint cannot be read. Logs damaged ones as
  errors and, once an intact one is found, moves them to
  `WORKDIR/damaged_checkpoints/STEP`. Some stay: those that cannot be moved, and
  those in which process 0 finds no damage. They count as absent in this
  process: `Checkpoints` ignores them, and saves their steps anew.

  All processes must call this; if one of them cannot read a checkpoint, none
  uses it. There is no time limit: if a file system or a process does not
  answer, the run's watchdog ends the run (`guard.exit_after`).

  Args:
    workdir: the run's directory.
    abstract_state: the state as `jax.ShapeDtypeStruct`s with shardings.
    set_aside: whether to move damaged checkpoints; False only reads.

  Returns:
    The state, on the devices of its shardings, and its step. None if there are
    no checkpoints.

  Raises:
    ValueError: there are checkpoints, but none is intact (says what is wrong
      with each); or the newest intact one holds another model's or optimizer's
      state (lists arrays that are missing, extra or of the wrong shape).
    OSError: a checkpoint cannot be read for lack of memory, of permission or of
      an answer, and may be intact. Nothing was moved.
    StoreError: the same on an object store that does not answer.
  """
  workdir = files.absolute(workdir)
  folder = workdir / folders.FOLDER
  folders.forget_damaged(folder)
  empty = [int(path.name) for path in folders.empty_steps(folder)]
  for step in collective.same_steps(empty):
    folders.note_damaged(folder / str(step))
  steps = [int(path.name) for path in folders.complete_steps(folder)]
  found = {}
  for step in reversed(collective.same_steps(steps)):
    path = folder / str(step)
    try:
      state = restore(path, abstract_state)
    except DamagedError as error:
      logging.error('%s Falling back to the one before it.', error)
      # The traceback would keep the arrays on the devices alive.
      found[path] = error.with_traceback(None)
    else:
      if found:
        logging.warning('Using %s, the newest intact checkpoint.', path)
      for path, error in found.items():
        move = set_aside and not isinstance(error, _OnlySomeError)
        if not (move and _moved_aside(path, workdir / folders.DAMAGED)):
          folders.note_damaged(path)
      return state, step
  if not found:
    return None
  raise ValueError(
    f'No checkpoint in {folder} is intact:\n  '
    + '\n  '.join(map(str, found.values()))
    + f'\nMove {folder} away and pass --restart to begin anew, or use another'
    ' --workdir.'
  )


def restore(path: epath.Path, abstract_state: Any) -> Any:
  """Restores one checkpoint; all processes must call this.

  Args:
    path: the checkpoint, `.../STEP`.
    abstract_state: the state as `jax.ShapeDtypeStruct`s with shardings. Arrays
      that were saved in another dtype are converted.

  Raises:
    DamagedError: on all processes, if any of them finds the checkpoint damaged;
      says what is wrong.
    ValueError: the checkpoint holds another model's or optimizer's state; lists
      arrays that are missing, extra or of the wrong shape.
    OSError: on all processes, see `restore_newest`.
  """
  shared = jax.process_count() > 1 or '://' in str(path)
  # All processes raise alike, so all of them try again or none does.
  for pause in _SHARED_PAUSES if shared else _PAUSES:
    try:
      return _restore_once(path, abstract_state)
    except (DamagedError, _OutOfReachError, errors.StoreError) as error:
      logging.warning('%s Trying again in %g s.', error, pause)
    time.sleep(pause)
  return _restore_once(path, abstract_state)


def _restore_once(path: epath.Path, abstract_state: Any) -> Any:
  target = flax.serialization.to_state_dict(abstract_state)
  tree = saved = None
  try:
    saved = record.read(path)
    finding = _VERIFIABLE if saved else _UNVERIFIABLE, ''
    if difference := _difference(path, target, saved):
      finding = _FOREIGN, difference
    else:
      tree = _read_arrays(path, _as_saved(target, saved))
  # If a process raised here, the others would wait for it.
  except Exception as error:
    finding = _finding(path, error)
  _agree(path, *finding)
  if saved is None:
    logging.warning(
      '%s was saved without fingerprints (by an earlier version, or another'
      ' program): the restored state could not be verified.',
      path,
    )
    return flax.serialization.from_state_dict(abstract_state, tree)
  finding = _VERIFIABLE, ''
  try:
    saved.check(tree)
  except Exception as error:
    finding = _finding(path, error)
  _agree(path, *finding)
  tree = jax.tree.map(_cast, tree, target)
  return flax.serialization.from_state_dict(abstract_state, tree)


def _finding(path: epath.Path, error: Exception) -> tuple[int, str]:
  code = _OUT_OF_REACH if damage.is_out_of_reach(error) else _DAMAGED
  if damage.is_unanswered(path, error):
    code = _UNANSWERED
  return code, damage.one_line(error)


def _difference(path, target, saved: record.Record | None) -> str:
  """Says how a checkpoint differs from the config's state; '' if it does not.

  The record has a checksum, so a difference from it is no damage. Without a
  record, only Orbax's metadata is left to trust.
  """
  expected = stored_arrays.shapes(target)
  if saved is None:
    return stored_arrays.mismatch(
      expected, stored_arrays.shapes(stored_arrays.read(path))
    )
  # Orbax also refuses a state with other nodes without arrays, such as the
  # states of an optimizer's stateless parts.
  expected |= dict.fromkeys(record.empty_nodes(target), 'without arrays')
  found = {name: array.shape for name, array in saved.arrays.items()}
  found |= dict.fromkeys(saved.empty, 'without arrays')
  return stored_arrays.mismatch(expected, found)


def _as_saved(target, saved: record.Record | None):
  """Returns the target with the saved dtypes, for which the digests hold."""
  if saved is None:
    return target
  named = fingerprint.named_leaves(target)
  dtypes = [saved.arrays[name].dtype for name in named]
  leaves, treedef = jax.tree.flatten(target)
  return treedef.unflatten(
    jax.ShapeDtypeStruct(x.shape, jax.numpy.dtype(dtype), sharding=x.sharding)
    for x, dtype in zip(leaves, dtypes, strict=True)
  )


def _cast(x: jax.Array, target: jax.ShapeDtypeStruct) -> jax.Array:
  if x.dtype == target.dtype:
    return x
  cast = jax.jit(
    lambda x: x.astype(target.dtype), out_shardings=target.sharding
  )
  return cast(x)


def _read_arrays(path, target):
  # `read_params` needs this metadata, although Orbax can restore without it.
  stored_arrays.read(path)
  return stored_arrays.read_arrays(
    path, target, ocp.checkpoint_utils.construct_restore_args(target)
  )


def _agree(path: epath.Path, code: int, text: str) -> None:
  """Raises the same error on all processes if one found something wrong."""
  found = collective.gather(code, text)
  codes = {code for code, _ in found}
  if codes == {_FOREIGN}:
    raise ValueError(
      f'The checkpoint {path} does not hold the state of this run. Its'
      f" differences from the config's state:\n{text}\n"
      'Use another --workdir, or the config that wrote this one.'
    )
  if codes in ({_VERIFIABLE}, {_UNVERIFIABLE}):
    return
  reasons = {}
  for index, (_, reason) in enumerate(found):
    if reason:
      reasons.setdefault(reason, index)
  if len(found) > 1:
    reasons = [f'process {i}: {text}' for text, i in reasons.items()]
  why = '; '.join(reasons) or 'processes see different files'
  if _UNANSWERED in codes:
    raise errors.StoreError(f'The checkpoint {path} cannot be read: {why}.')
  if _OUT_OF_REACH in codes:
    raise _OutOfReachError(
      f'The checkpoint {path} cannot be read: {why}. It may be intact, so'
      ' nothing was moved and no earlier one is used. Make it readable (memory,'
      ' permissions, network, disk) and start again, or move it away to resume'
      ' from the one before it.'
    )
  kind = DamagedError if found[0][0] == _DAMAGED else _OnlySomeError
  raise kind(f'The checkpoint {path} is damaged: {why}.')


def _moved_aside(path: epath.Path, folder: epath.Path) -> bool:
  """Moves a damaged checkpoint; returns on all processes if that worked."""
  failed = False
  if jax.process_index() == 0:
    try:
      target = folders.unused(folder, path.name)
      folders.move(path, target)
      logging.warning('Moved %s to %s.', path, target)
    except Exception as error:  # The type depends on the file system.
      failed = True
      logging.error(
        'Could not move %s to %s (%s): it stays, and is saved anew when the run'
        ' reaches its step.',
        *(path, folder, damage.one_line(error)),
      )
  # All processes wait here until the move is done.
  return collective.gather(int(failed))[0][0] == 0
