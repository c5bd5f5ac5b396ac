"""Starts a training run: from scratch, from other weights, or by resuming.

`look` finds out how far the run in the work directory is, and refuses the
directory of another run. `begin` takes the work directory and restores the
state, or makes the first one.
"""

import contextlib
from typing import NamedTuple

import jax
from absl import logging
from clu import parameter_overview
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import data, results
from vit_jax.runtime import distributed
from vit_jax.runtime import goodput as goodput_lib
from vit_jax.training import consistency
from vit_jax.training.run import (
  Run,
  keep_logs_and_programs,
  load_weights,
  take_workdir,
)
from vit_jax.training.step import TrainState
from vit_jax.workdir import environment, files, metrics


class Found(NamedTuple):
  """How far the run in a work directory is.

  Attributes:
    newest: the step of the newest checkpoint; 0 if there is none.
    missing: the evaluations without a result at the last step.
    finished: whether nothing is left to do.
  """

  newest: int
  missing: list[str]
  finished: bool


def look(run: Run, *, allow_config_change: bool, restart: bool) -> Found:
  """Finds out how far the training run in a work directory is.

  Args:
    run: an open run.
    allow_config_change: whether its work directory may hold a run of another
      config.
    restart: whether a run whose checkpoints are gone may start over.

  Raises:
    ValueError: the work directory holds another run; or its run has read other
      data, is past the last step, or has lost its checkpoints.
  """
  workdir, config = run.workdir, run.config
  first_process = jax.process_index() == 0
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
      f' total_steps={config.total_steps}: raise total_steps, or use another'
      ' --workdir.'
    )
  if finished and not missing:
    if distributed.broadcast(
      first_process and checkpoint_lib.is_intact(workdir / checkpoint_lib.FINAL)
    ):
      logging.info('%s is finished: nothing to do.', workdir)
      if first_process:
        results.tell_lost_rows(workdir, config.total_steps)
      return Found(newest, missing, finished=True)
    logging.warning(
      'The final weights are missing or damaged: writing them again.'
    )
  if newest:
    consistency.check_same_data(
      workdir, run.digests, accept=allow_config_change
    )
  if not newest and first_process and not restart:
    results.check_not_lost(workdir)
  return Found(newest, missing, finished=False)


class Start(NamedTuple):
  """Where training continues.

  Attributes:
    step: number of steps made so far.
    best: the best value so far of the metric `checkpoint.best`; None if none.
    unevaluated: evaluations to make up for before the next step.
    checkpoints: the run's checkpoints, open for saving.
  """

  step: int
  best: float | None
  unevaluated: list[str]
  checkpoints: checkpoint_lib.Checkpoints


def begin(
  stack: contextlib.ExitStack,
  run: Run,
  found: Found,
  *,
  allow_config_change: bool,
  restart: bool,
  compilation_cache: epath.PathLike | None,
) -> tuple[TrainState, Start]:
  """Takes the work directory and restores the run's state, or makes the first.

  Args:
    stack: closes what is opened here.
    run: an open run.
    found: the result of `look`.
    allow_config_change: see `look`.
    restart: see `look`.
    compilation_cache: directory of compiled programs; None keeps none.

  Returns:
    The state after the last update, and where training continues.
  """
  workdir, config = run.workdir, run.config
  take_workdir(stack, run)
  # Since `look`, the previous owner may have begun the run or saved a state.
  if not allow_config_change:
    config_lib.check_same_run(config, workdir)
  begun = distributed.broadcast(checkpoint_lib.latest_step(workdir) or 0)
  if begun and not found.newest:
    consistency.check_same_data(
      workdir, run.digests, accept=allow_config_change
    )
  keep_logs_and_programs(stack, run, compilation_cache)
  if jax.process_index() == 0 and restart and not begun:
    results.set_aside(workdir)

  # Errors of other weights come first: no process ends while it compiles.
  if begun < config.total_steps and (begun or not config.init.checkpoint):
    _ = run.program.compiled_train_step  # Begins to compile.
  state, step = _state(run)
  if jax.process_index() == 0:
    results.tell_lost_rows(workdir, step)
  rows = [row for row in metrics.read(workdir) if row['step'] <= step]
  best, unevaluated = distributed.broadcast(
    (
      results.best_value(config.checkpoint.best, rows),
      results.unevaluated(config, rows, step),
    )
  )
  if step == config.total_steps:
    # Training is done, but the run was killed before its evaluations, or its
    # config has new ones.
    unevaluated = found.missing
  run.goodput.go_on_from(goodput_lib.carried(rows))
  checkpoints = _open_checkpoints(stack, run, rows)
  if step < config.total_steps:
    checkpoints.check_space(state)
  _write_records(run, step)
  _write_parameters(run, state)
  return state, Start(step, best, unevaluated, checkpoints)


