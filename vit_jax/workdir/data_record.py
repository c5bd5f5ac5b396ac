"""The record of the data that a run has read, `data.json` in its directory."""

from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from vit_jax.runtime import distributed
from vit_jax.workdir import files


def check_same(
  workdir: epath.Path,
  data: Mapping[str, Mapping[str, Any]],
  *,
  accept: bool = False,
  remedy: str = (
    'pass --allow_config_change to continue with the present data'
  ),
) -> None:
  """Raises ValueError if the data differs from what the run has read so far.

  Args:
    workdir: the work directory of the run.
    data: digests of the training and evaluation data, by name, see
      `data.digest`. The first is that of the training data, whose path may
      change. Each other digest is compared only if the run has evaluated on the
      same data spec and split before.
    accept: whether to log a warning instead of raising.
    remedy: what else to do than to restore the data, for the error.

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
    places = {k: before[k] for k in ('dataset', 'split') if k in before}
    if name == training or places.items() <= now.items():
      old[name], new[name] = before, now | places
  if not (found := distributed.differences(new, old, 'now', 'then')):
    return
  text = f'The data is not what the run in {workdir} has read so far:\n{found}.'
  if not accept:
    raise ValueError(f'{text}\nRestore the data, or {remedy}.')
  logging.warning('%s', text)


def write(workdir: epath.Path, data: Mapping[str, Mapping[str, Any]]) -> None:
  """Adds to the record that `check_same` reads."""
  path = workdir / files.DATA
  saved = files.read_object(path, 'delete it') if path.exists() else {}
  files.write_json(path, {**saved, **data})
