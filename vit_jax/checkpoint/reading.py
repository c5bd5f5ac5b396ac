"""Restores the newest intact checkpoint, and reads parameters from any."""

import asyncio
import contextlib
import errno
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import flax.serialization
import flax.traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from vit_jax.checkpoint import folders, record
from vit_jax.checkpoint.record import DamagedError
from vit_jax.models import lora
from vit_jax.runtime import distributed, errors
from vit_jax.workdir import buckets, files

# What a process can find wrong with a checkpoint, the worst first -> the error
# that all processes raise.
_UNREADABLE = (
  'The checkpoint {path} cannot be read: {why}. It may be intact, so nothing'
  ' was moved and no earlier one is used. Make it readable (memory, rights,'
  ' network, disk) and start again, or name another.'
)
_FINDINGS = {
  'unanswered': (errors.StoreError, _UNREADABLE),
  'unreadable': (OSError, _UNREADABLE),
  'damaged': (DamagedError, 'The checkpoint {path} is damaged: {why}.'),
  'foreign': (
    ValueError,
    'The checkpoint {path} does not hold the state of this run. Its differences'
    " from the config's state:\n{why}\n"
    'Use another --workdir, or the config that wrote this one.',
  ),
}
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_SYSTEM = (OSError, MemoryError, jax.errors.JaxRuntimeError)
# The first word of TensorStore's messages, which come as ValueErrors.
_NO_ANSWER = re.compile(r'(UNAVAILABLE|DEADLINE_EXCEEDED)\b')
_REFUSED = re.compile(
  r'(RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE_EXCEEDED|PERMISSION_DENIED'
  r'|UNAUTHENTICATED|ABORTED|CANCELLED)\b'
)
# Client libraries of object stores; their errors have no common base class.
_CLIENTS = ('aiohttp', 'gcsfs', 'google', 'requests', 'urllib3', 'botocore')
# What the system says of a missing file, of a file of the wrong kind, and of
# bytes that cannot be decoded (EILSEQ).
_DAMAGE = {
  *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EILSEQ),
}
# Pauses in seconds before reading again, as a fault may be brief. A host may
# have cached that a file on a shared file system is missing.
_PAUSES = (0.5, 1.0, 4.0)


class _PatientLoop(asyncio.SelectorEventLoop):
  """An event loop that finishes all of its tasks before it closes.

  When one array cannot be read, Orbax closes its loop at once, and each of the
  other arrays would print tracebacks.
  """

  def close(self) -> None:
    if not self.is_closed() and (tasks := asyncio.all_tasks(self)):
      self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    super().close()


class _PatientLoops(asyncio.DefaultEventLoopPolicy):
  def new_event_loop(self) -> asyncio.AbstractEventLoop:
    return _PatientLoop()


class _ForeignError(ValueError):
  """A checkpoint holds the state of another model or optimizer."""


def restore_newest(
  workdir: epath.PathLike, abstract_state: Any
) -> tuple[Any, int] | None:
  """Restores a run's newest intact checkpoint.

  Retries for some seconds if a checkpoint cannot be read. Logs damaged ones as
  errors and, once an intact one is found, moves them to
  `WORKDIR/damaged_checkpoints/STEP`.

  All processes must call this; if one of them cannot read a checkpoint, none
  uses it. There is no time limit: if a file system or a process does not
  answer, the run's watchdog ends the run (`guard.exit_after`).

  Args:
    workdir: the run's directory.
    abstract_state: the state as `jax.ShapeDtypeStruct`s with shardings.

  Returns:
    The state, on the devices of its shardings, and its step. None if there are
    no checkpoints.

  Raises:
    ValueError: there are checkpoints, but none is intact (says what is wrong
      with each); or the newest intact one holds another model's or optimizer's
      state (lists arrays that are missing, extra or of another shape
      or dtype).
    OSError: a checkpoint cannot be read for lack of memory, of permission or of
      an answer, and may be intact, or a damaged one cannot be moved.
    StoreError: the same on an object store that does not answer.
  """
  workdir = files.absolute(workdir)
  folder = workdir / folders.FOLDER
  steps = [int(path.name) for path in folders.complete_steps(folder)]
  damaged = {}
  for step in reversed(distributed.broadcast(steps)):
    path = folder / str(step)
    try:
      state = restore(path, abstract_state)
    except DamagedError as error:
      logging.error('%s Falling back to the one before it.', error)
      damaged[path] = str(error)
      continue
    if damaged:
      logging.warning('Using %s, the newest intact checkpoint.', path)
    if jax.process_index() == 0:
      for path in damaged:
        moved = folders.move_aside(path, workdir / folders.DAMAGED)
        logging.warning('Moved %s to %s.', path, moved)
    distributed.barrier()  # The damaged ones are gone.
    return state, step
  if not damaged:
    return None
  raise ValueError(
    f'No checkpoint in {folder} is intact:\n  '
    + '\n  '.join(damaged.values())
    + f'\nMove {folder} away and pass --restart to begin anew, or use another'
    ' --workdir.'
  )


