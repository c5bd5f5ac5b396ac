"""One run, top to bottom: build, restore, step, evaluate, save."""

import contextlib
import json
import time

import jax
import ml_collections
from absl import logging
from etils import epath

from vit_jax import (
  agreement,
  buckets,
  class_names,
  data,
  distributed,
  environment,
  errors,
  evaluators,
  inputs,
  logs,
  metrics,
  overview,
  ownership,
  paths,
  preemption,
  profiling,
  results,
  sharding,
  small_files,
  warm_start,
)
from vit_jax import checkpoint as checkpoint_lib
from vit_jax import compilation_cache as compilation_cache_lib
from vit_jax import config as config_lib
from vit_jax import goodput as goodput_lib
from vit_jax import guard as guard_lib
from vit_jax import program as program_lib
from vit_jax import progress as progress_lib
from vit_jax import watchdog as watchdog_lib
from vit_jax.buckets import preflight
from vit_jax.data import pipeline

# Seconds for the data, compilation and the first step, whatever the limits.
_START_UP_LIMIT = 3600.0


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
    workdir: where the run's results go; the README lists them.
    allow_config_change: whether `workdir` may hold a run of another config.
    restart: whether a run whose checkpoints are gone begins anew.
    compilation_cache: directory of compiled programs; None leaves JAX's own
      setting.
    notice: an open one, if it is to last for several runs; None opens one.

  Returns:
    The metrics of the last step, evaluations included.

  Raises:
    ValueError: a wrong config, data set or checkpoint, found before any
      training.
    NonFiniteError: the run diverged; the last good checkpoint is kept.
    SaveError: a checkpoint could not be written.
    StoreError: the bucket of the work directory did not answer in time.
    PreemptedError: the run was asked to stop, and saved its state.
  """
  config_lib.validate(config)
  with contextlib.ExitStack() as stack:
    goodput = stack.enter_context(goodput_lib.Goodput())
    notice = notice or stack.enter_context(preemption.Notice())
    notice.begin()
    watchdog = stack.enter_context(
      watchdog_lib.Watchdog(config.guard.report_after, config.guard.exit_after)
    )
    start_up = stack.enter_context(contextlib.ExitStack())
    start_up.enter_context(watchdog.allow('start-up', _START_UP_LIMIT))
    workdir = paths.absolute(workdir)
    stack.enter_context(small_files.disk_full_named(workdir))
    buckets.patience = config.checkpoint.timeout
    preflight.check(workdir)
    if workdir.exists() and not workdir.is_dir():
      raise ValueError(f'--workdir={workdir} is a file, not a directory.')

    # ---- Data ---------------------------------------------------------------
    source = inputs.open_source(config, config.data.dataset)
    config = inputs.settle(config, source)
    inputs.check_classes(config, source)
    view = data.View(source, config.data.train_split)
    first_process = jax.process_index() == 0
    # Another run may be saving at this moment: one process looks.
    config.init.checkpoint = distributed.broadcast(
      warm_start.pin(config.init.checkpoint, workdir) if first_process else ''
    )
    config = warm_start.with_model(config, workdir)
    config = config_lib.resolve(
      config,
      num_examples=len(view),
      num_classes=source.info.num_classes,
      whole=view.selection.whole,
    )
    if first_process and config.data.batch_size > len(view):
      logging.warning(
        'data.batch_size=%d is more than the %d training examples, so a batch'
        ' has some of them several times. 0 chooses one by their number, from'
        ' 16 on.',
        *(config.data.batch_size, len(view)),
      )
    preprocess = inputs.parse_preprocess(config, config.data.preprocess)
    inputs.check_first_record(config, view, preprocess)

    # ---- Devices, model, loss, optimizer ------------------------------------
    layout = sharding.build(**config.mesh)
    program = program_lib.build(config, layout)
    mesh = layout.mesh
    goodput.devices = mesh.size
    batch_size = config.data.batch_size
    evaluations = evaluators.build(config, program.model, mesh, source)
    guard = guard_lib.Guard(
      workdir / checkpoint_lib.FOLDER,
      nonfinite=config.guard.nonfinite,
      max_skipped=config.guard.max_skipped,
    )
    digests = {'training data': data.digest(view)}
    digests |= evaluators.digests(evaluations)
    agreement.check_same(
      {
        'config': json.loads(config_lib.to_json(config)),
        'names of the classes': source.info.class_names,
        **digests,
      }
    )

    # ---- The work directory: is this its run, and is it finished? -----------
    if not allow_config_change:
      config_lib.check_same_run(config, workdir)
    newest, finished, missing = distributed.broadcast(
      (
        checkpoint_lib.latest_step(workdir) or 0,
        results.finished_at(workdir) == config.total_steps,
        results.missing_evaluations(config, workdir),
      )
    )
    if newest > config.total_steps:
      raise ValueError(
        f'{workdir} has a checkpoint of step {newest}, past'
        f' total_steps={config.total_steps}: raise it, or use another'
        ' --workdir.'
      )
    if finished and not missing:
      if distributed.broadcast(
        checkpoint_lib.is_intact(workdir / checkpoint_lib.FINAL)
        if first_process
        else False
      ):
        logging.info('%s is finished: nothing to do.', workdir)
        return results.final_metrics(workdir)
      logging.warning('The last weights are written again.')
    if newest:
      agreement.check_same_data(workdir, digests, accept=allow_config_change)
    if not newest and first_process and not restart:
      results.check_not_lost(workdir)

    # ---- Nothing was written so far; now the run begins, or goes on ---------
    # All processes have read what they needed of it before one writes.
    distributed.any_true(False)
    workdir.mkdir(parents=True, exist_ok=True)
    check_owner = stack.enter_context(ownership.held(workdir))
    agreement.check_shared(workdir)
    # Its owner until now may have begun the run, or saved, meanwhile.
    if not allow_config_change:
      config_lib.check_same_run(config, workdir)
    begun = distributed.broadcast(checkpoint_lib.latest_step(workdir) or 0)
    if begun and not newest:
      agreement.check_same_data(workdir, digests, accept=allow_config_change)
    if compilation_cache:
      compilation_cache_lib.enable(compilation_cache)
    if first_process:
      stack.enter_context(logs.log_file(workdir))
      if restart and not begun:
        results.set_aside(workdir)

    # ---- The state: restored, from another run's weights, or fresh ----------
    restored = checkpoint_lib.restore_newest(workdir, program.abstract_state)
    start_step = 0
    if restored:
      state, start_step = restored
      logging.info('Resuming %s from step %d.', workdir, start_step)
    elif config.init.checkpoint:
      params, origin = warm_start.load_sharded(
        warm_start.resolve_path(config.init.checkpoint, workdir),
        program.shapes.params,
        program.init_params,
        layout,
        new_grid=program.model.token_grid(tuple(config.image_size)),
        new_head=config.init.new_head,
        max_inflation=config.init.max_inflation,
        model=program.model,
      )
      logging.info('%s', origin)
      state = jax.jit(
        program.first_state,
        out_shardings=layout.state(program.shapes),
        donate_argnums=0,
      )(params)
      del params
    else:
      logging.info('Fresh weights.')
      state = program.init_state()
    del restored

    # ---- What was measured before, and what writes ---------------------------
    rows = [r for r in metrics.read(workdir) if r['step'] <= start_step]
    best, unevaluated = distributed.broadcast(
      (
        results.best_value(config.checkpoint.best, rows),
        results.unevaluated(config, rows, start_step),
      )
    )
    if start_step == config.total_steps:
      # Trained before, but killed before the end, or asked for more since.
      unevaluated = missing
    goodput.go_on_from(goodput_lib.carried(rows))
    checkpoints = checkpoint_lib.Checkpoints(
      workdir,
      keep=config.checkpoint.keep,
      keep_every=config.checkpoint.keep_every,
      best=config.checkpoint.best,
      timeout=config.checkpoint.timeout,
    )
    stack.callback(checkpoints.close)
    if start_step < config.total_steps:
      checkpoints.check_space(state)
    noted = {
      row['step']: row[config.checkpoint.best]
      for row in rows
      if config.checkpoint.best in row
    }
    # All processes keep the same checkpoints.
    for at, value in distributed.broadcast(list(noted.items())):
      checkpoints.note(at, {config.checkpoint.best: value})
    if first_process:
      # After the last step only evaluations are left, which may have changed:
      # their config is saved with their results, at the end.
      if start_step < config.total_steps:
        config_lib.save(config, workdir)
      (workdir / results.DONE).unlink(missing_ok=True)
      agreement.write_data(workdir, digests)
      class_names.write(workdir, source.info.class_names)
      environment.write(workdir, start_step, mesh)
      environment.write_requirements(workdir, start_step)
    overview.write(workdir, config, view, layout, state)
    writer = metrics.MetricWriter(
      workdir,
      start_step=start_step,
      tensorboard=config.log.tensorboard,
      upload_every=config.log.upload_every,
      check=check_owner,
    )
    stack.callback(writer.close)

    # ---- The batches from step `start_step` on -------
    batches = pipeline.train_batches(
      view,
      preprocess,
      batch_size=batch_size,
      seed=config.seed,
      start_step=start_step,
      rows=sharding.local_rows(mesh, batch_size),
      **inputs.reading(config, train=True),
    )
    stack.callback(batches.close)
    progress = progress_lib.Progress(start_step, config.total_steps, batch_size)
    interval = progress_lib.Interval(start_step)
    profiler = stack.enter_context(
      profiling.Profiler(workdir, **config.profile)
    )

    # ---- What the loop does beside training ---------------------------------
    def on_wait(seconds):
      progress.wait(seconds)
      goodput.add('input', seconds)

    def on_batch():
      watchdog.beat('batch of an evaluation')
      if notice.requested():
        raise preemption.StopRequested

    def evaluate(names, step, found):
      """Adds to `found`; returns whether it holds a new best value."""
      nonlocal best
      improved = False
      for name in names:
        with goodput.phase('evaluation'):
          values = evaluators.run(
            name, evaluations[name], state, step, on_batch
          )
        found |= values
        value = values.get(config.checkpoint.best)
        if value is not None and (
          best is None
          or checkpoint_lib.is_better(config.checkpoint.best, value, best)
        ):
          best, improved = value, True
          # Before its numbers, without which it is evaluated again.
          save_params(checkpoint_lib.BEST, step, values)
        writer.write(step, values | goodput.metrics())
      return improved

    def save_params(kind, step, values=None):
      timeout = config.checkpoint.timeout
      with goodput.phase('checkpoint'), watchdog.allow(kind, timeout):
        check_owner()
        checkpoint_lib.save_params(
          workdir, kind, step, state.eval_params, values, timeout=timeout
        )

    def last_checkpoint():
      """Its step; one that is being saved counts, once it is complete."""
      logging.warning('A step is not finite; waiting for what is being saved.')
      timeout = config.checkpoint.timeout
      with watchdog.allow('save before the end', timeout):
        try:
          checkpoints.wait()
        except errors.SaveError as error:
          logging.error('%s', error)
      return checkpoints.latest_step

    def save(step, found):
      with (
        goodput.phase('checkpoint'),
        watchdog.allow(f'save of step {step}', config.checkpoint.timeout),
      ):
        writer.flush()
        checkpoints.save(step, state, found)
      return time.monotonic()

    save_after = 60 * config.checkpoint.every_minutes

    def long_unsaved():
      # Clocks differ, and all processes save or none.
      return save_after > 0 and distributed.any_true(
        time.monotonic() - saved_at >= save_after
      )

    def preempted(step):
      return notice.stopped(
        f'stopped after step {step}, which was saved. Start the same command'
        f' again to go on. So far: {goodput.summary()}.'
      )

    # ---- The loop -----------------------------------------------------------
    try:
      # Those that a notice at the step of the last save left out, or new ones.
      found = {}
      # What they find is kept, evaluation by evaluation.
      notice.nothing_to_save &= not unevaluated
      evaluate(unevaluated, start_step, found)
      checkpoints.note(start_step, found)
    except preemption.StopRequested:
      raise preempted(start_step) from None
    feed = sharding.feed(
      batches, mesh, config.total_steps - start_step, on_wait
    )
    goodput.start_training()
    saved_at = time.monotonic()
    for step, batch in enumerate(feed, start=start_step + 1):
      profiler.before(step, state)
      state, step_metrics = program.train_step(state, batch)
      interval.add(step_metrics)
      if step == start_step + 1:
        logging.info('First step dispatched.')
        jax.block_until_ready(step_metrics)
        logging.info('First step done.')
        progress.reset(step)
        start_up.close()
        notice.nothing_to_save = False
      profiler.after(step, state)
      watchdog.beat(f'step {step}')

      last = step == config.total_steps
      stop = notice.requested()
      due = [
        name
        for name in evaluations
        if not stop and (last or evaluators.is_due(config.evals[name], step))
      ]
      save_now = last or stop or step % config.checkpoint.every == 0
      if step % config.log.every == 0:
        save_now |= long_unsaved()
      # A checkpoint also ends an interval, so that a resumed run logs the same
      # means; and what a non-finite loss leaves is neither evaluated nor saved.
      if due or save_now or step % config.log.every == 0:
        guard.check(interval.start_step, interval.fetch(), last_checkpoint)
        checkpoints.check()
        values = interval.mean() | progress.measure(step)
        writer.write(step, values | goodput.metrics())
        progress_lib.log_line(step, config.total_steps, values)
        interval = progress_lib.Interval(step)
      before, found, improved = time.monotonic(), {}, False
      if save_now:
        # After this step's numbers were written: what a checkpoint follows is
        # on disk, so that a resumed run lacks nothing. And before its
        # evaluation, which may fail where training did not; a resumed run makes
        # up for it.
        saved_at = save(step, found)
      try:
        improved = evaluate(due, step, found)
      except preemption.StopRequested:
        stop = True
      except errors.SaveError:
        raise
      except Exception:
        # The others may be well, and would not save with this one.
        if not save_now and jax.process_count() == 1:
          try:
            save(step, found)
          except (errors.SaveError, OSError, ValueError) as error:
            logging.error('%s', error)
        raise
      checkpoints.note(step, found)
      if not save_now and (improved or stop):
        saved_at = save(step, found)
      if stop or last:
        with (
          goodput.phase('checkpoint'),
          watchdog.allow(f'save of step {step}', config.checkpoint.timeout),
        ):
          checkpoints.wait()
      progress.pause(time.monotonic() - before)
      if stop:
        raise preempted(step)

    # ---- The end: all is written --------------------------------------------
    notice.nothing_to_save = False
    save_params(checkpoint_lib.FINAL, config.total_steps)
    logging.info('Done: %s.', goodput.summary())
    writer.close()
    if first_process:
      config_lib.save(config, workdir)
      (workdir / results.DONE).write_text(f'{config.total_steps}\n')
    distributed.any_true(False)  # The others may read it now.
    return results.final_metrics(workdir)
