"""One run, top to bottom: build, restore, step, evaluate, save."""

import contextlib
import functools
import math
import time

import flax.traverse_util
import jax
import ml_collections
from absl import logging
from etils import epath
from jax.experimental import multihost_utils

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import (
  class_names,
  data,
  errors,
  evaluators,
  inputs,
  logs,
  losses,
  metrics,
  models,
  optim,
  overview,
  paths,
  preemption,
  profiling,
  sharding,
  warm_start,
)
from vit_jax import compilation_cache as compilation_cache_lib
from vit_jax import config as config_lib
from vit_jax import goodput as goodput_lib
from vit_jax import guard as guard_lib
from vit_jax import progress as progress_lib
from vit_jax import step as step_lib
from vit_jax import watchdog as watchdog_lib
from vit_jax.data import pipeline

DONE = 'DONE'


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  *,
  allow_config_change: bool = False,
  compilation_cache: epath.PathLike | None = None,
) -> dict[str, float]:
  """Trains to the end, resuming from `workdir` if it holds a checkpoint.

  Args:
    config: see `config.default`; not changed.
    workdir: where the run's results go; the README lists them.
    allow_config_change: whether `workdir` may hold a run of another config.
    compilation_cache: directory of compiled programs; None keeps none.

  Returns:
    The metrics of the last step, evaluations included.

  Raises:
    ValueError: a wrong config, data set or checkpoint, found before any
      training.
    NonFiniteError: the run diverged; the last good checkpoint is kept.
    SaveError: a checkpoint could not be written.
    PreemptedError: the run was asked to stop, and saved its state.
  """
  goodput = goodput_lib.Goodput()
  workdir = paths.absolute(workdir)
  if workdir.exists() and not workdir.is_dir():
    raise ValueError(f'--workdir={workdir} is a file, not a directory.')

  # ---- Data -----------------------------------------------------------------
  config_lib.validate(config)
  source = inputs.open_source(config, config.data.dataset)
  view = data.View(source, config.data.train_split)
  config = config_lib.resolve(
    config, num_examples=len(view), num_classes=source.info.num_classes
  )
  config.init.checkpoint = warm_start.pin(config.init.checkpoint, workdir)
  preprocess = inputs.parse_preprocess(config, config.data.preprocess)
  inputs.check_first_record(config, view, preprocess)

  # ---- Model, loss, optimizer, devices --------------------------------------
  model_config = config.model.to_dict()
  model = models.build(
    model_config.pop('name'), num_classes=config.num_classes, **model_config
  )
  loss = losses.build(**config.loss)
  schedule = optim.build_schedule(config.schedule, config.total_steps)
  optimizer = optim.build_optimizer(config.optimizer, schedule)
  params_key, dropout_key = step_lib.root_keys(config.seed, config.dropout_rng)
  layout = sharding.build(**config.mesh)
  mesh = layout.mesh
  batch_size = config.data.batch_size
  sharding.check_batch_size(
    'data.batch_size', batch_size, mesh, config.accumulation_steps
  )
  evaluations = evaluators.build(config, model, mesh, source)

  # ---- The state: what it will look like ------------------------------------
  def fresh_params():
    return step_lib.init_params(
      model, params_key, (*config.image_size, config.channels)
    )

  def first_state(params):
    return step_lib.init_state(
      params, optimizer, polyak=config.polyak.decay > 0
    )

  shapes = jax.eval_shape(lambda: first_state(fresh_params()))
  layout.check(shapes.params)
  abstract_state = jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding
    ),
    shapes,
    layout.state(shapes),
  )

  # ---- The work directory: is this its run, and is it finished? -------------
  if not allow_config_change:
    config_lib.check_same_run(config, workdir)
  newest = checkpoint_lib.latest_step(workdir) or 0
  if newest > config.total_steps:
    raise ValueError(
      f'{workdir} has a checkpoint of step {newest}, past'
      f' total_steps={config.total_steps}: raise it, or use another'
      ' --workdir.'
    )
  missing = _missing_evaluations(config, workdir)
  if _finished_at(workdir) == config.total_steps and not missing:
    logging.info('%s is finished: nothing to do.', workdir)
    return final_metrics(workdir)
  guard = guard_lib.Guard(
    workdir / checkpoint_lib.FOLDER,
    nonfinite=config.guard.nonfinite,
    max_skipped=config.guard.max_skipped,
  )

  # ---- Nothing was written so far; now the run begins, or goes on -----------
  # All processes have read what they needed of it before one writes.
  multihost_utils.sync_global_devices('before writing')
  first_process = jax.process_index() == 0
  workdir.mkdir(parents=True, exist_ok=True)
  if compilation_cache:
    compilation_cache_lib.enable(compilation_cache)
  with contextlib.ExitStack() as stack:
    stack.enter_context(goodput)
    if first_process:
      stack.enter_context(logs.log_file(workdir))
    notice = stack.enter_context(preemption.Notice())
    watchdog = stack.enter_context(
      watchdog_lib.Watchdog(config.guard.report_after, config.guard.exit_after)
    )

    # ---- The state: restored, from another run's weights, or fresh ----------
    restored = checkpoint_lib.restore_newest(workdir, abstract_state)
    start_step = 0
    if restored:
      state, start_step = restored
      logging.info('Resuming %s from step %d.', workdir, start_step)
    elif config.init.checkpoint:
      params, origin = warm_start.load(
        warm_start.resolve_path(config.init.checkpoint, workdir),
        shapes.params,
        new_grid=model.token_grid(tuple(config.image_size)),
        new_head=config.init.new_head,
        model=model,
        fresh=functools.partial(_fresh, fresh_params, layout),
      )
      logging.info('%s', origin)
      params = sharding.put_tree(params, layout.params(params))
      state = jax.jit(
        first_state, out_shardings=layout.state(shapes), donate_argnums=0
      )(params)
      del params
    else:
      logging.info('Fresh weights.')
      state = jax.jit(
        lambda: first_state(fresh_params()), out_shardings=layout.state(shapes)
      )()
    del restored
    watchdog.beat('start-up')

    kept_rows = [r for r in metrics.read(workdir) if r['step'] <= start_step]
    best = _best_value(config.checkpoint.best, kept_rows)
    goodput.go_on_from(goodput_lib.carried(kept_rows))
    checkpoints = checkpoint_lib.Checkpoints(
      workdir,
      keep=config.checkpoint.keep,
      keep_every=config.checkpoint.keep_every,
      best=config.checkpoint.best,
      timeout=config.checkpoint.timeout,
    )
    stack.callback(checkpoints.close)
    if first_process:
      # After the last step only evaluations are left, which may have changed:
      # their config is saved with their results, at the end.
      if start_step < config.total_steps:
        config_lib.save(config, workdir)
      (workdir / DONE).unlink(missing_ok=True)
      class_names.write(workdir, source.info.class_names)
    overview.write(workdir, config, view, layout, state)

    # ---- The compiled step, and the batches from step `start_step` on -------
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
    train_step = step_lib.jit_train_step(
      step_lib.make_train_step(
        model,
        optimizer,
        schedule,
        loss,
        dropout_key,
        accumulation_steps=config.accumulation_steps,
        polyak_decay=config.polyak.decay,
        polyak_start_step=config.polyak.start_step,
        skip_nonfinite=guard.skips,
        layout=layout,
      ),
      layout,
      shapes,
    )
    writer = metrics.MetricWriter(
      workdir,
      start_step=start_step,
      tensorboard=config.log.tensorboard,
    )
    stack.callback(writer.close)
    progress = progress_lib.Progress(start_step, config.total_steps, batch_size)
    interval = progress_lib.Interval(start_step)
    profiler = stack.enter_context(
      profiling.Profiler(workdir, **config.profile)
    )

    def evaluate(name, step):
      before = time.monotonic()
      values = dict(
        evaluations[name].run(state, lambda: watchdog.beat(f'batch of {name}'))
      )
      values['seconds'] = time.monotonic() - before
      values = {f'{name}/{key}': value for key, value in values.items()}
      writer.write(step, values | goodput.metrics())
      _log_evaluation(step, name, values)
      return values

    # ---- The loop -----------------------------------------------------------
    def waited(seconds):
      progress.wait(seconds)
      goodput.add('input', seconds)

    feed = sharding.feed(batches, mesh, config.total_steps - start_step, waited)
    goodput.start_training()
    for step, batch in enumerate(feed, start=start_step + 1):
      profiler.before(step, state)
      state, step_metrics = train_step(state, batch)
      interval.add(step_metrics)
      if step == start_step + 1:
        jax.block_until_ready(step_metrics)
        logging.info('First step done.')
        progress.reset(step)
      profiler.after(step, state)
      watchdog.beat(f'step {step}')

      last = step == config.total_steps
      stop = notice.requested(step) and not last
      due = [
        name
        for name in evaluations
        if last or (evaluators.is_due(config.evals[name], step) and not stop)
      ]
      save_now = last or stop or step % config.checkpoint.every == 0
      # A checkpoint also ends an interval, so that a resumed run logs the same
      # means; and what a non-finite loss leaves is neither evaluated nor saved.
      if due or save_now or step % config.log.every == 0:
        guard.check(
          interval.start_step, interval.fetch(), checkpoints.latest_step
        )
        checkpoints.check()
        values = interval.mean() | progress.measure(step)
        writer.write(step, values | goodput.metrics())
        progress_lib.log_line(step, config.total_steps, values)
        interval = progress_lib.Interval(step)
      before = time.monotonic()
      results = {}
      with goodput.phase('evaluation'):
        for name in due:
          results |= evaluate(name, step)
      with goodput.phase('checkpoint'):
        value = results.get(config.checkpoint.best)
        if value is not None and checkpoint_lib.is_better(
          config.checkpoint.best, value, best
        ):
          best, save_now = value, True
          checkpoint_lib.save_params(
            workdir,
            checkpoint_lib.BEST,
            step,
            state.eval_params,
            results,
            timeout=config.checkpoint.timeout,
          )
        if save_now:
          # After this step's numbers were written: what a checkpoint follows is
          # on disk, so that a resumed run lacks nothing.
          checkpoints.save(step, state, results)
          watchdog.beat(f'save of step {step}')
      progress.pause(time.monotonic() - before)
      if stop:
        checkpoints.wait()
        raise errors.PreemptedError(
          f'{notice.reason}: stopped after step {step}, which was saved. Start'
          ' the same command again to go on.'
        )

    if start_step == config.total_steps:
      # Trained before, but killed before the end, or asked for more since.
      for name in missing:
        evaluate(name, start_step)
    with goodput.phase('checkpoint'):
      checkpoints.wait()
      checkpoint_lib.save_params(
        workdir,
        checkpoint_lib.FINAL,
        config.total_steps,
        state.eval_params,
        timeout=config.checkpoint.timeout,
      )
    logging.info('Done: %s.', goodput.summary())

  # ---- The end: all is written ----------------------------------------------
  if first_process:
    config_lib.save(config, workdir)
    (workdir / DONE).write_text(f'{config.total_steps}\n')
  multihost_utils.sync_global_devices('done')
  return final_metrics(workdir)


