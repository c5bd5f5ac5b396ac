"""Trains a model: open, resume, step, evaluate, save.

`train_and_evaluate` is the whole story; the functions below it are its parts,
in the order in which it calls them.
"""

import contextlib
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
import ml_collections
from absl import logging
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import data, results, sharding
from vit_jax.config import inputs
from vit_jax.data import pipeline
from vit_jax.evaluators import predictions
from vit_jax.runtime import distributed, errors, preemption, profiling
from vit_jax.runtime import goodput as goodput_lib
from vit_jax.training import consistency, run, warm_start
from vit_jax.training import progress as progress_lib
from vit_jax.training.step import GUARDED, TrainState
from vit_jax.workdir import environment, files, metrics


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
    # ---- Open: the directory's lock, the data, the config, the program -------
    r = stack.enter_context(
      run.open_run(
        config,
        workdir,
        _complete,
        compilation_cache=compilation_cache,
        notice=notice,
      )
    )
    config, workdir, program = r.config, r.workdir, r.program
    batch_size, total_steps = config.data.batch_size, config.total_steps

    # ---- Resume --------------------------------------------------------------
    begun, missing = _how_far(r, allow_config_change)
    if not missing and _is_finished(r):
      return results.final_metrics(workdir)
    if not begun and not restart and jax.process_index() == 0:
      results.check_not_lost(workdir)
    if jax.process_index() == 0 and restart and not begun:
      results.set_aside(workdir)
    # Errors of other weights come first: no process ends while it compiles.
    if begun < total_steps and (begun or not config.init.checkpoint):
      _ = program.compiled_train_step  # Begins to compile.
    state, start_step = _restored(r) or (_first_state(r), 0)
    recorder = stack.enter_context(_Recorder(r, state, start_step))
    _describe(r, state, start_step)

    rows = sharding.local_rows(r.mesh, batch_size)
    batches = pipeline.train_batches(
      r.view,
      inputs.parse_preprocess(config, config.data.preprocess, train=True),
      batch_size=batch_size,
      seed=config.seed,
      start_step=start_step,
      rows=rows,
      **inputs.reading(config),
    )
    stack.callback(batches.close)
    profiler = stack.enter_context(
      profiling.Profiler(workdir, **config.profile)
    )
    progress = progress_lib.Progress(total_steps, batch_size)
    interval = progress_lib.Interval(start_step)

    def on_wait(seconds):
      r.goodput.add('input', seconds)

    # ---- The loop ------------------------------------------------------------
    # First the evaluations that earlier launches left out.
    left_out = missing if start_step == total_steps else recorder.left_out
    # Their results are worth keeping: a signal must wait for them.
    r.notice.nothing_to_save &= not left_out
    if recorder.evaluate(left_out, state, start_step):
      raise recorder.stopped(start_step)
    if start_step < total_steps:
      with r.goodput.phase('compilation'):
        train_step = program.compiled_train_step.result()
    recorder.start_clocks()
    feed = sharding.feed(batches, r.mesh, total_steps - start_step, on_wait)
    for step, batch in enumerate(feed, start=start_step + 1):
      profiler.before(step, state)
      state, step_metrics = train_step(state, batch)
      interval.add(step_metrics)
      if step == start_step + 1:
        logging.info('First step dispatched.')
        jax.block_until_ready(step_metrics)
        logging.info('First step done.')
        progress.start(step, r.goodput.seconds())
        r.started()
      profiler.after(step, state)
      r.watchdog.beat(f'step {step}')

      stop = r.notice.requested()
      due = [] if stop else _due(config, step)
      log = step % config.log.every == 0
      save = stop or step == total_steps or step % config.checkpoint.every == 0
      if log:
        save |= recorder.is_long_unsaved()
      # A checkpoint ends an interval too, so that a resumed run logs the same
      # means. The guard comes first: it must stop a run that is not finite
      # before the state is evaluated or saved.
      if due or save or log:
        recorder.check_finite(interval)
        values = interval.mean()
        values |= progress.measure(step, r.goodput.seconds())
        recorder.write(step, values)
        progress_lib.log_line(step, total_steps, values)
        interval = progress_lib.Interval(step)
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
    r.started()
    recorder.save_params(checkpoint_lib.FINAL, state, total_steps)
    logging.info('Done: %s.', r.goodput.summary())
    recorder.close()
    if jax.process_index() == 0:
      config_lib.save(config, workdir)
      (workdir / results.DONE).write_text(f'{total_steps}\n')
      _tell_what_next(workdir, config)
    distributed.barrier()  # Everything is written.
    return results.final_metrics(workdir)


