"""The loop's evaluations, saves, and reactions to a request to stop."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
from absl import logging

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax.runtime import distributed, errors, preemption
from vit_jax.training.run import Run, evaluate
from vit_jax.training.start_up import Start
from vit_jax.training.step import TrainState
from vit_jax.workdir import metrics


class Tracker:
  """Evaluates and saves; remembers the best value and the last save."""

  def __init__(self, run: Run, start: Start, writer: metrics.MetricWriter):
    """Stores what the loop has opened.

    Args:
      run: an open run.
      start: where training continues.
      writer: writes the run's metrics.
    """
    self._run = run
    self._checkpoints = start.checkpoints
    self._writer = writer
    self._best = start.best
    self._metric = run.config.checkpoint.best
    self._timeout = run.config.checkpoint.timeout
    self._save_after = 60 * run.config.checkpoint.every_minutes  # Seconds.
    self._saved_at = time.monotonic()

  def start_training(self) -> None:
    """Starts the clocks; the first step follows."""
    self._run.goodput.start_training()
    self._saved_at = time.monotonic()

  def due(self, step: int) -> list[str]:
    """Returns the evaluations that are due at a step."""
    config = self._run.config
    last = step == config.total_steps
    return [
      name
      for name in self._run.evaluations
      if last or config_lib.is_due(config.evals[name], step)
    ]

  def is_long_unsaved(self) -> bool:
    """Whether the last save was `checkpoint.every_minutes` ago or earlier."""
    # The clocks of processes differ, but either all of them save or none.
    return self._save_after > 0 and distributed.any_true(
      time.monotonic() - self._saved_at >= self._save_after
    )

  def make_up_for(
    self, names: Sequence[str], state: TrainState, step: int
  ) -> None:
    """Runs evaluations that earlier launches left out.

    Args:
      names: the names of the evaluations.
      state: the state from which the run continues.
      step: the step of that state.

    Raises:
      PreemptedError: the run was asked to stop.
    """
    found = {}
    # An evaluation's results are worth keeping: a signal must wait for them.
    self._run.notice.nothing_to_save &= not names
    try:
      self._evaluate(names, state, step, found)
    except preemption.StopRequested:
      raise self.preempted(step) from None
    self._checkpoints.note(step, found)

  def evaluate_and_save(
    self,
    state: TrainState,
    step: int,
    due: Sequence[str],
    *,
    save: bool,
    stop: bool,
  ) -> bool:
    """Saves and evaluates after a step.

    The save comes after the step's metrics are written, so that a resumed run
    lacks no metrics from before its checkpoint. The save comes before the
    evaluations, because these may fail; a resumed run makes up for them.

    Args:
      state: the state after the step.
      step: the number of the step.
      due: the evaluations to run.
      save: whether to save even without a new best value.
      stop: whether the run was asked to stop.

    Returns:
      Whether the run has been asked to stop by now.

    Raises:
      SaveError: the state could not be saved.
    """
    found, improved = {}, False
    if save:
      self._save(state, step, found)
    try:
      improved = self._evaluate(due, state, step, found)
    except preemption.StopRequested:
      stop = True
    except errors.SaveError:
      raise
    except Exception:
      # With several processes, the others may not have failed: they would not
      # take part in this save.
      if not save and jax.process_count() == 1:
        try:
          self._save(state, step, found)
        except (errors.SaveError, OSError, ValueError) as error:
          logging.error('%s', error)
      raise
    self._checkpoints.note(step, found)
    if not save and (improved or stop):
      self._save(state, step, found)
    if stop or step == self._run.config.total_steps:
      with self._saving(f'save of step {step}'):
        self._checkpoints.wait()
    return stop

  def save_params(
    self,
    kind: str,
    state: TrainState,
    step: int,
    values: Mapping[str, float] | None = None,
  ) -> None:
    """Saves the parameters alone, under `checkpoint.BEST` or `FINAL`."""
    with self._saving(kind):
      self._run.check_owner()
      checkpoint_lib.save_params(
        self._run.workdir,
        kind,
        step,
        self._run.program.evaluated(state).eval_params,
        values,
        timeout=self._timeout,
      )

  def last_checkpoint(self) -> int | None:
    """Waits for a save that is under way; returns the newest step saved."""
    logging.warning('A step is not finite; waiting for saves to finish.')
    with self._run.watchdog.allow('save before the end', self._timeout):
      try:
        self._checkpoints.wait()
      except errors.SaveError as error:
        logging.error('%s', error)
    return self._checkpoints.latest_step

  def preempted(self, step: int) -> errors.PreemptedError:
    """Returns the error that ends a run after a request to stop."""
    return self._run.notice.stopped(
      f'stopped after step {step}, which was saved. Start the same command'
      f' again to continue. So far: {self._run.goodput.summary()}.'
    )

  def _evaluate(
    self,
    names: Sequence[str],
    state: TrainState,
    step: int,
    found: dict[str, float],
  ) -> bool:
    """Adds results to `found`; returns whether there is a new best value."""
    improved = False
    if names:
      state = self._run.program.evaluated(state)
    for name in names:
      with self._run.goodput.phase('evaluation'):
        values = evaluate(self._run, name, state, step, self._on_batch)
      found |= values
      value = values.get(self._metric)
      if value is not None and (
        self._best is None
        or checkpoint_lib.is_better(self._metric, value, self._best)
      ):
        self._best, improved = value, True
        # Before the metrics are written: if this save fails, a resumed run
        # lacks the metrics and repeats the evaluation.
        self.save_params(checkpoint_lib.BEST, state, step, values)
      self._writer.write(step, values | self._run.goodput.metrics())
    return improved

  def _on_batch(self) -> None:
    self._run.watchdog.beat('batch of an evaluation')
    if self._run.notice.requested():
      raise preemption.StopRequested

  def _save(
    self, state: TrainState, step: int, found: Mapping[str, float]
  ) -> None:
    with self._saving(f'save of step {step}'):
      self._writer.flush()
      self._checkpoints.save(step, state, found)
    self._saved_at = time.monotonic()

  @contextlib.contextmanager
  def _saving(self, what: str) -> Iterator[None]:
    """Counts the time as checkpoint time, and lets the watchdog wait."""
    with (
      self._run.goodput.phase('checkpoint'),
      self._run.watchdog.allow(what, self._timeout),
    ):
      yield
