"""Sends a run's metrics to experiment trackers: Weights & Biases, MLflow.

`metrics.jsonl` has all numbers; a tracker is a copy. So the run never waits for
a tracker, and a tracker that fails only causes a warning. Each works in its own
thread. Where it sends to, and as whom, is set as its own manual says: with
WANDB_PROJECT, WANDB_MODE and so on, MLFLOW_TRACKING_URI and
MLFLOW_EXPERIMENT_NAME.
"""

import importlib.util
import json
import os
import queue
import threading
import time
from collections.abc import Mapping

from absl import logging
from etils import epath
from flax import traverse_util

from vit_jax.runtime import errors, json_text
from vit_jax.workdir import files

# Tracker -> the run's id there, with which a resumed run continues it.
FILE = 'trackers.json'
# The project and experiment, unless the environment names another.
_PROJECT = 'vit_jax'
# Seconds to wait at the end for what is not yet sent; few after an error,
# because the machine may be taken away soon.
_PATIENCE, _PATIENCE_AFTER_ERROR = 60.0, 10.0
# MLflow accepts this many parameters in one request.
_BATCH = 100
_LOCK = threading.Lock()  # Held while `FILE` is written.


class _Wandb:
  """A run of Weights & Biases; without a login, in files for `wandb sync`."""

  def __init__(self, workdir: epath.Path, config: Mapping, old: str | None):
    import wandb

    mode = os.environ.get('WANDB_MODE')
    if mode is None and not wandb.login(prompt=False):
      mode = 'offline'
      logging.warning(
        'wandb is not logged in: the run is in %s/wandb, from where `wandb'
        ' sync` sends it.',
        workdir,
      )
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
    code = getattr(error, 'exit_code', 1) if error else 0
    self._run.finish(exit_code=code)


class _Mlflow:
  """A run of MLflow."""

  def __init__(self, workdir: epath.Path, config: Mapping, old: str | None):
    import mlflow

    self._mlflow = mlflow
    self._client = client = mlflow.MlflowClient()
    if old:
      self.id = old
      client.update_run(old, status='RUNNING')
    else:
      name = os.environ.get('MLFLOW_EXPERIMENT_NAME', _PROJECT)
      experiment = os.environ.get('MLFLOW_EXPERIMENT_ID')
      if not experiment:
        found = client.get_experiment_by_name(name)
        experiment = (
          found.experiment_id if found else client.create_experiment(name)
        )
      self.id = client.create_run(experiment, run_name=workdir.name).info.run_id
    # MLflow refuses to change a parameter.
    known = client.get_run(self.id).data.params
    new = [
      mlflow.entities.Param(key, str(value))
      for key, value in config.items()
      if key not in known
    ]
    for start in range(0, len(new), _BATCH):
      client.log_batch(self.id, params=new[start : start + _BATCH])

  def write(self, step: int, values: Mapping[str, float]) -> None:
    now = int(1000 * time.time())
    self._client.log_batch(
      self.id,
      metrics=[
        self._mlflow.entities.Metric(key, value, now, step)
        for key, value in values.items()
      ],
    )

  def end(self, error: BaseException | None) -> None:
    status = 'FINISHED' if error is None else 'FAILED'
    if isinstance(error, errors.RestartableError):
      status = 'KILLED'
    self._client.set_terminated(self.id, status)


# The value of `log.trackers` -> the class, and what pip installs.
_KINDS = {'wandb': (_Wandb, 'wandb'), 'mlflow': (_Mlflow, 'mlflow-skinny')}


def parse(text: str) -> list[str]:
  """Returns the names in `log.trackers`, such as `wandb,mlflow`.

  Raises:
    ValueError: a name is unknown.
  """
  names = {name.strip() for name in text.split(',') if name.strip()}
  for name in sorted(names):
    if name not in _KINDS:
      raise ValueError(
        f'log.trackers={text!r}: there is no tracker {name!r}; name some of'
        f' {list(_KINDS)}, with commas between them.'
      )
  return sorted(names)


