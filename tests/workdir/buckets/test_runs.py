"""Guards: a run in a bucket that fails ends like a run on a local disk."""

import signal
import time

import pytest
from etils import epath

from tests import commands
from tests.faults import launching
from tests.tiny_run import assert_same_state, rows_but_times
from vit_jax.workdir import ownership

pytestmark = pytest.mark.gate

RUN = epath.Path('gs://bucket/run')
STEPS = 20
LAYOUT = launching.Layout(1, 1, STEPS)


class _Run:
  """A run in its own process."""

  def __init__(self, bucket, workdir, folder):
    output = folder / f'{time.monotonic()}'
    output.mkdir()
    self._started = commands.shared().start(
      *(output, 'tests.workdir.buckets.program'),
      f'--workdir={workdir}',
      *launching.arguments(LAYOUT),
      '--config.log.every=1',
      '--config.log.tensorboard=true',
      '--config.evals.test.every=10',
      '--config.checkpoint.best=test/accuracy',
      '--config.checkpoint.keep=1',  # The run deletes some checkpoints.
      '--compilation_cache=none',
      XLA_FLAGS=launching._XLA_FLAGS.format(devices=1),
      **bucket.environment(),
    )
    self.wait = self._started.wait

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.kill()

  def kill(self):
    self._started.send(signal.SIGKILL)
    self.wait(30)

  @property
  def text(self):
    return self._started.out + self._started.err

  def wait_for_text(self, words, seconds=120):
    end = time.monotonic() + seconds
    while words not in self.text:
      assert self._started.poll() is None, self.text
      assert time.monotonic() < end, self.text
      time.sleep(0.02)


def test_a_run_with_outages_and_a_kill_ends_like_an_undisturbed_one(
  bucket, tmp_path
):
  local = tmp_path / 'undisturbed'
  with _Run(bucket, local, tmp_path) as run:
    assert run.wait(240) == 0, run.text
  with _Run(bucket, RUN, tmp_path) as run:
    for step in (2, 9):  # Before and in a save.
      run.wait_for_text(f'step {step:2d}/{STEPS}')
      bucket.fail(3)
    run.wait_for_text(f'step 12/{STEPS}')
    run.kill()
  with _Run(bucket, RUN, tmp_path) as run:
    run.wait_for_text('Resuming')
    with pytest.raises(ValueError, match='is in use by'), ownership.held(RUN):
      pass
    run.wait_for_text(f'step {STEPS}/{STEPS}')
    bucket.fail(3)
    assert run.wait(240) == 0, run.text
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
