"""Guards: a profile holds the chosen steps, with all of their device work."""

import jax
import pytest

from vit_jax.runtime import profiling


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
  with profiling.Profiler(workdir, **section) as profiler:
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


def test_a_run_resumed_within_the_traced_steps_traces_the_rest(calls, tmp_path):
  _drive(calls, tmp_path, range(5, 7), start_step=3, steps=2)
  assert calls == ['wait for state 4', 'start_trace', *TRACED[3:], 6]