def check(text: str) -> None:
  """Checks that the trackers can start here; only process 0 needs that.

  Args:
    text: see `parse`.

  Raises:
    ValueError: a package is not installed, or MLflow has no place to send to.
  """
  names = parse(text)
  for name in names:
    if not _is_installed(name):
      raise ValueError(
        f'log.trackers={text!r} needs a package: pip install'
        f' "vit-paper-jax[{name}]" (or: pip install {_KINDS[name][1]}).'
      )
  # By default MLflow uses a database in the working directory.
  if (
    'mlflow' in names
    and not os.environ.get('MLFLOW_TRACKING_URI')
    and not _is_installed('sqlalchemy')
  ):
    raise ValueError(
      f'log.trackers={text!r}: where MLflow is to send metrics is not set. Set'
      ' MLFLOW_TRACKING_URI=http://HOST:PORT of its server, or pip install'
      ' mlflow for a database on this machine.'
    )


def _is_installed(package: str) -> bool:
  spec = importlib.util.find_spec(package)
  # A folder of that name, such as wandb's own, is no package: no origin.
  return spec is not None and spec.origin is not None


class Trackers:
  """The trackers of a run; only process 0 makes one."""

  def __init__(self, workdir: epath.PathLike, text: str, config: str):
    """Starts the trackers' threads.

    Args:
      workdir: the run's work directory, which exists.
      text: see `parse`.
      config: the resolved config as JSON.
    """
    flat = traverse_util.flatten_dict(json.loads(config), sep='.')
    self._threads = [
      _Thread(name, epath.Path(workdir), flat) for name in parse(text)
    ]

  def add(self, step: int, values: Mapping[str, float]) -> None:
    """Sends a row, in the background."""
    for thread in self._threads:
      if thread.is_alive():  # Otherwise it has failed, and said so.
        thread.rows.put((step, dict(values)))

  def close(self, error: BaseException | None) -> None:
    """Ends the tracker's runs; waits a while for what is not yet sent.

    Args:
      error: what ended the run; None if it was done.
    """
    for thread in self._threads:
      thread.error = error
      thread.rows.put(None)
    patience = _PATIENCE if error is None else _PATIENCE_AFTER_ERROR
    end = time.monotonic() + patience
    for thread in self._threads:
      thread.join(max(end - time.monotonic(), 0.0))
      if thread.is_alive():
        thread.is_given_up = True
        logging.warning(
          '%s did not take all metrics within %.0f s.', thread.name, patience
        )


class _Thread(threading.Thread):
  """Works for one tracker until it fails."""

  def __init__(self, name: str, workdir: epath.Path, config: Mapping):
    super().__init__(name=name, daemon=True)
    self._workdir, self._config = workdir, config
    self.rows: queue.SimpleQueue = queue.SimpleQueue()
    self.error: BaseException | None = None
    self.is_given_up = False  # Whether `close` has warned already.
    self.start()

  def run(self):
    try:
      old = _ids(self._workdir).get(self.name)
      tracker = _KINDS[self.name][0](self._workdir, self._config, old)
      if tracker.id != old:
        with _LOCK, files.atomic(self._workdir / FILE) as temporary:
          ids = _ids(self._workdir) | {self.name: tracker.id}
          temporary.write_text(json.dumps(ids) + '\n')
      while row := self.rows.get():
        tracker.write(*row)
      tracker.end(self.error)
    except Exception as error:  # Each tracker has its own errors.
      logging.log(
        logging.DEBUG if self.is_given_up else logging.WARNING,
        '%s gets no more metrics of this run: %s: %s. All are in'
        ' %s/metrics.jsonl.',
        *(self.name, type(error).__name__, error, self._workdir),
      )


def _ids(workdir: epath.Path) -> dict[str, str]:
  path = workdir / FILE
  return json_text.read(path) if path.exists() else {}
