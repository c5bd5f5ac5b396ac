"""Restoring the newest intact checkpoint onto devices."""

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

# What a process says of what it read.
_VERIFIABLE, _UNVERIFIABLE, _DAMAGED, _FOREIGN, _OUT_OF_REACH, _UNANSWERED = (
  range(6)
)

# Seconds before trying again. A hiccup passes, and so does a cache of what was
# not there a moment ago: the longer pauses are for file systems of several.
_PAUSES = (0.5, 1.0)
_SHARED_PAUSES = (1.0, 4.0, 10.0)


class _OnlySomeError(DamagedError):
  """The first process sees nothing wrong, others do."""


class _OutOfReachError(OSError):
  """Nothing is known of a checkpoint's files."""


def restore_newest(
  workdir: epath.PathLike, abstract_state: Any, *, set_aside: bool = True
) -> tuple[Any, int] | None:
  """Restores the newest checkpoint of a run that is intact.

  What cannot be read is tried again for some seconds. Damaged ones are logged
  as errors and, once an intact one was found, moved to
  `WORKDIR/damaged_checkpoints/STEP`. Those that stay (they could not be moved,
  or process 0 sees nothing wrong) count as absent in this process:
  `Checkpoints` neither names nor keeps to them, and saves their steps anew.

  All processes must call this; if one of them cannot read a checkpoint, none
  uses it. There is no time limit: a file system, or a process, that does not
  answer is for the run's watchdog to end (`guard.exit_after`).

  Args:
    workdir: the run's directory.
    abstract_state: the state as `jax.ShapeDtypeStruct`s with shardings.
    set_aside: False only reads, and leaves the damaged ones where they are.

  Returns:
    The state, on the devices the shardings name, and its step. None if there
    are no checkpoints.

  Raises:
    ValueError: there are checkpoints, but none is intact (says what is wrong
      with each); or the newest intact one holds another model's or optimizer's
      state (lists missing, extra and misshapen arrays).
    OSError: one cannot be read for want of memory, permission or an answer,
      which says nothing about what it holds. Nothing was moved.
    StoreError: the same, of an object store that does not answer.
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
      # Without the traceback, which would keep what was read on the devices.
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
    path: of the checkpoint, `.../STEP`.
    abstract_state: the state as `jax.ShapeDtypeStruct`s with shardings. Arrays
      that were saved in another dtype are converted.

  Raises:
    DamagedError: on all processes, if any of them cannot read it, or if it is
      not what was saved; says what is wrong.
    ValueError: it holds another model's or optimizer's state; lists the
      missing, extra and misshapen arrays.
    OSError: on all processes, see `restore_newest`.
  """
  shared = jax.process_count() > 1 or '://' in str(path)
  # All decide alike to try again, for all raise alike.
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
  # A process that raised here would leave the others waiting for it.
  except Exception as error:
    finding = _finding(path, error)
  _agree(path, *finding)
  if saved is None:
    logging.warning(
      '%s was saved without fingerprints (by an earlier version, or another'
      ' program): what was restored could not be verified.',
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
  """How a checkpoint differs from what the config builds; '' if it does not.

  The record has a checksum, so a difference from it is no damage. Without one,
  Orbax's metadata has to be believed.
  """
  expected = stored_arrays.shapes(target)
  if saved is None:
    return stored_arrays.mismatch(
      expected, stored_arrays.shapes(stored_arrays.read(path))
    )
  # Orbax would refuse other nodes without arrays, such as the states of an
  # optimizer's stateless parts.
  expected |= dict.fromkeys(record.empty_nodes(target), 'without arrays')
  found = {name: array.shape for name, array in saved.arrays.items()}
  found |= dict.fromkeys(saved.empty, 'without arrays')
  return stored_arrays.mismatch(expected, found)


def _as_saved(target, saved: record.Record | None):
  """The target with the dtypes that were saved, which the digests are of."""
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
  stored_arrays.read(
    path
  )  # Orbax would do without, but `read_params` could not.
  return stored_arrays.read_arrays(
    path, target, ocp.checkpoint_utils.construct_restore_args(target)
  )


def _agree(path: epath.Path, code: int, text: str) -> None:
  """Raises alike on all processes if one found something wrong."""
  found = collective.gather(code, text)
  codes = {code for code, _ in found}
  if codes == {_FOREIGN}:
    raise ValueError(
      f'The checkpoint {path} does not hold the state of this run. Against what'
      f' the config builds:\n{text}\n'
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
      ' nothing was moved and none before it is used. Make it readable (memory,'
      ' permissions, network, disk) and start again, or move it away to go on'
      ' from the one before it.'
    )
  kind = DamagedError if found[0][0] == _DAMAGED else _OnlySomeError
  raise kind(f'The checkpoint {path} is damaged: {why}.')


def _moved_aside(path: epath.Path, folder: epath.Path) -> bool:
  """Moves a damaged checkpoint to a folder; whether that worked, for all."""
  failed = False
  if jax.process_index() == 0:
    try:
      target = folders.unused(folder, path.name)
      folders.move(path, target)
      logging.warning('Moved %s to %s.', path, target)
    except Exception as error:  # Each kind of file system has its own.
      failed = True
      logging.error(
        'Could not move %s to %s (%s): it stays, and is saved anew when the run'
        ' comes to its step.',
        *(path, folder, damage.one_line(error)),
      )
  # Until it is done, no process looks there again.
  return collective.gather(int(failed))[0][0] == 0