def _state(run: Run) -> tuple[TrainState, int]:
  """Returns the state to start from, and its step."""
  program = run.program
  if restored := checkpoint_lib.restore_newest(
    run.workdir, program.abstract_state
  ):
    logging.info('Resuming %s from step %d.', run.workdir, restored[1])
    return restored
  if run.config.init.checkpoint:
    first_state = jax.jit(
      program.first_state,
      out_shardings=program.layout.state(program.shapes),
      donate_argnums=0,
    )
    return first_state(load_weights(run, new_head=run.config.init.new_head)), 0
  logging.info('Fresh weights.')
  return program.init_state(), 0


def _open_checkpoints(
  stack: contextlib.ExitStack, run: Run, rows: list[dict[str, float]]
) -> checkpoint_lib.Checkpoints:
  section = run.config.checkpoint
  checkpoints = checkpoint_lib.Checkpoints(
    run.workdir,
    keep=section.keep,
    keep_every=section.keep_every,
    best=section.best,
    timeout=section.timeout,
  )
  stack.callback(checkpoints.close)
  values = {
    row['step']: row[section.best] for row in rows if section.best in row
  }
  # All processes must agree on the checkpoints to keep.
  for step, value in distributed.broadcast(list(values.items())):
    checkpoints.note(step, {section.best: value})
  return checkpoints


def _write_records(run: Run, step: int) -> None:
  """Writes the files that describe the run, in process 0."""
  if jax.process_index() != 0:
    return
  workdir, config = run.workdir, run.config
  # After the last step only evaluations are left. Their config may have
  # changed, so it is saved at the end, with their results.
  if step < config.total_steps:
    config_lib.save(config, workdir)
  (workdir / results.DONE).unlink(missing_ok=True)
  consistency.write_data(workdir, run.digests)
  files.write_class_names(workdir, run.source.info.class_names)
  environment.write(workdir, step, run.mesh)
  environment.write_requirements(workdir, step)


def _write_parameters(run: Run, state: TrainState) -> None:
  """Logs model, data and devices; writes `parameters.txt`."""
  config, view, layout = run.config, run.view, run.program.layout
  table = layout.describe(state)
  if jax.process_index() == 0:
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state.params
    )
    overview = parameter_overview.get_parameter_overview(
      shapes, include_stats=False
    )
    (run.workdir / 'parameters.txt').write_text(f'{overview}\n\n{table}\n')
  parts = {
    name: sum(x.size for x in jax.tree.leaves(part))
    for name, part in state.params.items()
  }
  logging.info(
    '%s: %s parameters (%s; all in parameters.txt), images %dx%d, %s.',
    config.model.name,
    f'{sum(parts.values()):,}',
    ', '.join(f'{k} {v:,}' for k, v in parts.items()),
    *config.image_size,
    config.model.dtype,
  )
  trained, frozen = run.program.tuning.split(state.params)
  if frozen:
    logging.info(
      '%s of them train; the others are frozen.',
      f'{sum(x.size for x in jax.tree.leaves(trained)):,}',
    )
  if run.mesh.size > 1:
    logging.info('Split over the devices (%s):\n%s', layout, table)
  if options := run.program.compiler_options:
    listed = ', '.join(f'{name}={value}' for name, value in options.items())
    logging.info('Options of the compiler: %s.', listed)
  logging.info(
    '%s %s: %s images, %d classes; batch %d for %d steps (%.1f epochs) on %d'
    ' %s device(s)%s.',
    config.data.dataset,
    view.split,
    f'{len(view):,}',
    config.num_classes,
    config.data.batch_size,
    config.total_steps,
    config.total_steps * config.data.batch_size / len(view),
    run.mesh.size,
    run.mesh.devices.flat[0].platform,
    f' of {jax.process_count()} processes' if jax.process_count() > 1 else '',
  )
  if view.selection.shuffled and jax.process_index() == 0:
    counts = data.class_balance(view) if data.balance.is_cheap(view) else None
    logging.info('%s: %s', view.split, data.balance.describe(view, counts))
