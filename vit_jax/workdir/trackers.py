"""Sends a run's metrics to Weights & Biases, too: `log.trackers='wandb'`.

`metrics.jsonl` has all numbers; this is a copy, which a process of wandb's own
sends. So a server that does not answer delays only the start and the end of a
run, and whatever fails here only causes a warning. Only if that process itself
hangs does the run wait for it, so WANDB_DIR should be on a local disk.

Where wandb sends to, and as whom, is set as its manual says: with
WANDB_PROJECT, WANDB_MODE and so on.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets, files

# 'wandb' -> the run's id there, with which a resumed run continues it.
FILE = 'trackers.json'
# The project, unless the environment names another.
_PROJECT = 'vit_jax'
# Seconds to wait for the server at the start, and at the end for what is not
# yet sent. Few, because a machine may be taken away soon.
_PATIENCE = 30.0


class Tracker:
  """A run of Weights & Biases; only process 0 makes one."""

  def __init__(self, workdir: epath.PathLike, config: Mapping[str, Any]):
    """Starts the run there, or continues it.

    Args:
      workdir: the run's work directory, which exists.
      config: the complete config, flat.
    """
    self._workdir, self._run = epath.Path(workdir), None
    with self._only_warns():
      self._run = _begin(self._workdir, config)

  def log(self, step: int, values: Mapping[str, float]) -> None:
    """Sends a row, in the background."""
    with self._only_warns():
      if self._run:
        self._run.log({'step': step, **values})

  def finish(self, error: BaseException | None) -> None:
    """Ends the run there; waits a while for what is not yet sent.

    Args:
      error: what ended the run; None if it was done.
    """
    with self._only_warns():
      if self._run:
        self._run.finish(exit_code=errors.code_of(error) if error else 0)

  @contextlib.contextmanager
  def _only_warns(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:  # wandb has many.
      self._run = None
      logging.warning(
        'wandb gets no more metrics of this run: %s: %s. All are in'
        ' %s/metrics.jsonl.',
        *(type(error).__name__, error, self._workdir),
      )


def _begin(workdir: epath.Path, config: Mapping[str, Any]) -> Any:
  """Returns wandb's run; without a login, in files for `wandb sync`."""
  import wandb

  ids = json.loads(files.content(workdir / FILE) or '{}')
  old, mode = ids.get('wandb'), os.environ.get('WANDB_MODE')
  if mode is None and not wandb.login(prompt=False, verify=False):
    mode = 'offline'
    logging.warning('wandb is not logged in: `wandb sync` sends the run.')
  folder = None if buckets.is_store(workdir) else str(workdir)
  run = wandb.init(
    project=os.environ.get('WANDB_PROJECT', _PROJECT),
    name=workdir.name,
    id=old,
    resume='allow' if old else None,
    config=dict(config),
    mode=mode,
    dir=os.environ.get('WANDB_DIR') or folder,
    settings=wandb.Settings(
      console='off',
      init_timeout=_PATIENCE,
      finish_timeout=_PATIENCE,
      # Not an earlier run of this process that could not end.
      reinit='create_new',
    ),
  )
  # wandb's own step may not fall, but a resumed run repeats steps.
  run.define_metric('*', step_metric='step')
  files.write_json(workdir / FILE, ids | {'wandb': run.id}, indent=None)
  return run
