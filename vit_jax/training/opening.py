"""Opens a run: its directory, its data, its program and evaluators."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import ml_collections
from absl import logging
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data, evaluators, sharding
from vit_jax.config import inputs
from vit_jax.data import pipeline
from vit_jax.evaluators import predictions
from vit_jax.runtime import (
  distributed,
  installed,
  logs,
  preemption,
)
from vit_jax.runtime import goodput as goodput_lib
from vit_jax.training import program as program_lib
from vit_jax.training import warm_start
from vit_jax.training.step import TrainState
from vit_jax.workdir import buckets, files, metrics, ownership

# Seconds for opening the data, compilation and the first step. The watchdog's
# limit is at least that long until the first step is done.
_START_LIMIT = 3600.0


@dataclasses.dataclass
class Run:
  """A work directory that this run owns, what it computes, what watches it.

  Attributes:
    workdir: an absolute path.
    config: valid, with `init.checkpoint` and `distill.teacher` pinned, see
      `warm_start.pin`; complete after `build`.
    source: the training data.
    goodput: measures where the time goes.
    notice: tells whether the run was asked to stop.
    watchdog: ends the run if it makes no progress.
    check_owner: raises if another run has taken the work directory.
    mark_started: is called after the first step or batch. Until then, the
      watchdog allows time for compilation, and a signal ends a single process
      at once.
    view: the split to train on; None if nothing is trained. `build` sets this
      and the next three.
    program: what the config computes.
    evaluations: the evaluators, by name.
    digests: digests of the data that the run reads, by use; see `data.digest`.
  """

  workdir: epath.Path
  config: ml_collections.ConfigDict
  source: data.Source
  goodput: goodput_lib.Goodput
  notice: preemption.Notice
  watchdog: preemption.Watchdog
  check_owner: Callable[[], None]
  mark_started: Callable[[], None]
  view: data.View | None = None
  program: program_lib.Program | None = None
  evaluations: Mapping[str, evaluators.Evaluator] | None = None
  digests: Mapping[str, Any] | None = None

  def build(
    self, config: ml_collections.ConfigDict, view: data.View | None
  ) -> None:
    """Builds the program and the evaluators of a config.

    Args:
      config: complete.
      view: the split to train on; None if nothing is trained.

    Raises:
      ValueError: the config does not suit the model, the devices or the data;
        or it, or the data, differ between processes.
    """
    self.config, self.view, info = config, view, self.source.info
    self.program = program_lib.Program(
      config, sharding.build(**config.mesh), multi_label=info.multi_label
    )
    self.goodput.devices = self.mesh.size
    self.evaluations = evaluators.build(
      config, self.program.model, self.mesh, self.source
    )
    own = {} if view is None else {'training data': data.digest(view)}
    self.digests = own | evaluators.digests(self.evaluations)
    distributed.check_same(
      {
        'config': json.loads(config_lib.to_json(config)),
        'names of the classes': info.class_names,
        **self.digests,
      }
    )

  @property
  def mesh(self) -> jax.sharding.Mesh:
    """The mesh of devices."""
    return self.program.layout.mesh

  def first_state(self) -> TrainState:
    """Returns the state before the first step."""
    section = self.config.init
    if not section.checkpoint:
      logging.info('Fresh weights.')
      return self.program.init_state()
    path = warm_start.resolve_path(section.checkpoint, self.workdir)
    return self.program.init_state(
      warm_start.load(path, self.program, new_head=section.new_head)
    )

  @contextlib.contextmanager
  def feed(self, start_step: int, end: int) -> Iterator[Iterator[Any]]:
    """Yields an iterator of the global batches after a step, on the devices.

    Args:
      start_step: the batch of the next step is the first.
      end: the step of the last batch.
    """
    config = self.config
    batches = pipeline.train_batches(
      self.view,
      inputs.parse_preprocess(config, config.data.preprocess),
      batch_size=config.data.batch_size,
      seed=config.seed,
      start_step=start_step,
      repeats=config.data.repeats,
      rows=sharding.local_rows(self.mesh, config.data.batch_size),
      **inputs.reading(config),
    )
    with contextlib.closing(batches):
      on_wait = functools.partial(self.goodput.add, 'input')
      yield sharding.feed(batches, self.mesh, end - start_step, on_wait)

  def metric_writer(self, start_step: int) -> metrics.MetricWriter:
    """Opens the run's metrics, without the rows after `start_step`."""
    trackers = self.config.log.trackers
    return metrics.MetricWriter(
      self.workdir,
      start_step=start_step,
      tensorboard=self.config.log.tensorboard,
      check=self.check_owner,
      tracked=config_lib.flatten(self.config) if trackers else None,
    )

  def evaluate(
    self, name: str, params: Any, step: int, *, write: bool = True
  ) -> dict[str, float]:
    """Runs an evaluation; writes its predictions if they are to be saved.

    Args:
      name: of the evaluation.
      params: the parameters to evaluate.
      step: the number of their step.
      write: whether to write predictions.

    Returns:
      See `evaluators.run`.

    Raises:
      StopRequested: the run was asked to stop.
    """

    def on_batch():
      if self.view is None:  # Nothing is trained: no first step follows.
        self.mark_started()
      self.watchdog.beat('batch of an evaluation')
      if self.notice.requested():
        raise preemption.StopRequested

    config, evaluator = self.config, self.evaluations[name]
    values = evaluators.run(name, evaluator, params, step, on_batch)
    if write and config.evals[name].get('save_predictions', False):
      path = predictions.path(self.workdir, name)
      with self.watchdog.allow(f'write of {path}', config.checkpoint.timeout):
        if jax.process_index() == 0:
          self.check_owner()
          facts = {
            'evaluation': name,
            'step': step,
            'class_names': self.source.info.class_names,
            'loss': config.loss.name,
          }
          evaluator.save_predictions(path, facts)
          logging.info('Wrote the predictions of %s to %s.', name, path)
        distributed.barrier()  # The other processes wait in here.
    return values


