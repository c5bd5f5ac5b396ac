"""Restoring the newest intact checkpoint onto devices."""

from typing import Any

import flax.serialization
import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from vit_jax import paths
from vit_jax.checkpoint import (
  agreement,
  fingerprint,
  layout,
  record,
  structure,
)
from vit_jax.checkpoint.record import DamagedError

# What a process says of what it read.
_VERIFIABLE, _UNVERIFIABLE, _DAMAGED, _FOREIGN = range(4)


def restore_newest(
  workdir: epath.PathLike, abstract_state: Any, *, set_aside: bool = True
) -> tuple[Any, int] | None:
  """Restores the newest checkpoint of a run that is intact.

  Damaged ones are logged as errors and, once an intact one was found, moved to
  `WORKDIR/damaged_checkpoints/STEP`, so that their steps can be saved again.
  All processes must call this; if one of them cannot read a checkpoint, none
  uses it.

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
  """
  workdir = paths.absolute(workdir)
  folder = workdir / layout.FOLDER
  steps = [int(path.name) for path in layout.complete_steps(folder)]
  reasons = {}
  for step in reversed(agreement.same_steps(steps)):
    path = folder / str(step)
    try:
      state = restore(path, abstract_state)
    except DamagedError as error:
      logging.error('%s Falling back to the one before it.', error)
      reasons[path] = str(error)
    else:
      if reasons:
        logging.warning('Using %s, the newest intact checkpoint.', path)
        if set_aside:
          _set_aside(list(reasons), workdir / layout.DAMAGED)
      return state, step
  if not reasons:
    return None
  raise ValueError(
    f'No checkpoint in {folder} is intact:\n  '
    + '\n  '.join(reasons.values())
    + f'\nMove {folder} away to start from the beginning, or use another'
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
  """
  target = flax.serialization.to_state_dict(abstract_state)
  tree = saved = None
  try:
    saved = record.read(path)
    finding = _VERIFIABLE if saved else _UNVERIFIABLE, ''
    if difference := _difference(path, target, saved):
      finding = _FOREIGN, difference
    else:
      tree = _read_arrays(path, _as_saved(target, saved))
  # Damaged files lead to errors of many kinds. A process that raised here would
  # leave the others waiting for it.
  except Exception as error:
    finding = _DAMAGED, one_line(error)
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
  except DamagedError as error:
    finding = _DAMAGED, str(error)
  _agree(path, *finding)
  tree = jax.tree.map(_cast, tree, target)
  return flax.serialization.from_state_dict(abstract_state, tree)


def _difference(path, target, saved: record.Record | None) -> str:
  """How a checkpoint differs from what the config builds; '' if it does not.

  The record has a checksum, so a difference from it is no damage. Without one,
  Orbax's metadata has to be believed.
  """
  expected = structure.shapes(target)
  if saved is None:
    return structure.mismatch(expected, structure.shapes(structure.read(path)))
  # Orbax would refuse other nodes without arrays, such as the states of an
  # optimizer's stateless parts.
  expected |= dict.fromkeys(record.empty_nodes(target), 'without arrays')
  found = {name: array.shape for name, array in saved.arrays.items()}
  found |= dict.fromkeys(saved.empty, 'without arrays')
  return structure.mismatch(expected, found)


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
  structure.read(path)  # Orbax would do without, but `read_params` could not.
  return structure.read_arrays(
    path, target, ocp.checkpoint_utils.construct_restore_args(target)
  )


def _agree(path: epath.Path, code: int, text: str) -> None:
  """Raises alike on all processes if one found something wrong."""
  found = agreement.gather(code, text)
  codes = {code for code, _ in found}
  if codes == {_FOREIGN}:
    raise ValueError(
      f'The checkpoint {path} does not hold the state of this run. Against what'
      f' the config builds:\n{text}\n'
      'Use another --workdir, or the config that wrote this one.'
    )
  if codes in ({_VERIFIABLE}, {_UNVERIFIABLE}):
    return
  reasons = {text: index for index, (_, text) in enumerate(found) if text}
  if len(found) > 1:
    reasons = [f'process {i}: {text}' for text, i in reasons.items()]
  raise DamagedError(
    f'The checkpoint {path} is damaged:'
    f' {"; ".join(reasons) or "processes see different files"}.'
  )


def one_line(error: BaseException) -> str:
  """An error as part of a message."""
  # Orbax wraps what TensorStore says.
  while not isinstance(error, DamagedError) and error.__cause__ is not None:
    error = error.__cause__
  text = (str(error).strip().splitlines() or [''])[0]
  if not isinstance(error, DamagedError):
    text = f'{type(error).__name__}: {text}'
  return text[:300].rstrip('.')


def _set_aside(damaged: list[epath.Path], folder: epath.Path) -> None:
  """Moves damaged checkpoints to a folder of their own."""
  if jax.process_index() == 0:
    for path in damaged:
      try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()}
        name, number = path.name, 2
        while name in names:
          name, number = f'{path.name}-{number}', number + 1
        path.rename(folder / name)
        logging.warning('Moved %s to %s.', path, folder / name)
      except Exception as error:  # Each kind of file system has its own.
        logging.error('Could not move %s to %s: %s', path, folder, error)
  agreement.gather(0)  # Until it is done, no process looks there again.
