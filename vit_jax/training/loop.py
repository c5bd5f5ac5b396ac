"""Training from end to end: open, restore, step, evaluate, save."""

import contextlib
import shlex
import time

import jax
import ml_collections
from absl import logging
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import results, sharding
from vit_jax.config import inputs
from vit_jax.data import pipeline
from vit_jax.evaluators import predictions
from vit_jax.runtime import distributed, preemption, profiling
from vit_jax.runtime import progress as progress_lib
from vit_jax.training import guard as guard_lib
from vit_jax.training import start_up
from vit_jax.training.program import Program
from vit_jax.training.run import complete_for_training, open_run
from vit_jax.training.tracker import Tracker
from vit_jax.workdir import metrics


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  *,
  allow_config_change: bool = False,
  restart: bool = False,
  compilation_cache: epath.PathLike | None = None,
  notice: preemption.Notice | None = None,
) -> dict[str, float]:
  """Trains to the end, resuming from `workdir` if it holds a checkpoint.

  With several processes, each calls this with the same arguments.

  Args:
    config: see `config.default`; not changed.
    workdir: where the run's results go; docs/train.md lists them.
    allow_config_change: whether `workdir` may hold a run of another config.
    restart: whether a run whose checkpoints are gone starts over.
    compilation_cache: directory of compiled programs; None leaves JAX's own
      setting.
    notice: an open notice, shared by several runs; None opens a new one.

  Returns:
    The metrics of the last step, evaluations included.

  Raises:
    ValueError: the config, data set or checkpoint is wrong. Training has not
      begun then, unless the error is in a single example.
    NonFiniteError: the run diverged; the last good checkpoint is kept.
    SaveError: a checkpoint could not be written.
    StoreError: the bucket of the work directory did not answer in time.
    PreemptedError: the run was asked to stop, and saved its state.
  """
  with contextlib.ExitStack() as stack:
    run = open_run(stack, config, workdir, complete_for_training, notice=notice)
    guard = guard_lib.Guard(
      run.workdir / checkpoint_lib.FOLDER,
      nonfinite=run.config.guard.nonfinite,
      max_skipped=run.config.guard.max_skipped,
    )
    found = start_up.look(
      run, allow_config_change=allow_config_change, restart=restart
    )
    if found.finished:
      return results.final_metrics(run.workdir)
    state, start = start_up.begin(
      stack,
      run,
      found,
      allow_config_change=allow_config_change,
      restart=restart,
      compilation_cache=compilation_cache,
    )
    config = run.config
    batch_size, total_steps = config.data.batch_size, config.total_steps
    writer = metrics.MetricWriter(
      run.workdir,
      start_step=start.step,
      tensorboard=config.log.tensorboard,
      upload_every=config.log.upload_every,
      check=run.check_owner,
      tracked=(config.log.trackers, config_lib.to_json(config)),
    )
    stack.callback(writer.close)
    rows = sharding.local_rows(run.mesh, batch_size)
    batches = pipeline.train_batches(
      run.view,
      inputs.parse_preprocess(config, config.data.preprocess, train=True),
      batch_size=batch_size,
      seed=config.seed,
      start_step=start.step,
      rows=rows,
      **inputs.reading(config),
    )
    stack.callback(batches.close)
    progress = progress_lib.Progress(start.step, total_steps, batch_size)
    interval = progress_lib.Interval(start.step)
    limits = progress_lib.Limits(batch_size)
    profiler = stack.enter_context(
      profiling.Profiler(run.workdir, **config.profile)
    )
    tracker = Tracker(run, start, writer)

    def on_wait(seconds):
      progress.wait(seconds)
      run.goodput.add('input', seconds)

    # ---- The loop -----------------------------------------------------------
    tracker.make_up_for(start.unevaluated, state, start.step)
    feed = sharding.feed(batches, run.mesh, total_steps - start.step, on_wait)
    program: Program = run.program
    if start.step < total_steps:
      with run.goodput.phase('compilation'):
        train_step = program.compiled_train_step.result()
    tracker.start_training()
    for step, batch in enumerate(feed, start=start.step + 1):
      profiler.before(step, state)
      dispatched = time.monotonic()
      state, step_metrics = train_step(state, batch)
      limits.time(dispatched, step_metrics)
      interval.add(step_metrics)
      if step == start.step + 1:
        logging.info('First step dispatched.')
        jax.block_until_ready(step_metrics)
        logging.info('First step done.')
        progress.reset(step)
        run.starting.close()
        run.notice.nothing_to_save = False
      profiler.after(step, state)
      run.watchdog.beat(f'step {step}')

      stop = run.notice.requested()
      due = [] if stop else tracker.due(step)
      log = step % config.log.every == 0
      save = stop or step == total_steps or step % config.checkpoint.every == 0
      if log:
        save |= tracker.is_long_unsaved()
      # A checkpoint ends an interval too, so that a resumed run logs the same
      # means. The guard comes first: it must stop a run that is not finite
      # before the state is evaluated or saved.
      if due or save or log:
        guard.check(
          interval.start_step, interval.fetch(), tracker.last_checkpoint
        )
        start.checkpoints.check()
        values = interval.mean() | progress.measure(step)
        writer.write(step, values | run.goodput.metrics())
        progress_lib.log_line(step, total_steps, values)
        if interval.start_step == start.step:
          limits.log(batches.images_per_sec() * batch_size / len(rows))
        interval = progress_lib.Interval(step)
      before = time.monotonic()
      stop = tracker.evaluate_and_save(state, step, due, save=save, stop=stop)
      progress.pause(time.monotonic() - before)
      if stop:
        raise tracker.preempted(step)

    # ---- The end ------------------------------------------------------------
    limits.log(batches.images_per_sec() * batch_size / len(rows))
    run.notice.nothing_to_save = False
    tracker.save_params(checkpoint_lib.FINAL, state, total_steps)
    logging.info('Done: %s.', run.goodput.summary())
    writer.close()
    if jax.process_index() == 0:
      config_lib.save(config, run.workdir)
      (run.workdir / results.DONE).write_text(f'{total_steps}\n')
      _tell_what_next(run.workdir, config)
    distributed.barrier()  # Everything is written.
    return results.final_metrics(run.workdir)


def _tell_what_next(
  workdir: epath.Path, config: ml_collections.ConfigDict
) -> None:
  """Logs the commands that use a finished run."""
  if config.loss.name == config_lib.MASKED_PATCH:
    return  # It has no classes; the next step is fine-tuning.
  command = ['python', '-m', 'vit_jax.predict', f'--checkpoint={workdir}']
  logging.info('Classify images: %s', shlex.join([*command, 'IMAGE...']))
  best = workdir / checkpoint_lib.BEST
  if best.is_dir():
    logging.info('The best step by %s: %s', config.checkpoint.best, best)
  if (workdir / predictions.FOLDER).is_dir():
    command = ['python', '-m', 'vit_jax.inspect', f'--mistakes={workdir}']
    logging.info(
      'Look at its mistakes: %s', shlex.join([*command, '--to=mistakes'])
    )
