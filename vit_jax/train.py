"""One run, top to bottom: build, restore, step, evaluate, save."""

import contextlib
import time

import jax
import ml_collections
from absl import logging
from clu import parameter_overview
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import (
  class_names,
  data,
  evaluators,
  inputs,
  logs,
  losses,
  metrics,
  models,
  optim,
  paths,
  profiling,
  sharding,
  warm_start,
)
from vit_jax import config as config_lib
from vit_jax import progress as progress_lib
from vit_jax import step as step_lib
from vit_jax.data import pipeline

DONE = 'DONE'


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: epath.PathLike,
  *,
  allow_config_change: bool = False,
) -> dict[str, float]:
  """Trains to the end, resuming from `workdir` if it holds a checkpoint.

  Args:
    config: see `config.default`; not changed.
    workdir: where the run's results go; the README lists them.
    allow_config_change: whether `workdir` may hold a run of another config.

  Returns:
    The metrics of the last step, evaluations included.

  Raises:
    ValueError: a wrong config, data set or checkpoint, found before any
      training.
    NonFiniteError: the run diverged; the last good checkpoint is kept.
  """
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
  mesh = sharding.make_mesh(**config.mesh)
  batch_size = config.data.batch_size
  sharding.check_batch_size(
    'data.batch_size', batch_size, mesh, config.accumulation_steps
  )
  evaluations = evaluators.build(config, model, mesh, source)

  # ---- The work directory: is this its run, and is it finished? -------------
  if not allow_config_change:
    config_lib.check_same_run(config, workdir)
  start_step = checkpoint_lib.latest_step(workdir) or 0
  if start_step > config.total_steps:
    raise ValueError(
      f'{workdir} has a checkpoint of step {start_step}, past'
      f' total_steps={config.total_steps}: raise it, or use another'
      ' --workdir.'
    )
  missing = _missing_evaluations(config, workdir)
  if _finished_at(workdir) == config.total_steps and not missing:
    logging.info('%s is finished: nothing to do.', workdir)
    return final_metrics(workdir)

  # ---- State: fresh, or from another run's weights --------------------------
  everywhere = sharding.replicated(mesh)

  def fresh_params():
    return step_lib.init_params(
      model, params_key, (*config.image_size, config.channels)
    )

  def first_state(params):
    return step_lib.init_state(
      params, optimizer, polyak=config.polyak.decay > 0
    )

  abstract_state = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere),
    jax.eval_shape(lambda: first_state(fresh_params())),
  )
  origin = 'Fresh weights.'
  if start_step:
    state = None  # Restored below.
    origin = f'Resuming {workdir} from step {start_step}.'
  elif config.init.checkpoint:
    params, origin = warm_start.load(
      warm_start.resolve_path(config.init.checkpoint, workdir),
      jax.jit(fresh_params)(),
      new_grid=model.token_grid(tuple(config.image_size)),
      new_head=config.init.new_head,
      model=model,
    )
    state = jax.jit(first_state, out_shardings=everywhere)(params)
    # Or the head's first values, at least, would stay on the devices.
    del params
  else:
    state = jax.jit(
      lambda: first_state(fresh_params()), out_shardings=everywhere
    )()

  # ---- Nothing was written so far; now the run begins, or goes on -----------
  workdir.mkdir(parents=True, exist_ok=True)
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      stack.enter_context(logs.log_file(workdir))
    checkpoints = checkpoint_lib.Checkpoints(
      workdir,
      keep=config.checkpoint.keep,
      keep_every=config.checkpoint.keep_every,
    )
    stack.callback(checkpoints.close)
    if start_step:
      state = checkpoints.restore(start_step, abstract_state)
    logging.info('%s', origin)
    if jax.process_index() == 0:
      # After the last step only evaluations are left, which may have changed:
      # their config is saved with their results, at the end.
      if start_step < config.total_steps:
        config_lib.save(config, workdir)
      (workdir / DONE).unlink(missing_ok=True)
    _log_overview(workdir, config, view, mesh, state.params)
    if jax.process_index() == 0:
      class_names.write(workdir, source.info.class_names)

    # ---- The compiled step, and the batches from step `start_step` on -------
    batches = pipeline.train_batches(
      view,
      preprocess,
      batch_size=batch_size,
      seed=config.seed,
      start_step=start_step,
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
      ),
      mesh,
    )
    writer = metrics.MetricWriter(
      workdir,
      start_step=start_step,
      tensorboard=config.log.tensorboard,
    )
    stack.callback(writer.close)
    progress = progress_lib.Progress(start_step, config.total_steps, batch_size)
    interval = progress_lib.Interval(start_step, checkpoints.directory)
    profiler = stack.enter_context(
      profiling.Profiler(workdir, **config.profile)
    )

    # ---- The loop -----------------------------------------------------------
    feed = sharding.feed(
      batches, mesh, config.total_steps - start_step, progress.wait
    )
    for step, batch in enumerate(feed, start=start_step + 1):
      profiler.before(step, state)
      state, step_metrics = train_step(state, batch)
      interval.add(step_metrics)
      if step == start_step + 1:
        jax.block_until_ready(step_metrics)
        logging.info('First step done.')
        progress.reset(step)
      profiler.after(step, state)

      last = step == config.total_steps
      due = [
        name
        for name in evaluations
        if last or evaluators.is_due(config.evals[name], step)
      ]
      save_now = last or step % config.checkpoint.every == 0
      # A checkpoint also ends an interval, so that a resumed run logs the same
      # means; and what a non-finite loss leaves is neither evaluated nor saved.
      if due or save_now or step % config.log.every == 0:
        interval.check_finite(checkpoints.latest_step)
        values = interval.mean() | progress.measure(step)
        writer.write(step, values)
        progress_lib.log_line(step, config.total_steps, values)
        interval = progress_lib.Interval(step, checkpoints.directory)
      before = time.monotonic()
      for name in due:
        _evaluate(name, evaluations[name], state, step, writer)
      if save_now:
        # After this step's numbers were written: what a checkpoint follows is
        # on disk, so that a resumed run lacks nothing.
        checkpoints.save(step, state)
      progress.pause(time.monotonic() - before)

    if start_step == config.total_steps:
      # Trained before, but killed before the end, or asked for more since.
      for name in missing:
        _evaluate(name, evaluations[name], state, start_step, writer)

  # ---- The end: the last checkpoint is complete -----------------------------
  if jax.process_index() == 0:
    config_lib.save(config, workdir)
    (workdir / DONE).write_text(f'{config.total_steps}\n')
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


