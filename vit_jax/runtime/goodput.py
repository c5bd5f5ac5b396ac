"""Accounts for the wall time of a run, over all its launches.

Every second from the run's first launch to its last row of metrics is in one
of these categories:

- `steps`: training after `start_training`, if no other category applies.
- `input`: the loop waited for a batch.
- `evaluation`: the loop was in the phase of that name.
- `checkpoint`: a save blocked the loop; the background part of a save does not
  count.
- `compilation`: the loop's thread traced, lowered or compiled a function, or
  read it from the compilation cache, in any phase; or it waited for the step,
  which compiles in another thread.
- `restart`: everything else: start-up until `start_training`, restoring, the
  down time between launches, and steps that had to be repeated.

A launch continues from the row of metrics at the step that it resumes from. All
time since that row was written counts as `restart`, because the later steps,
evaluations and saves were lost or repeated.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax

from vit_jax.runtime import progress

CATEGORIES = (
  'steps',
  'input',
  'evaluation',
  'checkpoint',
  'compilation',
  'restart',
)
DEVICES = 'goodput/devices'
# The events of tracing, lowering and compiling. The last one includes reading
# from the persistent cache, so JAX's cache retrieval event is left out.
_EVENTS = '/jax/core/compile/'


def carried(rows: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
  """Returns the last row that `Goodput` can continue from; {} if none."""
  return next((row for row in reversed(list(rows)) if 'unix_time' in row), {})


class Goodput:
  """Counts a launch's seconds by category and adds those of earlier launches.

  Compilation counts while the context is open, in the thread that opened it.
  Only that thread may call the methods.
  """

  def __init__(
    self,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts to count; time before `start_training` is `restart`.

    Args:
      now: returns seconds since 1970, for the time between launches. If this
        clock was set back in between, that time counts as zero.
      clock: returns monotonic seconds, for the time within a launch.
    """
    self._now, self._clock = now, clock
    self._launched = now()
    self._before = dict.fromkeys(CATEGORIES, 0.0)
    self._restarts = 0
    self._seconds = dict.fromkeys(CATEGORIES, 0.0)
    self._phases = ['restart']
    self._mark = clock()
    self._thread = threading.get_ident()
    # When each compilation ended, and how many seconds it took.
    self._compiled: list[tuple[float, float]] = []
    self._open = True
    # The run's current number of devices; with the seconds, it gives the cost.
    self.devices = 0

  def __enter__(self):
    self._thread = threading.get_ident()
    jax.monitoring.register_event_duration_secs_listener(self._on_event)
    return self

  def __exit__(self, *_):
    self._settle()
    self._open = False
    # Other code may have cleared all listeners in between, which JAX allows.
    with contextlib.suppress(AssertionError, ValueError):
      jax.monitoring.unregister_event_duration_listener(self._on_event)

  def go_on_from(self, row: Mapping[str, float]) -> None:
    """Adds the earlier launches' time, once the step to resume from is known.

    Args:
      row: the last row of `metrics.jsonl` that is kept (see `carried`), with
        the keys of `metrics`; {} for a new run.
    """
    if 'unix_time' not in row:
      return
    self._before = {name: row.get(key(name), 0.0) for name in CATEGORIES}
    self._restarts = round(row.get('goodput/restarts', 0)) + 1
    self._before['restart'] += max(self._launched - row['unix_time'], 0.0)

  def start_training(self) -> None:
    """Ends the start-up: from now on, time outside of all phases is `steps`."""
    self._settle()
    self._phases[0] = 'steps'

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Counts the time inside for `name`; an inner phase takes precedence."""
    self._settle()
    self._phases.append(name)
    try:
      yield
    finally:
      self._settle()
      self._phases.pop()

  def add(self, name: str, seconds: float) -> None:
    """Counts `seconds` up to now for `name`, which were measured elsewhere.

    Moves the seconds from the current phase (`steps` outside of all phases), at
    most as many as this launch has spent in that phase.
    """
    self._settle()
    self._move(name, seconds)

  def metrics(self) -> dict[str, float]:
    """Returns the totals over all launches, for a row of `metrics.jsonl`.

    Returns:
      `goodput/NAME_seconds` of each category, `goodput/steps_share` (0..1),
      `goodput/restarts`, `goodput/devices`, and `unix_time`, from which the
      next launch computes how much time was lost.
    """
    seconds = self._totals()
    result = {key(name): value for name, value in seconds.items()}
    result['goodput/steps_share'] = _share(seconds, 'steps')
    result['goodput/restarts'] = float(self._restarts)
    result[DEVICES] = float(self.devices)
    result['unix_time'] = self._now()
    return result

  def summary(self) -> str:
    """Returns one line: the total time and the share of each category."""
    seconds = self._totals()
    rest = ', '.join(
      f'{name} {100 * _share(seconds, name):.1f}%' for name in CATEGORIES[1:]
    )
    plural = '' if self._restarts == 1 else 's'
    pauses = ', the pauses between launches included' * bool(self._restarts)
    return (
      f'{100 * _share(seconds, "steps"):.1f}% of'
      f' {progress.duration(sum(seconds.values()))} in steps; {rest}{pauses};'
      f' {self._restarts} restart{plural}'
    )

  def _totals(self) -> dict[str, float]:
    self._settle()
    return {
      name: self._before[name] + self._seconds[name] for name in CATEGORIES
    }

  def _settle(self) -> None:
    """Counts the time since the last call for the current phase."""
    if not self._open:
      return
    mark = self._clock()
    # Never below zero, in case the given clock can be set back.
    self._seconds[self._phases[-1]] += max(mark - self._mark, 0.0)
    self._mark = mark

  def _move(self, name: str, seconds: float) -> None:
    source = self._phases[-1]
    seconds = min(max(seconds, 0.0), self._seconds[source])
    self._seconds[source] -= seconds
    self._seconds[name] += seconds

  def _on_event(self, event: str, seconds: float, **_) -> None:
    """Counts the event that just ended, without the events nested in it.

    A function that is compiled while another is traced has its own event, which
    comes before the outer one.
    """
    own = self._open and threading.get_ident() == self._thread
    if not own or not event.startswith(_EVENTS):
      return
    self._settle()
    begin, inside = self._mark - seconds, 0.0
    while self._compiled and self._compiled[-1][0] > begin:
      inside += self._compiled.pop()[1]
    self._compiled.append((self._mark, seconds))
    self._move('compilation', seconds - inside)


def key(name: str) -> str:
  """Returns the name of the metric with a category's seconds."""
  return f'goodput/{name}_seconds'


def _share(seconds: Mapping[str, float], name: str) -> float:
  total = sum(seconds.values())
  return seconds[name] / total if total else 0.0