# Open ------------------------------------------------------------------------


def _complete(
  config: ml_collections.ConfigDict, source: data.Source, workdir: epath.Path
) -> tuple[ml_collections.ConfigDict, data.View]:
  """Returns the complete config, and the split to train on."""
  config = warm_start.with_model(config, workdir)
  config, view = config_lib.complete(config, source)
  if jax.process_index() == 0 and config.data.batch_size > len(view):
    logging.warning(
      'data.batch_size=%d is more than the %d training examples, so a batch'
      ' repeats some of them. 0 chooses a batch size from their number, at'
      ' least 16.',
      *(config.data.batch_size, len(view)),
    )
  preprocess = inputs.parse_preprocess(
    config, config.data.preprocess, train=True
  )
  inputs.check_first_record(config, view, preprocess)
  return config, view


# Resume ----------------------------------------------------------------------


def _how_far(r: run.Run, allow_config_change: bool) -> tuple[int, list[str]]:
  """Finds out how far the run in the work directory is.

  Returns:
    The step of the newest checkpoint, 0 without one; and the evaluations
    without a result at the last step.

  Raises:
    ValueError: the work directory holds another run; or its run has read other
      data, or is past the last step.
  """
  workdir, config = r.workdir, r.config
  if not allow_config_change:
    config_lib.check_same_run(config, workdir)
  begun, missing = distributed.broadcast(
    (
      checkpoint_lib.latest_step(workdir) or 0,
      results.missing_evaluations(config, workdir),
    )
  )
  if begun > config.total_steps:
    raise ValueError(
      f'{workdir} has a checkpoint of step {begun}, past'
      f' total_steps={config.total_steps}: raise total_steps, or use another'
      ' --workdir.'
    )
  if begun:
    consistency.check_same_data(workdir, r.digests, accept=allow_config_change)
  return begun, missing


def _is_finished(r: run.Run) -> bool:
  """Whether a run with all of its evaluations is finished."""
  workdir, total_steps = r.workdir, r.config.total_steps
  if not distributed.broadcast(results.finished_at(workdir) == total_steps):
    return False
  intact = distributed.broadcast(
    jax.process_index() == 0
    and checkpoint_lib.is_intact(workdir / checkpoint_lib.FINAL)
  )
  if intact:
    logging.info('%s is finished: nothing to do.', workdir)
  else:
    logging.warning(
      'The final weights are missing or damaged: writing them again.'
    )
  return intact


def _restored(r: run.Run) -> tuple[TrainState, int] | None:
  """Returns the newest saved state and its step; None if none is saved."""
  restored = checkpoint_lib.restore_newest(r.workdir, r.program.abstract_state)
  if restored:
    logging.info('Resuming %s from step %d.', r.workdir, restored[1])
  return restored


def _first_state(r: run.Run) -> TrainState:
  """Returns the state before the first step."""
  program, section = r.program, r.config.init
  if not section.checkpoint:
    logging.info('Fresh weights.')
    return program.init_state()
  first_state = jax.jit(
    program.first_state,
    out_shardings=program.layout.state(program.shapes),
    donate_argnums=0,
  )
  return first_state(run.load_weights(r, new_head=section.new_head))


