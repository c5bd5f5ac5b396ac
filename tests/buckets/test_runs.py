"""Whole runs in a bucket that fails, against one on a local disk."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from etils import epath

from tests.faults import launching
from tests.test_train import assert_same_state, rows_but_times

RUN = epath.Path('gs://bucket/run')
LAYOUT = launching.Layout(1, 1, 40)


class _Run(subprocess.Popen):
  """A run in a process of its own; collects what it prints."""

  def __init__(self, bucket, workdir, *extra):
    super().__init__(
      [
        *launching.command(LAYOUT, workdir, extra, nan_step=0),
        '--config.log.every=1',
        '--config.log.upload_every=0.5',
        '--config.log.tensorboard=true',
        '--config.checkpoint.best=test/accuracy',
        '--compilation_cache=none',
      ],
      cwd=launching.ROOT,
      env=os.environ
      | bucket.environment()
      | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': launching._XLA_FLAGS.format(devices=1)},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    self.lines = []
    self._thread = threading.Thread(target=self._read, daemon=True)
    self._thread.start()

  def _read(self):
    self.lines += []
    for line in self.stdout:
      self.lines.append(line)

  @property
  def text(self):
    return ''.join(self.lines)

  def comes_to(self, words, seconds=120):
    end = time.monotonic() + seconds
    while words not in self.text:
      assert self.poll() is None, self.text
      assert time.monotonic() < end, self.text
      time.sleep(0.02)

  def ends(self, seconds=240):
    code = self.wait(seconds)
    self._thread.join()
    return code


@pytest.fixture(scope='module')
def undisturbed(server, tmp_path_factory):
  """A run on a local disk."""
  workdir = tmp_path_factory.mktemp('undisturbed')
  server.reset()
  run = _Run(server, workdir)
  assert run.ends() == 0, run.text
  return workdir


def _assert_same_end(undisturbed):
  assert_same_state(RUN, undisturbed)
  assert rows_but_times(RUN) == rows_but_times(undisturbed)
  assert (RUN / 'DONE').read_text() == '40\n'
  names = {path.name for path in RUN.iterdir()}
  local = {path.name for path in undisturbed.iterdir()}
  events = {n for n in names | local if n.startswith('events')}
  # The owner's file goes with its owner; a log is appended to.
  assert names - events == local - events - {'owner.json', 'train.log'}


def test_outages_change_nothing(bucket, undisturbed):
  bucket.delay = 0.005
  run = _Run(bucket, RUN)
  for step in (3, 17, 40):
    run.comes_to(f'step {step:2d}/40')
    bucket.fail(4)
  assert run.ends() == 0, run.text
  assert bucket.refused > 20
  assert 'Trying again for up to 60 s.' in run.text
  assert 'The bucket answers again' in run.text
  _assert_same_end(undisturbed)
