"""Guards: the progress and the time estimate of a running sweep are right."""

from etils import epath

from tests.sweep import fakes
from vit_jax.sweep import Sweep, status
from vit_jax.sweep.commands import Folders


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
