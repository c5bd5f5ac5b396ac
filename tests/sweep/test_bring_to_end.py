"""Guards: a sweep starts each due run once, and restarts it up to its limits.

The launcher here ends runs with scripted exit codes.
"""

import dataclasses
import re
import types

import pytest

from tests.sweep import fakes
from vit_jax.runtime import errors
from vit_jax.sweep import (
  Study,
  Sweep,
  bring_to_end,
  commands,
  state,
)


class Scripted:
  """Ends each run at its next poll, with its next scripted code or with 0."""

  interval = 0.0

  def __init__(self, where, codes=None, slots=2, survives=False):
    self.slots = slots
    self.survives = survives
    self.started, self.stopped, self.at_once = [], [], 0
    self._where = where
    self._codes = {name: list(each) for name, each in (codes or {}).items()}
    self._running = {}

  def start(self, run):
    self.started.append(run.name)
    self._running[run.name] = run
    self.at_once = max(self.at_once, len(self._running))
    return run.name

  def poll(self, handle):
    if handle in self.stopped:
      return 75
    codes = self._codes.get(handle, [])
    code = codes.pop(0) if codes else 0
    run = self._running.pop(handle, None)
    if code == 0 and run is not None:
      fakes.finish(self._where, run)
    return code

  def stop(self, handle):
    self.stopped.append(handle)


def _launch(where, launcher, sweep=None, restarts=20):
  return bring_to_end.Launch(
    sweep or Sweep([fakes.study()]), where, launcher, restarts
  )


def _failed(*words, **options):
  """Runs a sweep to its end; returns the names of the failed runs."""
  launch = _launch(*words, **options)
  launch.run()
  return launch.failed


CANDIDATES = [f'a/rate={rate}' for rate in fakes.HELD_OUT]
FINALS = [f'a/rate=0.01,seed={seed}' for seed in range(3)]


def test_all_runs_run_once_with_limited_concurrency(tmp_path):
  where = fakes.folders(tmp_path)
  launcher = Scripted(where)
  running = _launch(where, launcher)
  running.run()
  assert running.failed == []
  assert launcher.started == CANDIDATES + FINALS
  assert launcher.at_once == 2
  assert running.finished['a/rate=0.01,seed=1']['test/accuracy'] == 0.8
  # A second launcher has nothing left to do.
  again = Scripted(where)
  assert _failed(where, again) == []
  assert again.started == []


@pytest.mark.parametrize('code', [1, 2, 130])
def test_an_error_is_given_up_until_the_next_launch(tmp_path, code):
  where = fakes.folders(tmp_path)
  launcher = Scripted(where, {CANDIDATES[3]: [code]})
  # A candidate failed, so nothing is chosen and no final run starts.
  assert _failed(where, launcher) == [CANDIDATES[3]]
  assert launcher.started == CANDIDATES
  launcher = Scripted(where)
  assert _failed(where, launcher) == []
  assert launcher.started == [CANDIDATES[3], *FINALS]


@pytest.mark.parametrize(
  ('restarts', 'failed'), [(5, []), (4, CANDIDATES[1:2])]
)
def test_other_codes_restart_a_run_up_to_a_limit(tmp_path, restarts, failed):
  where = fakes.folders(tmp_path)
  launcher = Scripted(where, {CANDIDATES[1]: [75, 76, 77, -9, 134]})
  assert _failed(where, launcher, restarts=restarts) == failed
  assert launcher.started.count(CANDIDATES[1]) == restarts + 1


def test_a_stopped_launcher_stops_its_runs(tmp_path):
  where = fakes.folders(tmp_path)
  launcher = Scripted(where)
  launcher.poll = lambda handle: 75 if handle in launcher.stopped else None
  calls = iter([False, False, True])
  with pytest.raises(errors.PreemptedError, match='with 0 runs finished'):
    _launch(where, launcher).run(lambda: next(calls, True))
  assert launcher.stopped == CANDIDATES[:2]
  assert state.handles(tmp_path) == {}


def test_the_time_left_counts_runs_at_the_same_time(
  tmp_path, monkeypatch, capsys
):
  where = fakes.folders(tmp_path)
  rates = [10.0**-i for i in range(20)]
  sweep = Sweep([Study('a', fakes.study(rates=rates).candidates)])
  launcher = Scripted(where, slots=20)
  launch = _launch(where, launcher, sweep)
  began = bring_to_end.time.monotonic()
  clock = types.SimpleNamespace(monotonic=lambda: began + 50, strftime=str)
  monkeypatch.setattr(bring_to_end, 'time', clock)
  launch.run()
  seconds = re.search(
    r'\[1 of 20 done, .* about 0:00:(\d+)', capsys.readouterr().out
  )
  assert 25 < int(seconds[1]) < 50  # All started together, 50 s ago.


def test_a_launcher_does_not_wait_for_ever_for_runs_out_of_reach(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(bring_to_end, '_PATIENCE', 0.2)
  launcher = Scripted(fakes.folders(tmp_path))
  launcher.poll = lambda handle: None
  calls = iter([False, False, True])
  with pytest.raises(errors.PreemptedError):
    _launch(fakes.folders(tmp_path), launcher).run(lambda: next(calls, True))
  assert f'{CANDIDATES[0]} did not end' in capsys.readouterr().out


@pytest.mark.parametrize('survives', [True, False])
def test_runs_that_outlived_a_launcher_are_adopted(tmp_path, survives):
  where = fakes.folders(tmp_path)
  state.note_handles(tmp_path, {CANDIDATES[2]: CANDIDATES[2]})
  launcher = Scripted(where, survives=survives)
  launcher._running[CANDIDATES[2]] = fakes.study().candidates[2]
  _launch(where, launcher).run()
  started = launcher.started.count(CANDIDATES[2])
  assert started == (0 if survives else 1)
  assert state.handles(tmp_path) == {}


def test_runs_follow_those_whose_weights_they_start_from(tmp_path):
  where = fakes.folders(tmp_path)
  first, second = fakes.study().candidates[:2]
  second = dataclasses.replace(
    second, overrides={'init.checkpoint': f'run:{first.name}'}
  )
  sweep = Sweep([Study('a', finals=[second, first])])
  launcher = Scripted(where)
  assert _failed(where, launcher, sweep) == []
  assert launcher.started == [first.name, second.name]
  words = commands.main_flags(second, where)
  assert f'--config.init.checkpoint={where.workdir(first.name)}' in words