def _describe(r: run.Run, state: TrainState, step: int) -> None:
  """Logs model, data and devices, and writes the files that describe them."""
  config, view, layout, workdir = r.config, r.view, r.program.layout, r.workdir
  table = layout.describe(state)
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
  trained, frozen = r.program.tuning.split(state.params)
  if frozen:
    logging.info(
      '%s of them train; the others are frozen.',
      f'{sum(x.size for x in jax.tree.leaves(trained)):,}',
    )
  if r.mesh.size > 1:
    logging.info('Split over the devices (%s):\n%s', layout, table)
  if options := r.program.compiler_options:
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
    r.mesh.size,
    r.mesh.devices.flat[0].platform,
    f' of {jax.process_count()} processes' if jax.process_count() > 1 else '',
  )
  if jax.process_index() != 0:
    return
  if view.selection.shuffled:
    counts = data.class_balance(view) if data.balance.is_cheap(view) else None
    logging.info('%s: %s', view.split, data.balance.describe(view, counts))
  (workdir / 'parameters.txt').write_text(f'{table}\n')
  # After the last step only evaluations are left. Their config may have
  # changed, so it is saved at the end, with their results.
  if step < config.total_steps:
    config_lib.save(config, workdir)
  (workdir / results.DONE).unlink(missing_ok=True)
  consistency.write_data(workdir, r.digests)
  files.write_class_names(workdir, r.source.info.class_names)
  environment.write(workdir, step, r.mesh)


# The loop --------------------------------------------------------------------


def _due(config: ml_collections.ConfigDict, step: int) -> list[str]:
  """Returns the evaluations that are due at a step."""
  return [
    name
    for name, section in config.evals.items()
    if step == config.total_steps or config_lib.is_due(section, step)
  ]


