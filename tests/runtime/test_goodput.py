"""Guards: the goodput categories sum to the wall time of all launches."""

import math
import types

import jax
import pytest

from vit_jax.runtime import goodput as goodput_lib

COMPILE = '/jax/core/compile/backend_compile_duration'


class Clock:
  """A clock that the test sets, used for both clocks of `Goodput`."""

  def __init__(self, seconds=1000.0):
    self.seconds = seconds

  def __call__(self):
    return self.seconds


@pytest.fixture
def clock(monkeypatch):
  clock = Clock()
  clocks = types.SimpleNamespace(time=clock, monotonic=clock)
  monkeypatch.setattr(goodput_lib, 'time', clocks)
  return clock


def _start(carried=None):
  goodput = goodput_lib.Goodput()
  goodput.go_on_from([carried or {}, {}])
  return goodput


def _seconds(goodput):
  values = goodput.metrics()
  return {
    name: values[f'goodput/{name}_seconds']
    for name in goodput_lib.CATEGORIES
    if values[f'goodput/{name}_seconds']
  }


def _compile(clock, seconds):
  """Records an event like JAX, after its time has passed."""
  clock.seconds += seconds
  jax.monitoring.record_event_duration_secs(COMPILE, seconds, fun_name='f')


def test_each_category(clock):
  with _start() as goodput:
    clock.seconds += 7  # Start-up.
    goodput.start_training()
    clock.seconds += 100
    goodput.add('input', 20)
    with goodput.phase('evaluation'):
      clock.seconds += 5
    with goodput.phase('checkpoint'):
      clock.seconds += 3
    clock.seconds += 1
    assert _seconds(goodput) == {
      'steps': 81,
      'input': 20,
      'evaluation': 5,
      'checkpoint': 3,
      'restart': 7,
    }


def test_compilation_by_jax_is_counted():
  with goodput_lib.Goodput() as goodput:
    goodput.start_training()
    assert 'compilation' not in _seconds(goodput)
    jax.jit(lambda x: x * 3 + 1)(2.0)
    first = _seconds(goodput)['compilation']
    assert 0 < first < 60
  # The context is closed: its listener is gone.
  jax.jit(lambda x: x * 5 + 1)(2.0)
  assert _seconds(goodput)['compilation'] == first


def test_the_categories_always_sum_to_the_wall_time(clock):
  carried = {}
  begin = clock.seconds
  for launch in range(3):
    clock.seconds += 0.7 * launch  # Down time between launches.
    with _start(carried) as goodput:
      clock.seconds += 0.1
      _compile(clock, 0.2)
      goodput.start_training()
      for step in range(50):
        clock.seconds += 0.013 * (step + 1)
        goodput.add('input', 0.011 * step)
        with goodput.phase('evaluation'):
          _compile(clock, 0.017)
          with goodput.phase('checkpoint'):
            clock.seconds += 0.019
          clock.seconds += 0.023
        carried = goodput.metrics()
      # Wrong measurements: negative time, and more time than has passed.
      for seconds in (-1e6, 1e6):
        goodput.add('input', seconds)
        carried = goodput.metrics()
        assert min(carried.values()) >= 0
  total = sum(
    carried[f'goodput/{name}_seconds'] for name in goodput_lib.CATEGORIES
  )
  assert total == pytest.approx(clock.seconds - begin, abs=1e-3)
  assert all(math.isfinite(value) for value in carried.values())


def test_a_launch_continues_from_the_last_kept_row(clock):
  with _start() as goodput:
    goodput.start_training()
    clock.seconds += 60
    row = {'step': 6.0} | goodput.metrics()
    clock.seconds += 30  # These steps and this evaluation will be repeated.
    with goodput.phase('evaluation'):
      clock.seconds += 5
  assert row['unix_time'] == 1060
  clock.seconds += 300  # Down time.
  with _start(row) as goodput:
    clock.seconds += 7
    goodput.start_training()
    clock.seconds += 140
    assert _seconds(goodput) == {'steps': 200, 'restart': 30 + 5 + 300 + 7}
    values = goodput.metrics()
    assert values['goodput/restarts'] == 1
    assert values['goodput/steps_share'] == pytest.approx(200 / 542)


# ---- Profiles ----------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
  calls = []
  for name in ('start_trace', 'stop_trace'):
    monkeypatch.setattr(
      jax.profiler, name, lambda *_, name=name: calls.append(name)
    )
  monkeypatch.setattr(
    jax, 'block_until_ready', lambda state: calls.append(f'wait for {state}')
  )
  return calls


def _drive(calls, workdir, run, **section):
  with goodput_lib.Profiler(workdir, **section) as profiler:
    for step in run:
      profiler.before(step, f'state {step - 1}')
      calls.append(step)
      profiler.after(step, f'state {step}')


TRACED = [
  'wait for state 3',
  'start_trace',
  4,
  5,
  'wait for state 5',
  'stop_trace',
]


def test_traces_the_configured_steps(calls, tmp_path):
  _drive(calls, tmp_path, range(1, 8), start_step=3, steps=2)
  assert calls == [1, 2, 3, *TRACED, 6, 7]
