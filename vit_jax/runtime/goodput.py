"""Where the time of a run goes: over all its launches, and within a step.

`Goodput` accounts for the wall time, `Profiler` records a profile of chosen
steps, for TensorBoard's or Perfetto's viewer.

Every second from the run's first launch to its last row of metrics is in one
of these categories:

- `steps`: training after `start_training`, if no other category applies.
- `input`: the loop waited for a batch.
- `evaluation`: the loop was in the phase of that name.
- `checkpoint`: a save blocked the loop; the background part of a save does not
  count.
- `compilation`: the loop's thread compiled a function, or read it from the
  compilation cache, in any phase; or it waited for the step, which compiles in
  another thread.
- `restart`: everything else: start-up until `start_training`, restoring, the
  down time between launches, and steps that had to be repeated.

A launch continues from the row of metrics at the step that it resumes from. All
time since that row was written counts as `restart`, because the later steps,
evaluations and saves were lost or repeated.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging
from etils import epath

from vit_jax.runtime import printable

CATEGORIES = (
  'steps',
  'input',
  'evaluation',
  'checkpoint',
  'compilation',
  'restart',
)
DEVICES = 'goodput/devices'
# JAX's event of a compilation; it includes reading from the persistent cache.
_COMPILED = '/jax/core/compile/backend_compile_duration'


class Goodput:
  """Counts a launch's seconds by category and adds those of earlier launches.

  Compilation counts while the context is open, in the thread that opened it.
  Only that thread may call the methods.
  """

  def __init__(self):
    """Starts to count; time before `start_training` is `restart`.

    If the machine's clock was set back between launches, the time between them
    counts as zero.
    """
    self._launched, self._mark = time.time(), time.monotonic()
    self._restarts = 0
    self._seconds = dict.fromkeys(CATEGORIES, 0.0)
    self._phases = ['restart']
    # The run's current number of devices; with the seconds, it gives the cost.
    self.devices = 0

  def __enter__(self):
    self._thread = threading.get_ident()
    jax.monitoring.register_event_duration_secs_listener(self._on_event)
    return self

  def __exit__(self, *_):
    # Other code may have cleared all listeners in between, which JAX allows.
    with contextlib.suppress(AssertionError, ValueError):
      jax.monitoring.unregister_event_duration_listener(self._on_event)

  def go_on_from(self, rows: Sequence[Mapping[str, float]]) -> None:
    """Adds the earlier launches' time, once the step to resume from is known.

    Args:
      rows: the rows of `metrics.jsonl` that are kept, with the keys of
        `metrics`; [] for a new run.
    """
    row = next((row for row in reversed(rows) if 'unix_time' in row), None)
    if row is None:
      return
    for name in CATEGORIES:
      self._seconds[name] += row.get(key(name), 0.0)
    self._restarts = round(row.get('goodput/restarts', 0)) + 1
    self._seconds['restart'] += max(self._launched - row['unix_time'], 0.0)

  def start_training(self) -> None:
    """Ends the start-up: from now on, time outside of all phases is `steps`."""
    self.seconds()
    self._phases[0] = 'steps'

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Counts the time inside for `name`; an inner phase takes precedence."""
    self.seconds()
    self._phases.append(name)
    try:
      yield
    finally:
      self.seconds()
      self._phases.pop()

  def add(self, name: str, seconds: float) -> None:
    """Counts `seconds` up to now for `name`, which were measured elsewhere.

    Moves the seconds from the current phase (`steps` outside of all phases).
    """
    source = self._phases[-1]
    seconds = min(max(seconds, 0.0), self.seconds()[source])
    self._seconds[source] -= seconds
    self._seconds[name] += seconds

  def seconds(self) -> dict[str, float]:
    """Returns the seconds of each category so far, over all launches."""
    mark = time.monotonic()
    self._seconds[self._phases[-1]] += mark - self._mark
    self._mark = mark
    return dict(self._seconds)

  def metrics(self) -> dict[str, float]:
    """Returns the totals over all launches, for a row of `metrics.jsonl`.

    Returns:
      `goodput/NAME_seconds` of each category, `goodput/steps_share` (0..1),
      `goodput/restarts`, `goodput/devices`, and `unix_time`, from which the
      next launch computes how much time was lost.
    """
    seconds = self.seconds()
    return {key(name): value for name, value in seconds.items()} | {
      'goodput/steps_share': _share(seconds, 'steps'),
      'goodput/restarts': float(self._restarts),
      DEVICES: float(self.devices),
      'unix_time': time.time(),
    }

  def summary(self) -> str:
    """Returns one line: the total time and the share of each category."""
    seconds = self.seconds()
    shares = (f'{name} {100 * _share(seconds, name):.1f}%' for name in seconds)
    return (
      f'{printable.duration(sum(seconds.values()))} with'
      f' {self._restarts} restart(s): {", ".join(shares)}'
    )

  def _on_event(self, event: str, seconds: float, **_) -> None:
    if event == _COMPILED and threading.get_ident() == self._thread:
      self.add('compilation', seconds)


def key(name: str) -> str:
  """Returns the name of the metric with a category's seconds."""
  return f'goodput/{name}_seconds'


def _share(seconds: Mapping[str, float], name: str) -> float:
  total = sum(seconds.values())
  return seconds[name] / total if total else 0.0


class Profiler:
  """Traces the steps `start_step` + 1 ... `start_step` + `steps`.

  The host dispatches steps ahead of the devices. It waits for the devices
  before the first traced step and after the last one, so that the trace
  contains exactly these steps.
  """

  def __init__(self, workdir: epath.Path, *, start_step: int, steps: int):
    self._directory = workdir / 'profile'
    self._first = start_step + 1
    self._last = start_step + steps
    self._running = False

  def before(self, step: int, state: Any) -> None:
    """Call this before each step, with the step's input arrays."""
    if self._first <= step <= self._last and not self._running:
      jax.block_until_ready(state)
      jax.profiler.start_trace(str(self._directory))
      self._running = True

  def after(self, step: int, state: Any) -> None:
    """Call this after each step, with the step's output arrays."""
    if self._running and step >= self._last:
      jax.block_until_ready(state)
      self._stop()

  def _stop(self) -> None:
    jax.profiler.stop_trace()
    self._running = False
    logging.info('Profiler trace written to %s.', self._directory)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._running:
      self._stop()
