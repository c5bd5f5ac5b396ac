"""Guards: a run in a bucket that fails ends like a run on a local disk."""

import os
import signal
import subprocess
import time

import pytest
from etils import epath

from tests.faults import launching
from tests.tiny_run import assert_same_state, rows_but_times
from vit_jax.workdir import metrics

pytestmark = pytest.mark.gate

RUN = epath.Path('gs://bucket/run')
STEPS = 20
LAYOUT = launching.Layout(1, 1, STEPS)


class _Run(subprocess.Popen):
  """A run in its own process; its output is in a file."""

  def __init__(self, bucket, workdir, folder, *extra):
    words = launching.command(LAYOUT, workdir, (), nan_step=0)
    self._path = folder / f'{time.monotonic()}.txt'
    with self._path.open('w') as file:
      super().__init__(
        [
          *(words[0], '-m', 'tests.workdir.buckets.program', *words[3:]),
          '--config.log.every=1',
          '--config.log.tensorboard=true',
          '--config.evals.test.every=10',
          '--config.checkpoint.best=test/accuracy',
          '--config.checkpoint.keep=1',  # The run deletes some checkpoints.
          '--compilation_cache=none',
          *extra,
        ],
        cwd=launching.ROOT,
        env=os.environ
        | bucket.environment()
        | {
          'JAX_PLATFORMS': 'cpu',
          'XLA_FLAGS': launching._XLA_FLAGS.format(devices=1),
        },
        stdout=file,
        stderr=subprocess.STDOUT,
      )

  def __exit__(self, *_):
    self.kill()
    self.wait()

  @property
  def text(self):
    return self._path.read_text()

  def wait_for_text(self, words, seconds=120):
    end = time.monotonic() + seconds
    while words not in self.text:
      assert self.poll() is None, self.text
      assert time.monotonic() < end, self.text
      time.sleep(0.02)


@pytest.fixture(scope='module')
def undisturbed(server, tmp_path_factory):
  """Returns the work directory of a run on a local disk."""
  workdir = tmp_path_factory.mktemp('undisturbed')
  server.reset()
  with _Run(server, workdir, tmp_path_factory.mktemp('out')) as run:
    assert run.wait(240) == 0, run.text
  return workdir


def _assert_same_end(bucket, undisturbed):
  assert_same_state(RUN, undisturbed)
  for kind in ('best', 'final'):
    assert_same_state(RUN / kind, undisturbed / kind)
  assert rows_but_times(RUN) == rows_but_times(undisturbed)
  assert (RUN / 'DONE').read_text() == f'{STEPS}\n'
  # A reader that sees DONE must see all rows.
  written = bucket.generation('run/metrics.jsonl')
  assert int(written) < int(bucket.generation('run/DONE'))
  names = {path.name for path in RUN.iterdir()}
  local = {path.name for path in undisturbed.iterdir()}
  events = {name for name in names | local if name.startswith('events')}
  # A run deletes its lease at the end, and a bucket has no train.log.
  assert names - events == local - events - {'owner.json', 'train.log'}


def test_outages_change_nothing(bucket, undisturbed, tmp_path):
  with _Run(bucket, RUN, tmp_path) as run:
    for step in (2, 9, STEPS):  # Before and in a save, and at the end.
      run.wait_for_text(f'step {step:2d}/{STEPS}')
      bucket.fail(3)
    assert run.wait(240) == 0, run.text
  assert bucket.refused > 10
  _assert_same_end(bucket, undisturbed)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_ended_goes_on(bucket, undisturbed, tmp_path, number):
  # The bucket has only the rows before a checkpoint, which the next run needs.
  with _Run(bucket, RUN, tmp_path) as run:
    run.wait_for_text(f'step 12/{STEPS}')
    run.send_signal(number)
    assert run.wait(240) == {signal.SIGTERM: 75}.get(number, -number), run.text
  if number == signal.SIGTERM:
    assert metrics.read(RUN)[-1]['step'] >= 12
  with _Run(bucket, RUN, tmp_path) as run, _Run(bucket, RUN, tmp_path) as other:
    codes = {run.wait(240), other.wait(240)}
    assert codes == {0, 1}, run.text + other.text
    assert 'is in use by process ' in run.text + other.text
  _assert_same_end(bucket, undisturbed)