def restore(path: epath.Path, abstract_state: Any) -> Any:
  """Restores one checkpoint; all processes must call this.

  Args:
    path: the checkpoint, `.../STEP`.
    abstract_state: the state as `jax.ShapeDtypeStruct`s with shardings.

  Raises:
    DamagedError: on all processes, if any of them finds the checkpoint damaged;
      says what is wrong.
    ValueError: the checkpoint holds another model's or optimizer's state; lists
      arrays that are missing, extra or of another shape or dtype.
    OSError: on all processes, see `restore_newest`.
  """
  # All processes raise alike, so all of them try again or none does.
  for pause in _PAUSES:
    try:
      return _restore_once(path, abstract_state)
    except (DamagedError, OSError, errors.StoreError) as error:
      logging.warning('%s Trying again in %g s.', error, pause)
    time.sleep(pause)
  return _restore_once(path, abstract_state)


def _restore_once(path: epath.Path, abstract_state: Any) -> Any:
  target = flax.serialization.to_state_dict(abstract_state)

  def read():
    saved = record.read(path)
    if difference := saved.difference(target):
      raise _ForeignError(difference)
    args = ocp.checkpoint_utils.construct_restore_args(target)
    return saved, _read_arrays(path, target, args)

  saved, tree = _together(path, read)
  _together(path, lambda: saved.check(tree))
  return flax.serialization.from_state_dict(abstract_state, tree)


def _together(path: epath.Path, function: Callable[[], Any]) -> Any:
  """Returns a function's result, or raises the same error on all processes.

  If a process raised alone, the others would wait for it.
  """
  kind = why = ''
  result = None
  try:
    result = function()
  except Exception as error:
    kind, why = _finding(path, error)
  kinds, reasons = zip(*distributed.gather([kind, why]), strict=True)
  if any(kinds):
    first = {}
    for index, text in enumerate(reasons):
      first.setdefault(text, index)
    if len(first) > 1:
      first.pop('', None)
      why = '; '.join(f'process {i}: {text}' for text, i in first.items())
    kind = min(filter(None, kinds), key=[*_FINDINGS].index)
    if kind == 'foreign' and '' in kinds:
      kind = 'damaged'  # Only some processes see another state: a bad copy.
    raise _error(path, kind, why)
  return result


def _finding(path: epath.Path, error: Exception) -> tuple[str, str]:
  """Returns what an error says about a checkpoint, a key of `_FINDINGS`; why.

  Damaged files raise errors of many types. So an error counts as damage unless
  it is known to come from elsewhere: a lack of memory or permission, or a fault
  of the network or of a device.
  """
  if isinstance(error, _ForeignError):
    return 'foreign', str(error)
  if isinstance(error, DamagedError):
    return 'damaged', str(error)
  for cause in record.causes(error):
    if kind := _kind(path, cause):
      return kind, record.reason(error)
  return 'damaged', record.reason(error)


def _kind(path: epath.Path, cause: BaseException) -> str:
  """Returns what one error of a chain says; '' if it says nothing."""
  text = str(cause)
  if isinstance(cause, _MISSING):
    return 'damaged'
  no_answer = buckets.is_store(path) and _NO_ANSWER.match(text)
  if isinstance(cause, errors.StoreError) or no_answer:
    return 'unanswered'
  if number := record.system_number(cause):
    return '' if number in _DAMAGE else 'unreadable'
  from_client = type(cause).__module__.partition('.')[0] in _CLIENTS
  if isinstance(cause, _SYSTEM) or from_client or _REFUSED.match(text):
    return 'unreadable'
  return ''


