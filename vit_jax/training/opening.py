"""An open run: its directory, config and program, and what watches it."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.traverse_util
import jax
import ml_collections
from absl import logging
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data, evaluators, sharding
from vit_jax.config import inputs
from vit_jax.evaluators import predictions
from vit_jax.models import lora, position
from vit_jax.runtime import compilation, distributed, logs, preemption
from vit_jax.runtime import goodput as goodput_lib
from vit_jax.training import consistency, warm_start
from vit_jax.training import program as program_lib
from vit_jax.workdir import buckets, files, metrics, ownership, trackers

# Seconds for opening the data, compilation and the first step. The watchdog's
# limits are at least that long until the first step is done.
_START_LIMIT = 3600.0
# Seconds without progress after which all threads' stacks are logged.
_REPORT_AFTER = 600.0


@dataclasses.dataclass
class Run:
  """An open run, the owner of its work directory.

  Attributes:
    workdir: an absolute path.
    config: complete, see `config.complete`.
    source: the training data.
    view: the split to train on; None if nothing is trained.
    program: what the config computes.
    evaluations: the evaluators, by name.
    digests: digests of the data that the run reads, by use; see `data.digest`.
    goodput: measures where the time goes.
    notice: tells whether the run was asked to stop.
    watchdog: ends the run if it makes no progress.
    check_owner: raises if another run has taken the work directory.
    mark_started: is called after the first step or batch. Until then, the
      watchdog allows time for compilation, and a signal ends a single process
      at once.
  """

  workdir: epath.Path
  config: ml_collections.ConfigDict
  source: data.Source
  view: data.View | None
  program: program_lib.Program
  evaluations: Mapping[str, evaluators.Evaluator]
  digests: Mapping[str, Any]
  goodput: goodput_lib.Goodput
  notice: preemption.Notice
  watchdog: preemption.Watchdog
  check_owner: Callable[[], None]
  mark_started: Callable[[], None]

  @property
  def mesh(self) -> jax.sharding.Mesh:
    """The mesh of devices."""
    return self.program.layout.mesh

  def metric_writer(self, start_step: int) -> metrics.MetricWriter:
    """Opens the run's metrics, without the rows after `start_step`."""
    return metrics.MetricWriter(
      self.workdir,
      start_step=start_step,
      tensorboard=self.config.log.tensorboard,
      check=self.check_owner,
      tracked=(self.config.log.trackers, config_lib.to_json(self.config)),
    )

  def evaluate(self, name: str, params: Any, step: int) -> dict[str, float]:
    """Runs an evaluation; writes its predictions if they are to be saved.

    Args:
      name: of the evaluation.
      params: the parameters to evaluate.
      step: the number of their step.

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
    if config.evals[name].get('save_predictions', False):
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

  def load_weights(self, *, new_head: bool) -> Any:
    """Returns the parameters of `init.checkpoint`, on the devices.

    Low-rank additions are new.

    Args:
      new_head: whether to initialise a new head.

    Raises:
      ValueError: the weights do not fit the model.
    """
    config, program = self.config, self.program
    shapes = dict(program.shapes.params)
    additions = shapes.pop(lora.FOLDER, {})
    params, origin = warm_start.load(
      warm_start.resolve_path(config.init.checkpoint, self.workdir),
      shapes,
      program.init_params,
      program.layout,
      new_grid=position.grid_of(program.model, tuple(config.image_size)),
      new_head=new_head,
      model=program.model,
    )
    logging.info('%s', origin)
    if additions:
      names = flax.traverse_util.flatten_dict({lora.FOLDER: additions}, sep='/')
      params |= program.init_params(list(names))
    return params


# Completes a config: `(config, source, workdir) -> (config, view)`.
Complete = Callable[
  [ml_collections.ConfigDict, data.Source, epath.Path],
  tuple[ml_collections.ConfigDict, data.View | None],
]


@contextlib.contextmanager
def open_run(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  complete: Complete,
  *,
  compilation_cache: epath.PathLike | None = None,
  notice: preemption.Notice | None = None,
) -> Iterator[Run]:
  """Takes the work directory, completes the config, and builds the program.

  Of the directory's files it writes only the lock and the log.

  Args:
    config: see `config.default`; not changed.
    workdir: where the run's results go.
    complete: completes the config from the data, and opens the split to train
      on.
    compilation_cache: directory of compiled programs; None leaves JAX's own
      setting.
    notice: an open notice, shared by several runs; None opens a new one.

  Raises:
    ValueError: the config, data set or checkpoint is wrong, or differs between
      processes; or another run has the directory.
  """
  config_lib.validate(config)
  config = config.copy_and_resolve_references()
  if jax.process_index() == 0:
    trackers.check(config.log.trackers)
  workdir = files.absolute(workdir)
  buckets.patience = config.checkpoint.timeout
  if workdir.exists() and not workdir.is_dir():
    raise ValueError(f'--workdir={workdir} is a file, not a directory.')
  with contextlib.ExitStack() as stack:
    goodput = stack.enter_context(goodput_lib.Goodput())
    notice = notice or stack.enter_context(preemption.Notice())
    notice.begin()
    watchdog = stack.enter_context(
      preemption.Watchdog(_REPORT_AFTER, config.guard.exit_after)
    )
    starting = stack.enter_context(contextlib.ExitStack())
    starting.enter_context(watchdog.allow('start-up', _START_LIMIT))

    def mark_started():
      starting.close()
      notice.nothing_to_save = False

    stack.enter_context(files.disk_full_named(workdir))
    workdir.mkdir(parents=True, exist_ok=True)
    check_owner = stack.enter_context(ownership.held(workdir))
    consistency.check_shared(workdir)
    if jax.process_index() == 0:
      stack.enter_context(logs.log_file(workdir))
    if compilation_cache:
      compilation.keep(compilation_cache)

    source = inputs.open_source(config, config.data.dataset)
    # Only one process looks: another run may save new weights at this moment.
    config.init.checkpoint = distributed.broadcast(
      warm_start.pin(config.init.checkpoint, workdir)
      if jax.process_index() == 0
      else ''
    )
    config, view = complete(config, source, workdir)
    program = program_lib.Program(
      config,
      sharding.build(**config.mesh),
      multi_label=source.info.multi_label,
    )
    mesh = program.layout.mesh
    goodput.devices = mesh.size
    evaluations = evaluators.build(config, program.model, mesh, source)
    digests = {} if view is None else {'training data': data.digest(view)}
    digests |= evaluators.digests(evaluations)
    for use, digest in digests.items():
      if note := data.exclusion.note(digest):
        logging.info('%s: %s.', use, note)
    distributed.check_same(
      {
        'config': json.loads(config_lib.to_json(config)),
        'names of the classes': source.info.class_names,
        **digests,
      }
    )
    yield Run(
      workdir=workdir,
      config=config,
      source=source,
      view=view,
      program=program,
      evaluations=evaluations,
      digests=digests,
      goodput=goodput,
      notice=notice,
      watchdog=watchdog,
      check_owner=check_owner,
      mark_started=mark_started,
    )
