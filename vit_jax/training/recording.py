"""Metrics, speed, checkpoints and best weights of a run, as it goes on."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.checkpoint import fingerprint
from vit_jax.runtime import distributed, errors, preemption, printable
from vit_jax.training.opening import Run
from vit_jax.training.step import COUNTS, GUARDED, SIZES, TrainState
from vit_jax.workdir import metrics

# What `checkpoint.every='auto'` lets a save cost of the loop's time.
_SHARE = 0.01


class Interval:
  """The metrics of the steps since the last log line, still on the devices.

  Blocks the host when it runs more than two steps ahead of the devices, so that
  batches don't pile up in device memory.
  """

  _AHEAD = 2

  def __init__(self, start_step: int):
    self.start_step = start_step
    self._values: list[dict[str, jax.Array]] = []

  def add(self, values: dict[str, jax.Array]) -> None:
    self._values.append(values)
    if len(self._values) > self._AHEAD:
      # This waits without a transfer, which would cost time on an accelerator.
      jax.block_until_ready(self._values[-1 - self._AHEAD])

  def fetch(self) -> list[dict[str, np.ndarray]]:
    """Returns each step's metrics; waits until the steps are done."""
    self._values = jax.device_get(self._values)
    return self._values

  def mean(self) -> dict[str, float]:
    """Returns means over the steps, sums of `COUNTS`, and the last `SIZES`.

    Skipped steps enter only the counts. If all were skipped, the means are NaN.
    """
    values = self.fetch()
    counted = [v for v in values if not v['skipped']]
    result = {}
    for name in values[-1]:
      numbers = [float(v[name]) for v in counted]
      if name in COUNTS:
        found = sum(float(v[name]) for v in values)
      elif name in SIZES:
        found = numbers[-1] if numbers else float(values[-1][name])
      else:
        found = sum(numbers) / len(numbers) if numbers else math.nan
      result[f'train/{name}'] = found
    return result


class Progress:
  """Speed, input wait and time left between log lines."""

  def __init__(self, total_steps: int, batch_size: int):
    self._total_steps = total_steps
    self._batch_size = batch_size
    # Step, time and seconds by category: of the first step, of the last line.
    self._start = self._last = None

  def start(self, step: int, seconds: Mapping[str, float]) -> None:
    """Starts the clock, after the first step, which includes compilation.

    Args:
      step: the step that is done.
      seconds: see `goodput.Goodput.seconds`.
    """
    self._start = self._last = (step, time.monotonic(), seconds)

  def measure(
    self, step: int, seconds: Mapping[str, float]
  ) -> dict[str, float]:
    """Measures the speed since the last call, and estimates the time left.

    Args:
      step: the step that is done.
      seconds: see `goodput.Goodput.seconds`. Only steps and input count for the
        speed, not evaluations and saves.

    Returns:
      `images_per_sec`, `input_wait` (the share of time, 0..1) and `eta_sec`; {}
      if no step has passed since the last call or `start`.
    """
    last_step, _, before = self._last
    if step == last_step:
      return {}
    now = time.monotonic()
    waited = seconds['input'] - before['input']
    trained = max(seconds['steps'] - before['steps'] + waited, 1e-9)
    # The pace is that of the whole launch, evaluations and saves included.
    start_step, start_time, _ = self._start
    pace = (now - start_time) / (step - start_step)
    self._last = (step, now, seconds)
    return {
      'images_per_sec': (step - last_step) * self._batch_size / trained,
      'input_wait': waited / trained,
      'eta_sec': pace * (self._total_steps - step),
    }


def log_line(step: int, total_steps: int, values: Mapping[str, float]) -> None:
  """Logs one line for one interval of training."""
  words = [
    f'step {step:{len(str(total_steps))}}/{total_steps}',
    f'loss {values["train/loss"]:.4f}',
  ]
  if 'train/accuracy' in values:
    words.append(f'acc {100 * values["train/accuracy"]:5.1f}%')
  words.append(f'lr {values["train/learning_rate"]:.2e}')
  if 'images_per_sec' in values:
    words += [
      f'{values["images_per_sec"]:,.0f} img/s',
      f'input {100 * values["input_wait"]:2.0f}%',
      f'ETA {printable.duration(values["eta_sec"])}',
    ]
  counts = {name: values.get(f'train/{name}') for name in COUNTS}
  words += [f'{name} {n:.0f}' for name, n in counts.items() if n]
  logging.info('%s', '  '.join(words))


