"""Guards: a run in a bucket that fails ends like a run on a local disk."""

import pathlib
import tempfile

import pytest
from etils import epath

from tests import several
from tests.faults import launching
from tests.tiny_run import assert_same_state, rows_but_times
from vit_jax.workdir import ownership
from vit_jax.workdir.buckets import lease

pytestmark = pytest.mark.gate

RUN = epath.Path('gs://bucket/run')
STEPS = 20
LAYOUT = launching.Layout(1, 1, STEPS)


def _start(bucket, workdir, folder):
  """Starts a run in its own process."""
  words = [
    *(f'--workdir={workdir}', *launching.arguments(LAYOUT)),
    '--config.log.every=1',
    '--config.log.tensorboard=true',
    '--config.evals.test.every=10',
    '--config.checkpoint.best=test/accuracy',
    '--config.checkpoint.keep=1',  # The run deletes some checkpoints.
    f'--compilation_cache={folder}/cache',
  ]
  return several.Several(
    pathlib.Path(tempfile.mkdtemp(dir=folder)),
    *('tests.workdir.buckets.program', [words]),
    **bucket.environment(),
  )


def test_a_run_with_outages_and_a_kill_ends_like_an_undisturbed_one(
  bucket, tmp_path, monkeypatch
):
  monkeypatch.setattr(lease, 'EVERY', 1.0)  # To look before the run ends.
  local = tmp_path / 'undisturbed'
  with _start(bucket, local, tmp_path) as run:
    assert run.codes(240) == [0], run.output(0)
  with _start(bucket, RUN, tmp_path) as run:
    for step in (2, 9):  # Before and in a save.
      run.wait_for(f'step {step:2d}/{STEPS}', 120)
      bucket.fail(3)
    run.wait_for(f'step 12/{STEPS}', 120)
  # It has been killed.
  with _start(bucket, RUN, tmp_path) as run:
    run.wait_for('Resuming', 120)
    with pytest.raises(ValueError, match='is in use by'), ownership.held(RUN):
      pass
    run.wait_for(f'step {STEPS}/{STEPS}', 120)
    bucket.fail(3)
    assert run.codes(240) == [0], run.output(0)
  assert bucket.refused > 10
  for part in ('', 'best', 'final'):
    assert_same_state(RUN / part if part else RUN, local / part)
  assert rows_but_times(RUN) == rows_but_times(local)
  assert (RUN / 'DONE').read_text() == f'{STEPS}\n'
  # A reader that sees DONE must see all rows.
  written = bucket.generation('run/metrics.jsonl')
  assert int(written) < int(bucket.generation('run/DONE'))
  names = {path.name for path in RUN.iterdir()}
  others = {path.name for path in local.iterdir()}
  events = {name for name in names | others if name.startswith('events')}
  # A run deletes its lease at the end, and a bucket has no train.log.
  assert names - events == others - events - {'owner.json', 'train.log'}