class _Recorder:
  """Writes metrics, checkpoints and the best weights of a run.

  Attributes:
    left_out: the evaluations that were due at the first step, without a result.
  """

  def __init__(self, r: run.Run, state: TrainState, step: int):
    """Reads what earlier launches have written.

    Args:
      r: an open run.
      state: the state to start from.
      step: its step.
    """
    section = r.config.checkpoint
    self._run = r
    self._metric, self._timeout = section.best, section.timeout
    self._save_after = 60 * section.every_minutes  # Seconds.
    self._saved_at, self._saved_step = time.monotonic(), step
    self._skipped_in_a_row = 0
    rows = [row for row in metrics.read(r.workdir) if row['step'] <= step]
    self._best, self.left_out, values = distributed.broadcast(
      (
        results.best_value(section.best, rows),
        results.unevaluated(r.config, rows, step),
        [
          (row['step'], row[section.best])
          for row in rows
          if section.best in row
        ],
      )
    )
    r.goodput.go_on_from(goodput_lib.carried(rows))
    self._checkpoints = checkpoint_lib.Checkpoints(
      r.workdir,
      keep=section.keep,
      keep_every=section.keep_every,
      best=section.best,
      timeout=section.timeout,
    )
    # All processes must agree on the checkpoints to keep.
    for at, value in values:
      self._checkpoints.note(at, {section.best: value})
    if step < r.config.total_steps:
      self._checkpoints.check_space(state)
    self._writer = r.metric_writer(step)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    try:
      self._writer.close()
    finally:
      self._checkpoints.close()

  def close(self) -> None:
    """Completes the file of metrics."""
    self._writer.close()

  def start_clocks(self) -> None:
    """Starts the clocks; the first step follows."""
    self._run.goodput.start_training()
    self._saved_at = time.monotonic()

  def is_long_unsaved(self) -> bool:
    """Whether the last save was `checkpoint.every_minutes` ago or earlier."""
    # The clocks of processes differ, but either all of them save or none.
    return self._save_after > 0 and distributed.any_true(
      time.monotonic() - self._saved_at >= self._save_after
    )

  def check_finite(self, interval: progress_lib.Interval) -> None:
    """Checks the steps of an interval, before any of them is saved.

    Raises:
      NonFiniteError: a step is not finite and may not be skipped.
      SaveError: the last save has failed.
    """
    guard, values = self._run.config.guard, interval.fetch()
    for step, row in enumerate(values, start=interval.start_step + 1):
      bad = {k: float(row[k]) for k in GUARDED if not math.isfinite(row[k])}
      self._skipped_in_a_row = self._skipped_in_a_row + 1 if bad else 0
      skips = guard.nonfinite == 'skip'
      if self._skipped_in_a_row <= (guard.max_skipped if skips else 0):
        continue
      saved = self._newest()
      kept = (
        f'the last good checkpoint is {self._checkpoints.directory}/{saved}'
        if saved
        else 'no checkpoint had been saved yet'
      )
      number = f', number {self._skipped_in_a_row} in a row' if skips else ''
      raise errors.NonFiniteError(
        f'Not finite: {bad} at step {step}{number} (found in steps'
        f' {interval.start_step + 1} to {interval.start_step + len(values)}).'
        f' Training stopped; {kept}. A lower schedule.peak, a longer'
        ' schedule.warmup_steps or optimizer.clip_norm=1 are the usual'
        ' remedies.'
      )
    self._checkpoints.check()

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes a row of metrics."""
    self._writer.write(step, values | self._run.goodput.metrics())

  def evaluate(
    self, names: Sequence[str], state: TrainState, step: int
  ) -> bool:
    """Runs evaluations; saves the weights and the state of a new best value.

    Returns:
      Whether the run was asked to stop meanwhile.
    """
    if not names:
      return False
    found, improved, stop = {}, False, False
    evaluated = self._run.program.evaluated(state)
    try:
      for name in names:
        with self._run.goodput.phase('evaluation'):
          values = run.evaluate(
            self._run, name, evaluated, step, self._on_batch
          )
        found |= values
        if self._is_best(values):
          improved = True
          # Before the metrics are written: if this save fails, a resumed run
          # lacks the metrics and repeats the evaluation.
          self.save_params(checkpoint_lib.BEST, evaluated, step)
        self.write(step, values)
    except preemption.StopRequested:
      stop = True
    except errors.SaveError:
      raise
    except Exception:
      # With several processes, the others may not have failed: they would not
      # take part in this save.
      if jax.process_count() == 1:
        try:
          self.save(state, step, found)
        except (errors.SaveError, OSError, ValueError) as error:
          logging.error('%s', error)
      raise
    self._checkpoints.note(step, found)
    if improved:
      self.save(state, step, found)
    return stop

  def _is_best(self, values: Mapping[str, float]) -> bool:
    """Whether an evaluation has a new best value, which is remembered."""
    value = values.get(self._metric)
    if value is None or (
      self._best is not None
      and not checkpoint_lib.is_better(self._metric, value, self._best)
    ):
      return False
    self._best = value
    return True

  def _on_batch(self) -> None:
    self._run.watchdog.beat('batch of an evaluation')
    if self._run.notice.requested():
      raise preemption.StopRequested

  def save(
    self,
    state: TrainState,
    step: int,
    found: Mapping[str, float] | None = None,
  ) -> None:
    """Starts to save a state, unless it is saved already.

    Args:
      state: the state after the step.
      step: the number of the step.
      found: the step's metrics so far.

    Raises:
      SaveError: this save could not start, or the last one failed.
    """
    if step == self._saved_step:
      return
    with self._saving(f'save of step {step}'):
      self._writer.flush()
      self._checkpoints.note(step, found or {})
      self._checkpoints.save(step, state)
    self._saved_at, self._saved_step = time.monotonic(), step

  def save_params(self, kind: str, state: TrainState, step: int) -> None:
    """Saves the parameters alone, under `checkpoint.BEST` or `FINAL`."""
    with self._saving(kind):
      self._run.check_owner()
      checkpoint_lib.save_params(
        self._run.workdir,
        kind,
        step,
        self._run.program.evaluated(state).eval_params,
        timeout=self._timeout,
      )

  def wait(self, step: int) -> None:
    """Waits for the save of a step; raises SaveError if it failed."""
    with self._saving(f'save of step {step}'):
      self._checkpoints.wait()

  def _newest(self) -> int | None:
    """Waits for a save that is under way; returns the newest step saved."""
    logging.warning('A step is not finite; waiting for saves to finish.')
    try:
      self.wait(self._saved_step)
    except errors.SaveError as error:
      logging.error('%s', error)
    return self._checkpoints.latest_step

  def stopped(self, step: int) -> errors.PreemptedError:
    """Returns the error that ends a run after a request to stop."""
    return self._run.notice.stopped(
      f'stopped after step {step}, which was saved. Start the same command'
      f' again to continue. So far: {self._run.goodput.summary()}.'
    )

  @contextlib.contextmanager
  def _saving(self, what: str) -> Iterator[None]:
    """Counts the time as checkpoint time, and lets the watchdog wait."""
    with (
      self._run.goodput.phase('checkpoint'),
      self._run.watchdog.allow(what, self._timeout),
    ):
      yield


# The end ---------------------------------------------------------------------


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
