"""Saves parameters alone, and reads parameters from any checkpoint."""

import contextlib
from collections.abc import Mapping
from typing import Any

import flax.serialization
import flax.traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from vit_jax.checkpoint import (
  collective,
  damage,
  folders,
  record,
  saving,
  stored_arrays,
)
from vit_jax.checkpoint.record import DamagedError
from vit_jax.models import lora
from vit_jax.runtime import errors
from vit_jax.workdir import files


def save_params(
  workdir: epath.PathLike,
  kind: str,
  step: int,
  params: Any,
  metrics: Mapping[str, Any] | None = None,
  *,
  timeout: float = 1800.0,
) -> epath.Path:
  """Saves parameters to `WORKDIR/KIND/STEP`, replacing the previous ones.

  The previous ones are deleted only when the new ones are complete. Returns
  when everything is written. All processes must call this; each writes its
  shards.

  Args:
    workdir: the run's directory.
    kind: 'best' or 'final'.
    step: the step of the parameters.
    params: the parameters to evaluate with, a tree of arrays; the averaged
      ones if the run averages.
    metrics: the metrics of this step, for `read_metrics`.
    timeout: the longest time to wait, in seconds.

  Returns:
    The checkpoint's path, for `read_params`.

  Raises:
    ValueError: `kind` is neither 'best' nor 'final'.
    SaveError: the parameters could not be written within the time limit.
  """
  if kind not in (folders.BEST, folders.FINAL):
    raise ValueError(
      f'kind={kind!r} must be {folders.BEST!r} or {folders.FINAL!r}.'
    )
  folder = files.absolute(workdir) / kind
  tree = {'params': flax.serialization.to_state_dict(params)}
  saved_as = record.build(tree, metrics)
  with _out_of_the_way(folder, step):
    saver = saving.Saver(folder, lambda steps: {steps[-1]}, timeout)
    try:
      saver.save(step, tree, saved_as)
    finally:
      saver.close()
  return folder / str(step)


@contextlib.contextmanager
def _out_of_the_way(folder: epath.Path, step: int):
  """Renames an existing checkpoint of `step` while a new one is saved."""
  path = folder / str(step)
  unanswered, problem = 0, ''
  if jax.process_index() == 0:
    try:
      _put_back(folder)
      if path.exists():
        folders.move(path, folder / f'{step}{folders.REPLACED}')
    except Exception as error:  # The type depends on the file system.
      problem = saving.cause(error)
      unanswered = int(damage.is_unanswered(path, error))
  # All processes raise alike: otherwise the others would wait for process 0.
  unanswered, problem = collective.gather(unanswered, problem)[0]
  if problem:
    kind = errors.StoreError if unanswered else errors.SaveError
    raise kind(f'{path} could not be replaced: {problem}.')
  try:
    yield
  finally:
    # The save has ended or raised already, so a failure here is only logged.
    if jax.process_index() == 0:
      try:
        _put_back(folder)
      except Exception as error:
        logging.warning(
          'Could not tidy up %s: %s.', folder, saving.cause(error)
        )


def _put_back(folder: epath.Path) -> None:
  """Cleans up after a save that has ended or was killed.

  A renamed checkpoint is deleted if its replacement is complete. Otherwise it
  gets its name back.
  """
  complete = {path.name for path in folders.complete_steps(folder)}
  for replaced in folders.replaced_steps(folder):
    path = folder / replaced.name.removesuffix(folders.REPLACED)
    if path.name in complete:
      replaced.rmtree()
      continue
    if path.exists():  # An incomplete move or save.
      path.rmtree()
    folders.move(replaced, path)


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
      return _read(candidate), candidate
    except DamagedError as error:
      if len(candidates) == 1:
        raise
      logging.warning('%s Reading the one before it.', error)
      reasons.append(str(error))
  raise DamagedError(
    f'No checkpoint in {candidates[0].parent} is intact:\n  '
    + '\n  '.join(reasons)
  )


def is_intact(path: epath.PathLike) -> bool:
  """Whether a path has intact parameters; logs the reason if not.

  Args:
    path: see `find`.

  Raises:
    OSError: the parameters cannot be read, and may be intact.
  """
  try:
    read_params(path)
  except ValueError as error:
    logging.warning('%s', error)
    return False
  return True


def _read(path: epath.Path) -> Any:
  """Reads the parameters of one checkpoint, and verifies them."""
  try:
    saved = record.read(path)
    tree = stored_arrays.read(path)
  except DamagedError as error:
    _check_reach(path, error)
    raise DamagedError(
      f'{path} is damaged, or not a checkpoint of this program: {error}.'
    ) from error
  except OSError as error:
    _check_reach(path, error)
    raise
  # The record has a checksum; Orbax's metadata may be damaged.
  arrays = stored_arrays.shapes(tree) if saved is None else saved.arrays
  parts: dict[str, set[str]] = {}
  for array in arrays:
    part, _, parameter = array.partition('/')
    parts.setdefault(part, set()).add(parameter)
  name = 'ema_params' if 'ema_params' in parts else 'params'
  if name not in parts:
    raise ValueError(
      f'{path} is not a checkpoint of a training run: it has no `params`,'
      f' only {sorted(parts)}.'
    )
  # The average has only the parameters that train.
  names = [name]
  if parts[name] < parts.get('params', set()):
    names = ['params', name]
  params = {}
  try:
    for name in names:
      part = _read_arrays(path, name, tree[name])
      if saved is not None:
        saved.check(part, name)
      params |= flax.traverse_util.flatten_dict(part, sep='/')
  except Exception as error:  # Damaged files raise errors of many types.
    _check_reach(path, error)
    raise DamagedError(
      f'{path} is damaged: {damage.one_line(error)}.'
    ) from error
  if saved is None:
    logging.warning(
      '%s was saved without fingerprints (by an earlier version, or another'
      ' program): its parameters could not be verified.',
      path,
    )
  params = flax.traverse_util.unflatten_dict(params, sep='/')
  return lora.merged(params, np.matmul)


def _check_reach(path: epath.Path, error: Exception) -> None:
  """Raises OSError or StoreError if an error is no evidence of damage."""
  if damage.is_unanswered(path, error):
    raise errors.StoreError(
      f'{path} cannot be read: {damage.one_line(error)}.'
    ) from error
  if damage.is_out_of_reach(error):
    raise OSError(
      f'{path} cannot be read: {damage.one_line(error)}. It may be intact. Make'
      ' it readable (memory, permissions, network, disk), or name another.'
    ) from error


def _read_arrays(path, name, metadata):
  item = {name: metadata}
  as_numpy = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item
  )
  return stored_arrays.read_arrays(path, item, as_numpy, partial=True)[name]
