"""Guards: a sweep starts each due run once, and restarts it up to its limits.

The launcher here ends runs with scripted exit codes.
"""

import dataclasses

import pytest

from tests.sweep import fakes
from vit_jax.runtime import errors
from vit_jax.sweep import (
  Study,
  Sweep,
  bring_to_end,
  commands,
  make_run,
  schedule,
  state,
  status,
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


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
  monkeypatch.setattr(bring_to_end, '_PAUSE', 0.0)


def _launch(where, launcher, sweep=None, view=None, steps=None, **limits):
  return bring_to_end.Launch(
    sweep or Sweep([fakes.study()]),
    where,
    launcher,
    schedule.Limits(**limits),
    view or status.View(),
    steps or {},
  )


CANDIDATES = [f'a/rate={rate}' for rate in fakes.HELD_OUT]
FINALS = [f'a/rate=0.01,seed={seed}' for seed in range(3)]


def test_all_runs_run_once_with_limited_concurrency(tmp_path):
  where = fakes.folders(tmp_path)
  launcher = Scripted(where)
  running = _launch(where, launcher)
  assert running.run() == []
  assert launcher.started == CANDIDATES + FINALS
  assert launcher.at_once == 2
  assert running.finished['a/rate=0.01,seed=1']['test/accuracy'] == 0.8
  # A second launcher has nothing left to do.
  again = Scripted(where)
  assert _launch(where, again).run() == []
  assert again.started == []


def test_finished_runs_are_not_started(tmp_path):
  where = fakes.folders(tmp_path)
  for run in fakes.study().candidates[:3]:
    fakes.finish(where, run)
  launcher = Scripted(where)
  _launch(where, launcher).run()
  assert launcher.started == CANDIDATES[3:] + FINALS


def test_failed_runs_are_retried_and_then_given_up(tmp_path):
  where = fakes.folders(tmp_path)
  codes = {CANDIDATES[0]: [1, 2], CANDIDATES[3]: [1, 1, 1, 1]}
  launcher = Scripted(where, codes)
  assert _launch(where, launcher, retries=2).run() == [CANDIDATES[3]]
  counts = {name: launcher.started.count(name) for name in launcher.started}
  # A candidate failed, so nothing is chosen and no final run starts.
  assert counts == dict(zip(CANDIDATES, (3, 1, 1, 3), strict=True))
  # The next launcher tries again.
  launcher = Scripted(where, {CANDIDATES[3]: [1]})
  assert _launch(where, launcher, retries=2).run() == []
  assert launcher.started == [CANDIDATES[3]] * 2 + FINALS


def test_preempted_runs_go_on_without_counting_as_failures(tmp_path):
  where = fakes.folders(tmp_path)
  codes = {CANDIDATES[1]: [75, 76, 77, -9, -15, 1]}
  launcher = Scripted(where, codes)
  assert _launch(where, launcher, retries=1, restarts=5).run() == []
  assert launcher.started.count(CANDIDATES[1]) == 7
  where = fakes.folders(tmp_path / 'fewer')
  launcher = Scripted(where, codes)
  failed = _launch(where, launcher, retries=1, restarts=4).run()
  assert failed == [CANDIDATES[1]]


def test_a_stopped_launcher_stops_its_runs(tmp_path):
  where = fakes.folders(tmp_path)
  launcher = Scripted(where)
  launcher.poll = lambda handle: 75 if handle in launcher.stopped else None
  calls = iter([False, False, True])
  with pytest.raises(errors.PreemptedError, match='with 0 runs finished'):
    _launch(where, launcher).run(lambda: next(calls, True))
  assert launcher.stopped == CANDIDATES[:2]
  assert state.Events(tmp_path).attempts[CANDIDATES[0]].restarts == 1


@pytest.mark.parametrize('survives', [True, False])
def test_runs_that_outlived_a_launcher_are_adopted(tmp_path, survives):
  where = fakes.folders(tmp_path)
  events = state.Events(tmp_path)
  events.started(CANDIDATES[2], CANDIDATES[2])
  events.close()
  launcher = Scripted(where, survives=survives)
  launcher._running[CANDIDATES[2]] = fakes.study().candidates[2]
  _launch(where, launcher).run()
  started = launcher.started.count(CANDIDATES[2])
  assert started == (0 if survives else 1)


def test_runs_with_equal_compilations_do_not_start_at_the_same_time(tmp_path):
  where = fakes.folders(tmp_path)
  runs = [
    make_run('a', config, {'rate': rate, 'seed': seed}, seed=seed, rate=rate)
    for config, rate in (('x.py', 1), ('x.py', 2))
    for seed in range(2)
  ]
  launcher = Scripted(where)
  sweep = Sweep([Study(run.name, finals=[run]) for run in runs])
  _launch(where, launcher, sweep).run()
  assert launcher.started == [
    *('a/seed=0,rate=1', 'a/seed=0,rate=2', 'a/seed=1,rate=1'),
    'a/seed=1,rate=2',
  ]


def test_a_candidate_without_a_metric_ends_the_sweep(tmp_path):
  where = fakes.folders(tmp_path)
  run = fakes.study().candidates[0]
  fakes.finish(where, run, {'test/accuracy': 1.0})
  with pytest.raises(ValueError, match=r'a/rate=0.001 has no finite'):
    _launch(where, Scripted(where)).run()


def test_runs_follow_those_whose_weights_they_start_from(tmp_path):
  where = fakes.folders(tmp_path)
  first, second = fakes.study().candidates[:2]
  second = dataclasses.replace(
    second, overrides={'init.checkpoint': f'run:{first.name}'}
  )
  sweep = Sweep([Study('a', finals=[second, first])])
  launcher = Scripted(where)
  assert _launch(where, launcher, sweep).run() == []
  assert launcher.started == [first.name, second.name]
  words = commands.main_flags(second, where)
  assert f'--config.init.checkpoint={where.workdir(first.name)}' in words
