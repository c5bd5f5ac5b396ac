"""Trains a model: open, resume, step, evaluate, save.

`train_and_evaluate` is the whole story; the functions below it are its parts,
in the order in which it calls them.
"""

import contextlib

import jax
import ml_collections
from absl import logging
from etils import epath

from vit_jax import certificate, data, results
from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.data import pipeline
from vit_jax.runtime import distributed, goodput, preemption
from vit_jax.training import recording, teacher, twice, warm_start
from vit_jax.training.opening import Run, open_workdir
from vit_jax.training.step import TrainState
from vit_jax.workdir import data_record, environment, files


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  *,
  allow_config_change: bool = False,
  restart: bool = False,
  notice: preemption.Notice | None = None,
) -> dict[str, float]:
  """Trains to the end, resuming from `workdir` if it holds a checkpoint.

  With several processes, each calls this with the same arguments.

  Args:
    config: see `config.default`; not changed.
    workdir: where the run's results go; docs/train.md lists them.
    allow_config_change: whether `workdir` may hold a run of another config.
    restart: whether a run whose checkpoints are gone starts over.
    notice: an open notice, shared by several runs; None opens a new one.

  Returns:
    The metrics of the last step, evaluations included.

  Raises:
    ValueError: the config, data set or checkpoint is wrong. Training has not
      begun then, unless the error is in a single example.
    NonFiniteError: the run diverged; the last good checkpoint is kept.
    CorruptionError: a device has computed wrongly, see `twice`.
    SaveError: a checkpoint could not be written.
    StoreError: the bucket of the work directory did not answer in time.
    PreemptedError: the run was asked to stop, and saved its state.
  """
  with contextlib.ExitStack() as stack:
    # ---- Open: the directory and the data; then the config, the program ------
    run = stack.enter_context(open_workdir(config, workdir, notice))
    config, view = _complete(run)
    # The program (`program.py`: model, optimizer, step) on the mesh of
    # `config.mesh`, and the evaluators.
    run.build(config, view)
    workdir, program = run.workdir, run.program
    # Makes the steps, some of them twice (`guard.replay_every`).
    steps = twice.Twice(program)
    batch_size, total_steps = config.data.batch_size, config.total_steps

    # ---- Resume --------------------------------------------------------------
    saved_step, missing_at_end = _how_far(run, allow_config_change)
    done = distributed.broadcast(results.finished_at(workdir) == total_steps)
    if done and not missing_at_end:
      logging.info('%s is finished: nothing to do.', workdir)
      return results.final_metrics(workdir)
    if not saved_step and jax.process_index() == 0:
      if restart:
        results.set_aside(workdir)
      else:
        results.check_not_lost(workdir)
    # A teacher's frozen parameters, if any, are a further argument of the step.
    frozen = teacher.load(run, saved_step, accept=allow_config_change)
    # The step compiles while the state is read. With weights to start from, it
    # compiles after them: a process whose weights are wrong could not end while
    # it compiles.
    compiling = None
    if saved_step < total_steps and (saved_step or not config.init.checkpoint):
      compiling = program.compile()
    # Without an intact checkpoint, `start_step` is 0, whatever `saved_step` is.
    state, start_step = checkpoint_lib.restore_newest(
      workdir, program.abstract_state
    ) or (run.first_state(), 0)
    if start_step:
      logging.info('Resuming %s from step %d.', workdir, start_step)
    recorder = stack.enter_context(recording.Recorder(run, state, start_step))
    _describe(run, state, start_step)

    feed = stack.enter_context(run.feed(start_step, total_steps))
    profiler = stack.enter_context(goodput.Profiler(workdir, **config.profile))
    progress = recording.Progress(total_steps, batch_size)
    interval = recording.Interval(start_step)

    # ---- The loop ------------------------------------------------------------
    # First the evaluations that earlier launches left out.
    left_out = recorder.left_out
    if start_step == total_steps:
      left_out = missing_at_end
    if left_out:
      # Until the first step, a signal ends a single process at once. From here
      # on it must wait, as the results are worth keeping.
      run.notice.nothing_to_save = False
    if recorder.evaluate(left_out, state, start_step):
      raise recorder.stopped(start_step)
    if start_step < total_steps:
      with run.goodput.phase('compilation'):
        # `train_step` of `program.py`, compiled ahead of time.
        train_step = (compiling or program.compile()).result()
    recorder.start_clocks()
    for step, batch in enumerate(feed, start=start_step + 1):
      profiler.before(step, state)
      state, step_metrics = steps.step(step, train_step, state, batch, *frozen)
      interval.add(step_metrics)
      if step == start_step + 1:
        logging.info('First step dispatched.')
        jax.block_until_ready(step_metrics)
        logging.info('First step done.')
        progress.start(step, run.goodput.seconds())
        run.mark_started()
      profiler.after(step, state)
      run.watchdog.beat(f'step {step}')

      stop = run.notice.requested()
      due = [] if stop else config_lib.due(config, step)
      log = step % config.log.every == 0
      save = stop or step == total_steps or recorder.is_due(step, log)
      # A checkpoint ends an interval too, so that a resumed run logs the same
      # means. The guards come first: they must stop a run that is wrong or not
      # finite before the state is evaluated or saved.
      if due or save or log:
        steps.check()
        recorder.check_finite(interval)
        values = interval.mean()
        values |= progress.measure(step, run.goodput.seconds())
        if save:
          values |= recorder.fingerprint(state, step)
        recorder.write(step, values)
        recording.log_line(step, total_steps, values)
        interval = recording.Interval(step)
      # The save comes first, because evaluations may fail, and after the
      # metrics, so that a resumed run lacks none of before its checkpoint.
      if save:
        recorder.save(state, step)
      stop |= recorder.evaluate(due, state, step)
      if stop:
        recorder.save(state, step)
        recorder.wait(step)
        raise recorder.stopped(step)

    # ---- The end -------------------------------------------------------------
    recorder.wait(total_steps)
    run.mark_started()  # Also if no step was left.
    params = program.eval_params(state.params, state.ema_params)
    recorder.save_params(checkpoint_lib.FINAL, params, total_steps)
    logging.info('Done: %s.', run.goodput.summary())
    recorder.close()
    if jax.process_index() == 0:
      config_lib.save(config, workdir)
      certificate.write(workdir)
      (workdir / results.DONE).write_text(f'{total_steps}\n')
    distributed.barrier()  # Everything is written.
    return results.final_metrics(workdir)