@contextlib.contextmanager
def open_workdir(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  notice: preemption.Notice | None = None,
  *,
  writes: bool = True,
) -> Iterator[Run]:
  """Takes the work directory, and opens the training data.

  Of the directory's files it writes only the lock and the log.

  Args:
    config: see `config.default`; not changed.
    workdir: where the run's results go.
    notice: an open notice, shared by several runs; None opens a new one.
    writes: whether this writes. Otherwise another run may do so meanwhile.

  Raises:
    ValueError: the config, data set or checkpoint is wrong, another run has the
      directory, or not every process sees it.
  """
  config_lib.validate(config)
  config = config.copy_and_resolve_references()
  if writes and config.log.trackers and jax.process_index() == 0:
    installed.require('wandb', extra='wandb', what="log.trackers='wandb'")
  workdir = files.absolute(workdir)
  buckets.patience = config.checkpoint.timeout
  if workdir.exists() and not workdir.is_dir():
    raise ValueError(f'--workdir={workdir} is a file, not a directory.')
  with contextlib.ExitStack() as stack:
    goodput = stack.enter_context(goodput_lib.Goodput())
    notice = notice or stack.enter_context(preemption.Notice())
    notice.begin()
    watchdog = stack.enter_context(preemption.Watchdog(config.guard.exit_after))
    starting = stack.enter_context(contextlib.ExitStack())
    starting.enter_context(watchdog.allow('start-up', _START_LIMIT))

    def mark_started():
      starting.close()
      notice.nothing_to_save = False

    owned = contextlib.nullcontext(lambda: None)
    if writes:
      stack.enter_context(files.disk_full_named(workdir))
      workdir.mkdir(parents=True, exist_ok=True)
      owned = ownership.held(workdir)
    check_owner = stack.enter_context(owned)
    if writes and jax.process_index() == 0:
      stack.enter_context(logs.log_file(workdir))

    source = inputs.open_source(config, config.data.dataset)
    # Only one process looks: another run may save new weights at this moment.
    first = jax.process_index() == 0
    for key in ('init.checkpoint', 'distill.teacher'):
      given = config_lib.flatten(config)[key]
      pinned = warm_start.pin(given, workdir, key) if first else ''
      config.update_from_flattened_dict({key: distributed.broadcast(pinned)})
    yield Run(
      workdir=workdir,
      config=config,
      source=source,
      goodput=goodput,
      notice=notice,
      watchdog=watchdog,
      check_owner=check_owner,
      mark_started=mark_started,
    )
