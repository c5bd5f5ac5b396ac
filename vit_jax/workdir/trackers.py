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


class Trackers(threading.Thread):
  """The trackers of a run, in their own thread; only process 0 makes one.

  A tracker that fails gets nothing more, with a warning.
  """

  def __init__(self, workdir: epath.PathLike, text: str, config: str):
    """Starts the thread, if there are trackers.

    Args:
      workdir: the run's work directory, which exists.
      text: see `parse`.
      config: the resolved config as JSON.
    """
    super().__init__(name='trackers', daemon=True)
    self._workdir, self._names = epath.Path(workdir), parse(text)
    self._config = traverse_util.flatten_dict(json.loads(config), sep='.')
    # Rows, and at the end what ended the run.
    self._rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
    if self._names:
      self.start()

  def add(self, step: int, values: Mapping[str, float]) -> None:
    """Sends a row, in the background."""
    self._rows.put((step, dict(values)))

  def close(self, error: BaseException | None) -> None:
    """Ends the trackers' runs; waits a while for what is not yet sent.

    Args:
      error: what ended the run; None if it was done.
    """
    self._rows.put(error)
    if self._names:
      patience = _PATIENCE if error is None else _PATIENCE_AFTER_ERROR
      self.join(patience)
      if self.is_alive():
        logging.warning(
          '%s did not take all metrics within %.0f s.',
          *(' and '.join(self._names), patience),
        )

  def run(self):
    path = self._workdir / FILE
    ids = {}
    with contextlib.suppress(FileNotFoundError, ValueError):
      ids = json_text.read(path)
    opened = {name: _KINDS[name] for name in self._names}

    def each(function):
      for name, tracker in list(opened.items()):
        try:
          opened[name] = function(name, tracker) or tracker
        except Exception as error:  # Each tracker has its own errors.
          del opened[name]
          logging.warning(
            '%s gets no more metrics of this run: %s: %s. All are in'
            ' %s/metrics.jsonl.',
            *(name, type(error).__name__, error, self._workdir),
          )

    each(lambda name, kind: kind(self._workdir, self._config, ids.get(name)))
    ids |= {name: tracker.id for name, tracker in opened.items()}
    each(lambda *_: files.write_shared(path, json.dumps(ids).encode()))
    while isinstance(row := self._rows.get(), tuple):
      each(lambda _, tracker, row=row: tracker.write(*row))
    each(lambda _, tracker: tracker.end(row))