def _error(path: epath.Path, kind: str, why: str) -> Exception:
  error, text = _FINDINGS[kind]
  return error(text.format(path=path, why=why))


def _read_arrays(
  path: epath.Path, item: Any, restore_args: Any, *, partial: bool = False
) -> Any:
  """Reads arrays without verifying them; damaged files raise any exception.

  Does not use Orbax's manager or a checkpointer: if one process raised, the
  others would wait for it at their barriers.
  """
  policy = asyncio.get_event_loop_policy()
  asyncio.set_event_loop_policy(_PatientLoops())
  try:
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
      return handler.restore(
        path / folders.STATE,
        args=ocp.args.PyTreeRestore(
          item=item, restore_args=restore_args, partial_restore=partial
        ),
      )
  finally:
    asyncio.set_event_loop_policy(policy)


def verify(path: epath.Path) -> None:
  """Reads all arrays of a checkpoint, and compares them with its record.

  Raises:
    DamagedError: arrays differ or cannot be read; names them.
  """
  try:
    saved = record.read(path)
    _read_named(path, saved, saved.arrays)
  except Exception as error:  # Damaged files raise errors of many types.
    raise _error(path, *_finding(path, error)) from error


def _read_named(
  path: epath.Path, saved: record.Record, names: Iterable[str]
) -> Any:
  """Reads arrays by their names, as NumPy arrays, and verifies them."""
  args = flax.traverse_util.unflatten_dict(
    dict.fromkeys(names, ocp.RestoreArgs(restore_type=np.ndarray)), sep='/'
  )
  tree = _read_arrays(path, args, args, partial=True)
  saved.check(tree, names)
  return tree


def read_params(path: epath.PathLike) -> tuple[Any, epath.Path]:
  """Reads a run's parameters; the averaged ones if the run kept an average.

  Low-rank additions are merged. Does not read the optimizer's state. Verifies
  the parameters against the saved digests. If `path` stands for several
  checkpoints and the newest is damaged, reads the one before it, with a
  warning.

  Args:
    path: see `find`.

  Returns:
    The parameters as a tree of NumPy arrays, and the checkpoint's path.

  Raises:
    ValueError: there is no checkpoint, it is damaged (names the arrays), or it
      holds no parameters.
    OSError: the files cannot be read: there is not enough memory, no
      permission, or the file system does not answer.
  """
  candidates = folders.candidates(path)
  reasons = []
  for candidate in reversed(candidates):
    try:
      return _read_params(candidate), candidate
    except DamagedError as error:
      if len(candidates) == 1:
        raise
      logging.warning('%s Reading the one before it.', error)
      reasons.append(str(error))
  raise DamagedError(
    f'No checkpoint in {candidates[0].parent} is intact:\n  '
    + '\n  '.join(reasons)
  )


def _read_params(path: epath.Path) -> Any:
  """Reads the parameters of one checkpoint, and verifies them."""
  try:
    saved = record.read(path)
    # Parameter -> what is read. The average has only those that train.
    wanted = {}
    for part in ('params', 'ema_params'):
      for name in saved.arrays:
        if name.startswith(f'{part}/'):
          wanted[name.removeprefix(f'{part}/')] = name
    if wanted:
      tree = _read_named(path, saved, wanted.values())
  except Exception as error:  # Damaged files raise errors of many types.
    raise _error(path, *_finding(path, error)) from error
  if not wanted:
    raise ValueError(
      f'{path} is not a checkpoint of a training run: it has no `params`,'
      f' only {sorted({name.partition("/")[0] for name in saved.arrays})}.'
    )
  flat = flax.traverse_util.flatten_dict(tree, sep='/')
  params = {parameter: flat[name] for parameter, name in wanted.items()}
  params = flax.traverse_util.unflatten_dict(params, sep='/')
  return lora.merged(params, np.matmul)
