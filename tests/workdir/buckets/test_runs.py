"""Guards: a run in a bucket that fails ends like a run on a local disk."""

import os
import re
import signal
import subprocess
import threading
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
  """A run in its own process; collects its output."""

  def __init__(self, bucket, workdir, *extra):
    words = launching.command(LAYOUT, workdir, (), nan_step=0)
    super().__init__(
      [
        *(words[0], '-m', 'tests.workdir.buckets.program', *words[3:]),
        '--config.log.every=1',
        '--config.log.upload_every=0.5',
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
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    self.lines = []
    self._thread = threading.Thread(target=self._read, daemon=True)
    self._thread.start()

  def __exit__(self, *_):
    self.kill()
    self.wait()

  def _read(self):
    for line in self.stdout:
      self.lines.append(line)

  @property
  def text(self):
    return ''.join(self.lines)

  def wait_for_text(self, words, seconds=120):
    end = time.monotonic() + seconds
    while words not in self.text:
      assert self.poll() is None, self.text
      assert time.monotonic() < end, self.text
      time.sleep(0.02)

  def code(self, seconds=240):
    """Waits for the end of the run and returns its exit code."""
    code = self.wait(seconds)
    self._thread.join()
    return code


@pytest.fixture(scope='module')
def undisturbed(server, tmp_path_factory):
  """Returns the work directory of a run on a local disk."""
  workdir = tmp_path_factory.mktemp('undisturbed')
  server.reset()
  with _Run(server, workdir) as run:
    assert run.code() == 0, run.text
  return workdir


def _assert_same_end(bucket, undisturbed):
  assert_same_state(RUN, undisturbed)
  for kind in ('best', 'final'):
    assert_same_state(RUN / kind, undisturbed / kind)
  assert rows_but_times(RUN) == rows_but_times(undisturbed)
  lines = (RUN / metrics.FILE).read_text().splitlines()
  assert len(lines) == len(metrics.read(RUN))
  assert (RUN / 'DONE').read_text() == f'{STEPS}\n'
  # A reader that sees DONE must see all rows in one file.
  written = bucket.generation('run/metrics.jsonl')
  assert int(written) < int(bucket.generation('run/DONE'))
  names = {path.name for path in RUN.iterdir()}
  local = {path.name for path in undisturbed.iterdir()}
  events = {name for name in names | local if name.startswith('events')}
  # A run deletes its lease at the end, and a bucket has no train.log.
  assert names - events == local - events - {'owner.json', 'train.log'}


def _disturb(bucket, run, seconds, steps=(2, 9, STEPS), delay=0.01):
  """Makes outages of `seconds` before and in a save, and at the end."""
  bucket.delay = delay
  for step in steps:
    run.wait_for_text(f'step {step:2d}/{STEPS}', 120 + seconds)
    bucket.fail(seconds)


def test_outages_change_nothing(bucket, undisturbed):
  with _Run(bucket, RUN) as run:
    _disturb(bucket, run, 3)
    assert run.code() == 0, run.text
  assert bucket.refused > 10
  assert 'no answer (HttpError: The service is down., 503). Trying' in run.text
  assert 'The bucket answers again, after ' in run.text
  _assert_same_end(bucket, undisturbed)


def test_a_killed_run_is_taken_over(bucket, undisturbed):
  # The bucket has only the rows before a checkpoint, which the next run needs.
  with _Run(bucket, RUN, '--config.log.upload_every=3600') as run:
    run.wait_for_text(f'step 12/{STEPS}')
    run.kill()
  assert 'run/owner.json' in bucket.names()
  with _Run(bucket, RUN) as run, _Run(bucket, RUN) as other:
    codes = {run.code(), other.code()}
  text = run.text + other.text
  assert codes == {0, 1}, text
  assert text.count('is in use by process ') >= 1
  assert text.count('no sign of life for ') == 1
  assert re.search(r'error: gs://bucket/run is in use by process \d+ on', text)
  _assert_same_end(bucket, undisturbed)


def test_sigterm_keeps_every_row(bucket, undisturbed):
  with _Run(bucket, RUN, '--config.log.upload_every=3600') as run:
    run.wait_for_text(f'step 12/{STEPS}')
    run.send_signal(signal.SIGTERM)
    assert run.code() == 75, run.text
  steps = [row['step'] for row in metrics.read(RUN)]
  assert steps[-1] >= 12
  assert bucket.names().count('run/metrics.jsonl') == 1
  with _Run(bucket, RUN) as run:
    assert run.code() == 0, run.text
  assert f'from step {steps[-1]}.' in run.text
  _assert_same_end(bucket, undisturbed)