def final_metrics(workdir: epath.PathLike) -> dict[str, float]:
  """All numbers of the last logged step of a run, evaluations included."""
  rows = metrics.read(workdir)
  result = {}
  for row in rows:
    if row['step'] == rows[-1]['step']:
      result |= row
  return result


def _missing_evaluations(config, workdir) -> list[str]:
  """The evaluations that have no result at the last step, as they are now."""
  final = final_metrics(workdir)
  saved = (config_lib.load(workdir) or {}).get('evals', {})
  return [
    name
    for name, section in config.evals.items()
    if final.get('step') != config.total_steps
    or f'{name}/accuracy' not in final
    or saved.get(name) != section.to_dict()
  ]


def _fresh(fresh_params, layout, names) -> dict[str, jax.Array]:
  """The first values of some parameters, without making the others."""

  def pick():
    flat = flax.traverse_util.flatten_dict(fresh_params(), sep='/')
    return {name: flat[name] for name in names}

  return jax.device_get(jax.jit(pick, out_shardings=layout.whole)())


def _best_value(metric: str, rows) -> float:
  """The best value among the rows; infinitely bad if there is none."""
  best = math.inf if metric.endswith('loss') else -math.inf
  for row in rows:
    if metric in row and checkpoint_lib.is_better(metric, row[metric], best):
      best = row[metric]
  return best


def _log_evaluation(step, name, values) -> None:
  """Prints an evaluation's line."""
  logging.info(
    'step %d  %s: accuracy %.2f%%, loss %.4f on %d examples (%s)',
    step,
    name,
    100 * values[f'{name}/accuracy'],
    values[f'{name}/loss'],
    values[f'{name}/count'],
    progress_lib.duration(values[f'{name}/seconds']),
  )


def _finished_at(workdir: epath.Path) -> int | None:
  """The step that the `DONE` file names; None if there is none."""
  path = workdir / DONE
  # Empty if the process died, or the disk was full, just then.
  text = path.read_text() if path.exists() else ''
  return int(text) if text else None