def _evaluate(name, evaluator, state, step, writer) -> None:
  """Runs one evaluator, prints its line and writes its numbers."""
  before = time.monotonic()
  values = {f'{name}/{key}': value for key, value in evaluator.run(state)}
  values[f'{name}/seconds'] = time.monotonic() - before
  writer.write(step, values)
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


def _log_overview(workdir, config, view, mesh, params) -> None:
  """What is about to run: data, model, parameters by name, devices."""
  if jax.process_index() == 0:
    (workdir / 'parameters.txt').write_text(
      parameter_overview.get_parameter_overview(params) + '\n'
    )
  parts = {
    name: sum(x.size for x in jax.tree.leaves(part))
    for name, part in params.items()
  }
  logging.info(
    '%s: %s parameters (%s; all in parameters.txt), images %dx%d, %s.',
    config.model.name,
    f'{sum(parts.values()):,}',
    ', '.join(f'{k} {v:,}' for k, v in parts.items()),
    *config.image_size,
    config.model.dtype,
  )
  logging.info(
    '%s %s: %s images, %d classes; batch %d for %d steps (%.1f epochs) on %d'
    ' %s device(s).',
    config.data.dataset,
    view.split,
    f'{len(view):,}',
    config.num_classes,
    config.data.batch_size,
    config.total_steps,
    config.total_steps * config.data.batch_size / len(view),
    mesh.size,
    mesh.devices.flat[0].platform,
  )