class Recorder:
  """Writes metrics, checkpoints and the best weights of a run.

  Attributes:
    left_out: the evaluations that were due at the first step, without a result.
  """

  def __init__(self, run: Run, state: TrainState, step: int):
    """Reads what earlier launches have written.

    Args:
      run: an open run.
      state: the state to start from.
      step: its step.
    """
    section = run.config.checkpoint
    self._run = run
    self._timeout = section.timeout
    self._auto = section.every == config_lib.AUTO
    # With 'auto', the steps to keep for good would be met only by chance.
    self._save_every = section.keep_every if self._auto else section.every
    self._save_after = 60 * section.every_minutes  # Seconds.
    self._saved_at, self._saved_step = time.monotonic(), step
    # The last state that was digested, to be saved: its step and its digests.
    self._digested: tuple[int, Mapping[str, str]] = step, {}
    # The seconds that all saves before the last one cost; inf before the first,
    # which shows what a save costs.
    self._cost_before = math.inf
    self._skipped_in_a_row = 0
    rows = [row for row in metrics.read(run.workdir) if row['step'] <= step]
    self.left_out, values = distributed.broadcast(
      (
        results.unevaluated(run.config, rows, step),
        [
          (row['step'], row[section.best])
          for row in rows
          if section.best in row
        ],
      )
    )
    run.goodput.go_on_from(rows)
    self._checkpoints = checkpoint_lib.Checkpoints(
      run.workdir,
      keep=section.keep,
      keep_every=section.keep_every,
      best=section.best,
      timeout=section.timeout,
    )
    # All processes must agree on the checkpoints to keep.
    for at, value in values:
      self._checkpoints.note(at, {section.best: value})
    if step < run.config.total_steps:
      self._checkpoints.check_space(state)
    self._writer = run.metric_writer(step)

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

  def is_due(self, step: int, log: bool) -> bool:
    """Whether a step is to be saved, by its number or by the clock.

    The clock counts only where a row of metrics ends. So it adds no row, and
    processes exchange no more than one message per row.

    Args:
      step: the step that is done.
      log: whether a row of metrics ends with it.
    """
    if self._save_every and step % self._save_every == 0:
      return True
    if not log or not (self._auto or self._save_after):
      return False
    # This is the rule of Orbax's `ContinuousCheckpointingPolicy`, whose pause
    # is a constant. Orbax would decide in its `save`, after the row is written.
    passed = time.monotonic() - self._saved_at
    cost = self._cost() - self._cost_before
    late = 0 < self._save_after <= passed
    busy = cost > _SHARE * passed or self._checkpoints.is_saving()
    # The clocks of processes differ, but either all of them save or none.
    answers = distributed.gather([late, busy])
    return any(one[0] for one in answers) or (
      self._auto and not any(one[1] for one in answers)
    )

  def check_finite(self, interval: Interval) -> None:
    """Checks the steps of an interval, before any of them is saved.

    Raises:
      NonFiniteError: a step is not finite and may not be skipped.
      SaveError: the last save has failed.
    """
    guard, values = self._run.config.guard, interval.fetch()
    skips = guard.nonfinite == 'skip'
    for step, row in enumerate(values, start=interval.start_step + 1):
      bad = {k: float(row[k]) for k in GUARDED if not math.isfinite(row[k])}
      self._skipped_in_a_row = self._skipped_in_a_row + 1 if bad else 0
      if self._skipped_in_a_row <= (guard.max_skipped if skips else 0):
        continue
      number = f', number {self._skipped_in_a_row} in a row' if skips else ''
      raise errors.NonFiniteError(
        f'Not finite: {bad} at step {step}{number} (found in steps'
        f' {interval.start_step + 1} to {interval.start_step + len(values)}).'
        f' Training stopped; what is in {self._checkpoints.directory} is of'
        ' before. A lower schedule.peak, a longer schedule.warmup_steps or'
        ' optimizer.clip_norm=1 are the usual remedies.'
      )
    with self._saving('last save'):
      self._checkpoints.check()

  def fingerprint(self, state: TrainState, step: int) -> dict[str, float]:
    """Returns the number of a state that is about to be saved, for its row."""
    self._saved_at, self._cost_before = time.monotonic(), self._cost()
    with self._saving(f'digests of step {step}'):
      digests = checkpoint_lib.digests(state)
    self._digested = step, digests
    return {metrics.FINGERPRINT: fingerprint.number(digests)}

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
    improved = stop = False
    params = self._run.program.eval_params(state.params, state.ema_params)
    try:
      for name in names:
        with self._run.goodput.phase('evaluation'):
          values = self._run.evaluate(name, params, step)
        if self._checkpoints.note(step, values):
          improved = True
          # Before the metrics are written: if this save fails, a resumed run
          # lacks the metrics and repeats the evaluation.
          self.save_params(checkpoint_lib.BEST, params, step)
        self.write(step, values)
    except preemption.StopRequested:
      stop = True
    if improved:
      self.save(state, step)
    return stop

  def save(self, state: TrainState, step: int) -> None:
    """Starts to save a state, unless it is saved already.

    Args:
      state: the state after the step.
      step: the number of the step.

    Raises:
      SaveError: this save could not start, or the last one failed.
    """
    if step == self._saved_step:
      return
    if self._digested[0] != step:
      self.fingerprint(state, step)
    with self._saving(f'save of step {step}'):
      self._writer.flush()
      self._checkpoints.save(step, state, self._digested[1])
    self._saved_step = step

  def save_params(self, kind: str, params: Any, step: int) -> None:
    """Saves parameters to evaluate, under `checkpoint.BEST` or `FINAL`."""
    with self._saving(kind):
      self._run.check_owner()
      checkpoint_lib.save_params(
        self._run.workdir, kind, step, params, timeout=self._timeout
      )

  def wait(self, step: int) -> None:
    """Waits for the save of a step; raises SaveError if it failed."""
    with self._saving(f'save of step {step}'):
      self._checkpoints.wait()

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

  def _cost(self) -> float:
    """Returns the seconds for which saves have blocked the loop."""
    return self._run.goodput.seconds()['checkpoint']
