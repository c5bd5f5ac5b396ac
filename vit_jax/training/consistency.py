"""Checks that all launches of a run agree on its data and directory."""

import contextlib
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import distributed, errors
from vit_jax.workdir import files

# Seconds within which all machines must see a file that one of them wrote.
# Network file systems remember for a while that a file does not exist.
_PATIENCE = 60.0


def check_same_data(
  workdir: epath.Path,
  data: Mapping[str, Mapping[str, Any]],
  *,
  accept: bool = False,
) -> None:
  """Raises ValueError if the data differs from what the run has read so far.

  Args:
    workdir: the work directory of the run.
    data: digests of the training and evaluation data, by name, see
      `data.digest`. The first is that of the training data, whose path may
      change. Each other digest is compared only if the run has evaluated on the
      same data spec and split before.
    accept: whether to log a warning instead of raising.

  Raises:
    ValueError: the data differs, and the message lists the differences; or the
      record of the data cannot be read.
  """
  path = workdir / files.DATA
  if not path.exists():  # Older versions wrote none.
    return
  saved = files.read_object(
    path, 'delete it to accept the present data as the data of the run'
  )
  training = next(iter(data))
  old, new = {}, {}
  for name in data:
    before, now = saved.get(name), dict(data[name])
    if not isinstance(before, dict):
      continue
    places = {key: before.get(key) for key in ('dataset', 'split')}
    if name == training or places.items() <= now.items():
      old[name], new[name] = before, now | places
  if not (found := distributed.differences(new, old, 'now', 'then')):
    return
  text = f'The data is not what the run in {workdir} has read so far:\n{found}.'
  if not accept:
    raise ValueError(
      f'{text}\nRestore the data, or pass --allow_config_change to continue'
      ' with the present data.'
    )
  logging.warning('%s', text)


def write_data(
  workdir: epath.Path, data: Mapping[str, Mapping[str, Any]]
) -> None:
  """Adds to the record that `check_same_data` reads."""
  path = workdir / files.DATA
  saved = files.read_object(path, 'delete it') if path.exists() else {}
  with files.atomic(path) as temporary:
    temporary.write_text(json.dumps(_merged(saved, data), indent=1) + '\n')


def _merged(old: Any, new: Any) -> Any:
  """Returns the new values, with old ones where a new one is unknown."""
  if isinstance(old, Mapping) and isinstance(new, Mapping):
    # Values that describe other examples are dropped.
    where = ('dataset', 'split', 'examples')
    if any(old.get(key) != new.get(key) for key in where):
      return new
    return {**old, **{k: _merged(old.get(k), v) for k, v in new.items()}}
  return old if new == errors.UNKNOWN and old is not None else new


def check_shared(workdir: epath.Path, patience: float = _PATIENCE) -> None:
  """Raises ValueError unless all processes see the same work directory.

  Args:
    workdir: exists on the host of process 0.
    patience: seconds to wait for process 0's file.
  """
  if jax.process_count() == 1:
    return
  path = workdir / '.shared_by_all_hosts'
  token = distributed.broadcast(secrets.token_hex(8))
  if jax.process_index() == 0:
    path.write_text(token)
  distributed.barrier()  # The file is written.
  end = time.monotonic() + patience
  while not (seen := _holds(path, token)) and time.monotonic() < end:
    time.sleep(0.2)
  unseen = distributed.any_true(not seen)
  if jax.process_index() == 0:
    path.unlink()
  if unseen:
    raise ValueError(
      f'Not every process sees what process 0 writes to --workdir={workdir}: it'
      ' must be on storage that all hosts share, such as gs://BUCKET/PATH or a'
      ' network file system.'
    )


def _holds(path: epath.Path, text: str) -> bool:
  with contextlib.suppress(OSError):  # It may still appear.
    return path.read_text() == text
  return False
