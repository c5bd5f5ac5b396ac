"""Guards: the progress and the time estimate of a running sweep are right."""

import io
import types

import pytest
from etils import epath

from tests.sweep import fakes
from vit_jax.sweep import Run, Study, Sweep, status
from vit_jax.sweep.commands import Folders


@pytest.mark.parametrize(
  'seconds, text',
  [(5, '5 s'), (59.6, '60 s'), (60, '1 min'), (7500, '2 h 5 min')],
)
def test_duration(seconds, text):
  assert status.duration(seconds) == text


def _snapshot(path, **changes):
  study = fakes.study()
  finished = {run.name: fakes.measured(run) for run in study.candidates[:2]}
  values = dict(
    finished=finished,
    busy=['a/rate=0.1'],
    failed=[],
    seconds={'a/rate=0.001': 100.0, 'a/rate=0.01': 140.0},
    slots=2,
    steps={},
  )
  return status.snapshot(
    Sweep([study]), Folders(path, epath.Path(path)), **values | changes
  )


def test_a_snapshot(tmp_path):
  run = tmp_path / 'runs/a/rate=0.1'
  run.mkdir(parents=True)
  (run / 'metrics.jsonl').write_text('{"step": 50}\n{"step": 1200, "x": 1}\n')
  snapshot = _snapshot(tmp_path)
  assert snapshot.rows == [
    ('a/rate=0.001', 'finished', 'validation 50.00%'),
    ('a/rate=0.01', 'finished', 'validation 75.00%'),
    ('a/rate=0.1', 'running', 'step 1,200'),
    ('a/rate=1.0', 'waiting', ''),
  ]
  # 5 of 7 runs are left, each takes 120 s, and two run at a time.
  assert snapshot.summary() == '2 of 7 done, 1 running, about 5 min left'
  failed = _snapshot(tmp_path, failed=['a/rate=1.0'], seconds={})
  assert failed.summary() == '2 of 7 done, 1 running, 1 failed'
  (run / 'metrics.jsonl').write_text('{"step": 50}\n{"st')
  assert _snapshot(tmp_path).rows[2] == ('a/rate=0.1', 'running', '')


def test_time_left_estimates_dependent_runs_separately(tmp_path):
  names = ('a', 'b', 'c', 'd')
  needs = {'c': {'init.checkpoint': 'run:a'}, 'd': {'init.checkpoint': 'run:a'}}
  runs = [Run(name, 'config.py', needs.get(name, {})) for name in names]
  sweep = Sweep([Study('s', finals=runs)])

  def left(seconds, steps=types.MappingProxyType({})):
    snapshot = status.snapshot(
      sweep,
      Folders(tmp_path, epath.Path(tmp_path)),
      finished={name: {} for name in seconds},
      busy=['b'],
      failed=[],
      seconds=seconds,
      slots=1,
      steps=steps,
    )
    return snapshot.seconds_left

  # b takes as long as a. So do c and d, until one of them is finished.
  assert left({'a': 100.0}) == 300
  assert left({'a': 100.0, 'c': 10.0}) == 110
  # A tenth of the steps is a tenth of the time.
  steps = {'a': 800, 'b': 400, 'c': 80, 'd': 160}
  assert left({'a': 100.0}, steps) == 50 + 10 + 20
  assert left({'a': 100.0, 'c': 20.0}, steps) == 50 + 40
  # Two lengths give the start-up time and the time per step: 20 s and 0.1 s.
  assert left({'a': 100.0, 'b': 60.0}, steps) == pytest.approx(28 + 36)
  # The time per step must not be negative, and neither must the start-up time.
  assert left({'a': 40.0, 'b': 60.0}, steps) == pytest.approx(2 * 50)
  assert left({'a': 110.0, 'b': 10.0}, steps) == pytest.approx(8 + 16)
  # If some steps of a kind are not known, each of its runs takes the mean.
  assert left({'a': 100.0}, steps | {'d': 0}) == 50 + 200
  some = {'a': 0, 'b': 0, 'c': 80, 'd': 160}
  assert left({'a': 100.0, 'c': 20.0}, some) == 100 + 40
  assert left({'elsewhere': 100.0}, steps) is None


def test_lines_for_a_log(capsys, tmp_path):
  view = status.view()
  assert isinstance(view, status.Lines)  # The output here is no terminal.
  view.show(_snapshot(tmp_path))
  assert capsys.readouterr().out == ''
  view.say('one')
  view.say('two')
  view.show(_snapshot(tmp_path))
  first, second = capsys.readouterr().out.splitlines()
  assert first.endswith(' one')
  assert second.endswith(' two  [2 of 7 done, 1 running, about 5 min left]')
  view.close()
  assert capsys.readouterr().out == ''


def test_a_live_table(tmp_path):
  run = tmp_path / 'runs/a/rate=0.1'
  run.mkdir(parents=True)
  (run / 'metrics.jsonl').write_text('{"step": 9}\n')
  rich_console = pytest.importorskip('rich.console')
  text = io.StringIO()
  view = status.Live(
    rich_console.Console(
      file=text, width=80, height=9, force_terminal=True, color_system=None
    )
  )
  view.show(_snapshot(tmp_path))
  view.say('a/rate=0.01 finished')
  view.say('a/rate=0.1 ended with exit code 1')
  view.close()
  shown = text.getvalue()
  assert 'a/rate=0.1 ended with exit code 1' in shown
  assert 'a/rate=0.01 finished' not in shown
  assert '2 of 7 done, 1 running' in shown
  assert shown.index('step 9') < shown.index('validation 50.00%')
