"""Checkpoints that hold only parameters, and reading parameters out of all."""

import contextlib
from collections.abc import Mapping
from typing import Any

import flax.serialization
import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from vit_jax import errors, paths
from vit_jax.checkpoint import (
  agreement,
  layout,
  record,
  restoring,
  saving,
  structure,
)
from vit_jax.checkpoint.record import DamagedError

_REPLACED = '.replaced'


def save_params(
  workdir: epath.PathLike,
  kind: str,
  step: int,
  params: Any,
  metrics: Mapping[str, Any] | None = None,
  *,
  timeout: float = 1800.0,
) -> epath.Path:
  """Saves parameters to `WORKDIR/KIND/STEP`, in place of those before.

  Those go only when the new ones are complete. Returns when all is written.
  All processes must call this; each writes its shards.

  Args:
    workdir: the run's directory.
    kind: 'best' or 'final'.
    step: that the parameters are of.
    params: those to evaluate with, a tree of arrays: averaged ones if the run
      averages.
    metrics: of this step, for `read_metrics`.
    timeout: how many seconds to wait, at most.

  Returns:
    The checkpoint's path, for `read_params`.

  Raises:
    ValueError: `kind` is neither.
    SaveError: it could not be written, or not within the time.
  """
  if kind not in (layout.BEST, layout.FINAL):
    raise ValueError(
      f'kind={kind!r} must be {layout.BEST!r} or {layout.FINAL!r}.'
    )
  folder = paths.absolute(workdir) / kind
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
  """Renames a checkpoint of the same step while a new one is saved."""
  path = folder / str(step)
  replaced = folder / f'{step}{_REPLACED}'
  if jax.process_index() == 0 and path.exists():
    try:
      if replaced.exists():
        replaced.rmtree()
      path.rename(replaced)
    except OSError as error:
      raise errors.SaveError(
        f'{path} could not be replaced: {saving.cause(error)}.'
      ) from error
  agreement.gather(0)
  try:
    yield
  finally:
    if jax.process_index() == 0:
      if replaced.exists() and not path.exists():
        replaced.rename(path)
      for old in folder.glob(f'*{_REPLACED}'):
        old.rmtree()


def read_params(path: epath.PathLike) -> tuple[Any, epath.Path]:
  """Reads a run's parameters, averaged ones where the run kept an average.

  The optimizer's state is not read. What is read is compared with what was
  saved. Where `path` names no single checkpoint and the newest is damaged, the
  one before it is read, with a warning.

  Args:
    path: see `find`.

  Returns:
    The parameters as a tree of NumPy arrays, and the checkpoint's path.

  Raises:
    ValueError: no checkpoint, a damaged one (names the arrays), or one that
      holds no parameters.
  """
  candidates = layout.candidates(path)
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


def _read(path: epath.Path) -> Any:
  """Reads the parameters of one checkpoint, and verifies them."""
  try:
    saved = record.read(path)
    tree = structure.read(path)
  except DamagedError as error:
    raise DamagedError(
      f'{path} is damaged, or not a checkpoint of this program: {error}.'
    ) from error
  # Orbax's metadata may be damaged; the record has a checksum.
  arrays = structure.shapes(tree) if saved is None else saved.arrays
  parts = {name.partition('/')[0] for name in arrays}
  name = 'ema_params' if 'ema_params' in parts else 'params'
  if name not in parts:
    raise ValueError(
      f'{path} is not a checkpoint of a training run: it has no `params`,'
      f' only {sorted(parts)}.'
    )
  try:
    params = _read_arrays(path, name, tree[name])
    if saved is not None:
      saved.check(params, name)
  except Exception as error:  # Whatever damaged files lead to.
    raise DamagedError(
      f'{path} is damaged: {restoring.one_line(error)}.'
    ) from error
  if saved is None:
    logging.warning(
      '%s was saved without fingerprints (by an earlier version, or another'
      ' program): what was read could not be verified.',
      path,
    )
  return params


def _read_arrays(path, name, metadata):
  item = {name: metadata}
  as_numpy = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray), item
  )
  return structure.read_arrays(path, item, as_numpy, partial=True)[name]