# Open ------------------------------------------------------------------------


def _complete(run: Run) -> tuple[ml_collections.ConfigDict, data.View]:
  """Returns the complete config, and the split to train on.

  The data give the number of classes, the length of an epoch and so of the run,
  the batch size and the schedule, as far as they are open.
  """
  # The model 'auto', and sizes that are open, are those of `init.checkpoint`.
  config = warm_start.with_model(run.config, run.workdir)
  config = teacher.with_model(config, run.workdir)
  config, view = config_lib.complete(config, run.source)
  preprocess = inputs.parse_preprocess(config, config.data.preprocess)
  pipeline.check_first_record(view, preprocess, **inputs.reading(config))
  return config, view


# Resume ----------------------------------------------------------------------


def _how_far(run: Run, allow_config_change: bool) -> tuple[int, list[str]]:
  """Finds out how far the run in the work directory is.

  Returns:
    The step of the newest checkpoint, 0 without one; and the evaluations
    without a result at the last step.

  Raises:
    ValueError: the work directory holds another run; or its run has read other
      data, or is past the last step.
  """
  workdir, config = run.workdir, run.config
  if not allow_config_change:
    config_lib.check_same_run(config, workdir)
  saved_step, missing = distributed.broadcast(
    (
      checkpoint_lib.latest_step(workdir) or 0,
      results.missing_evaluations(config, workdir),
    )
  )
  if saved_step > config.total_steps:
    raise ValueError(
      f'{workdir} has a checkpoint of step {saved_step}, past'
      f' total_steps={config.total_steps}: raise total_steps, or use another'
      ' --workdir.'
    )
  if saved_step:
    data_record.check_same(workdir, run.digests, accept=allow_config_change)
  return saved_step, missing


def _describe(run: Run, state: TrainState, step: int) -> None:
  """Logs model, data and devices, and writes the files that describe them."""
  config, view, workdir = run.config, run.view, run.workdir
  trained, frozen = run.program.tuning.split(state.params)
  sizes = [
    sum(x.size for x in jax.tree.leaves(part))
    for part in (state.params, trained)
  ]
  logging.info(
    '%s: %s parameters (all in parameters.txt)%s, images %dx%d, %s.',
    config.model.name,
    f'{sizes[0]:,}',
    f', {sizes[1]:,} of which train' if frozen else '',
    *config.image_size,
    config.model.dtype,
  )
  logging.info(
    '%s %s: %s images, %d classes; batch %d for %d steps (%.1f epochs) on %d'
    ' %s device(s) of %d process(es): %s.',
    config.data.dataset,
    view.split,
    f'{len(view):,}',
    config.num_classes,
    config.data.batch_size,
    config.total_steps,
    config.total_steps * config.data.batch_size / len(view),
    run.mesh.size,
    run.mesh.devices.flat[0].platform,
    jax.process_count(),
    run.program.layout,
  )
  if jax.process_index() != 0:
    return
  table = run.program.layout.describe(state)
  (workdir / 'parameters.txt').write_text(f'{table}\n')
  # After the last step only evaluations are left. Their config may have
  # changed, so it is saved at the end, with their results.
  if step < config.total_steps:
    config_lib.save(config, workdir)
  for name in (results.DONE, certificate.FILE):  # They are of finished runs.
    (workdir / name).unlink(missing_ok=True)
  data_record.write(workdir, run.digests)
  files.write_class_names(workdir, run.source.info.class_names)
  environment.write(workdir, step, run.mesh, config_lib.digest(config))
