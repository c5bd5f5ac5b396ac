"""Sends a run's metrics to experiment trackers: Weights & Biases, MLflow.

`metrics.jsonl` has all numbers; a tracker is a copy. So the run never waits for
a tracker, and a tracker that fails only causes a warning. Their own background
threads do not help at the start and the end, where a server that does not
answer takes minutes (MLflow tries again for 4 minutes and more).

Where a tracker sends to, and as whom, is set as its own manual says: with
WANDB_PROJECT, WANDB_MODE and so on, MLFLOW_TRACKING_URI and
MLFLOW_EXPERIMENT_NAME.
"""

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath
from flax import traverse_util

from vit_jax.runtime import errors, installed, json_text
from vit_jax.workdir import files

# Tracker -> the run's id there, with which a resumed run continues it.
FILE = 'trackers.json'
# The project and experiment, unless the environment names another.
_PROJECT = 'vit_jax'
# Seconds to wait at the end for what is not yet sent; few after an error,
# because the machine may be taken away soon.
_PATIENCE, _PATIENCE_AFTER_ERROR = 60.0, 10.0
_LOCK = threading.Lock()  # Held while `FILE` is written.


class _Wandb:
  """A run of Weights & Biases; without a login, in files for `wandb sync`."""

  def __init__(self, workdir: epath.Path, config: Mapping, old: str | None):
    import wandb

    mode = os.environ.get('WANDB_MODE')
    if mode is None and not wandb.login(prompt=False):
      mode = 'offline'
      logging.warning('wandb is not logged in: `wandb sync` sends the run.')
    local = '://' not in os.fspath(workdir)
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', _PROJECT),
      name=workdir.name,
      id=old,
      resume='allow' if old else None,
      config=dict(config),
      mode=mode,
      dir=os.environ.get('WANDB_DIR') or (str(workdir) if local else None),
      settings=wandb.Settings(console='off'),
    )
    self.id = self._run.id
    # wandb's own step may not fall, but a resumed run repeats steps.
    self._run.define_metric('*', step_metric='step')

  def write(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log({'step': step, **values})

  def end(self, error: BaseException | None) -> None:
    self._run.finish(exit_code=errors.code_of(error) if error else 0)


class _Mlflow:
  """A run of MLflow."""

  def __init__(self, workdir: epath.Path, config: Mapping, old: str | None):
    import mlflow

    self._mlflow = mlflow
    if not any(k.startswith('MLFLOW_EXPERIMENT_') for k in os.environ):
      mlflow.set_experiment(_PROJECT)
    run = mlflow.start_run(run_id=old, run_name=None if old else workdir.name)
    self.id = run.info.run_id
    if not old:  # MLflow refuses to change a parameter.
      mlflow.log_params(dict(config))

  def write(self, step: int, values: Mapping[str, float]) -> None:
    self._mlflow.log_metrics(dict(values), step=step)

  def end(self, error: BaseException | None) -> None:
    status = 'FINISHED' if error is None else 'FAILED'
    if isinstance(error, errors.RestartableError):
      status = 'KILLED'
    self._mlflow.end_run(status)


# The value of `log.trackers` -> the class.
_KINDS = {'wandb': _Wandb, 'mlflow': _Mlflow}


def parse(text: str) -> list[str]:
  """Returns the names in `log.trackers`, such as `wandb,mlflow`.

  Raises:
    ValueError: a name is unknown.
  """
  names = {name.strip() for name in text.split(',') if name.strip()}
  if unknown := sorted(names - set(_KINDS)):
    raise ValueError(
      f'log.trackers={text!r}: there is no tracker {unknown[0]!r}; name some of'
      f' {list(_KINDS)}, with commas between them.'
    )
  return sorted(names)


def check(text: str) -> None:
  """Checks that the trackers are installed; only process 0 needs that.

  Args:
    text: see `parse`.

  Raises:
    ValueError: a package is not installed.
  """
  for name in parse(text):
    installed.require(name, extra=name, what=f'log.trackers={text!r}')


class Trackers:
  """The trackers of a run; only process 0 makes one."""

  def __init__(self, workdir: epath.PathLike, text: str, config: str):
    """Starts a thread for each tracker.

    Args:
      workdir: the run's work directory, which exists.
      text: see `parse`.
      config: the complete config as JSON.
    """
    flat = traverse_util.flatten_dict(json.loads(config), sep='.')
    self._threads = [
      _Thread(name, epath.Path(workdir), flat) for name in parse(text)
    ]

  def add(self, step: int, values: Mapping[str, float]) -> None:
    """Sends a row, in the background."""
    for thread in self._threads:
      thread.rows.put((step, dict(values)))

  def close(self, error: BaseException | None) -> None:
    """Ends the trackers' runs; waits a while for what is not yet sent.

    Args:
      error: what ended the run; None if it was done.
    """
    patience = _PATIENCE if error is None else _PATIENCE_AFTER_ERROR
    end = time.monotonic() + patience
    for thread in self._threads:
      thread.rows.put(error)
    for thread in self._threads:
      thread.join(max(end - time.monotonic(), 0.0))
      if thread.is_alive():
        logging.warning(
          '%s did not take all metrics within %.0f s.', thread.name, patience
        )


class _Thread(threading.Thread):
  """Works for one tracker until it fails."""

  def __init__(self, name: str, workdir: epath.Path, config: Mapping):
    super().__init__(name=name, daemon=True)
    self._workdir, self._config = workdir, config
    # Rows, and at the end what ended the run.
    self.rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self.start()

  def run(self):
    path = self._workdir / FILE
    try:
      old = _ids(path).get(self.name)
      tracker = _KINDS[self.name](self._workdir, self._config, old)
      with _LOCK:
        ids = _ids(path) | {self.name: tracker.id}
        files.write_shared(path, json.dumps(ids).encode())
      while isinstance(row := self.rows.get(), tuple):
        tracker.write(*row)
      tracker.end(row)
    except Exception as error:  # Each tracker has its own errors.
      logging.warning(
        '%s gets no more metrics of this run: %s: %s. All are in'
        ' %s/metrics.jsonl.',
        *(self.name, type(error).__name__, error, self._workdir),
      )


def _ids(path: epath.Path) -> dict[str, str]:
  with contextlib.suppress(FileNotFoundError, ValueError):
    return json_text.read(path)
  return {}
