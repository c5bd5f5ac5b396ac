"""Guards: the start-up benchmark times launches, which are scripts here."""

import os
import sys
import time

import pytest

from benchmarks.measure import start_up

# Replaces training; it is slower when the cache is empty.
_SCRIPT = """
import pathlib, sys, time
flags = dict(a.split('=', 1) for a in sys.argv[4:] if '=' in a)
cache = pathlib.Path(flags['--compilation_cache'])
assert not pathlib.Path(flags['--workdir']).exists()
print('12:00:00 Fresh weights.', flush=True)
if not cache.exists():
  time.sleep(0.4)
  cache.mkdir()
print('First step dispatched.', flush=True)
time.sleep(0.1)
print('12:00:01 First step done.', flush=True)
time.sleep(600)
"""


@pytest.fixture
def interpreter(monkeypatch, tmp_path):
  """Makes `start_up` launch a script in place of `vit_jax.main`."""

  def write(script):
    (tmp_path / 'script.py').write_text(script)
    path = tmp_path / 'python'
    path.write_text(
      f'#!/bin/sh\nexec {sys.executable} {path.parent}/script.py "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setattr(start_up.sys, 'executable', str(path))

  return write


def test_cold_and_warm(interpreter):
  interpreter(_SCRIPT)
  start = time.monotonic()
  results = start_up.measure(['--flag=1'], rounds=2, timeout=60)
  assert time.monotonic() - start < 60  # No script slept on after its kill.
  cold, warm = results['cold'], results['warm']
  for result in (cold, warm):
    assert result['dispatched_sec']['count'] == 2
    assert result['weights_sec']['median'] <= result['dispatched_sec']['median']
    assert (
      result['done_sec']['median'] - result['dispatched_sec']['median'] > 0.05
    )
  assert cold['dispatched_sec']['min'] > 0.4
  assert warm['ratio'] == pytest.approx(
    warm['dispatched_sec']['median'] / cold['dispatched_sec']['median']
  )
  # Each cold launch had an empty cache.
  assert warm['dispatched_sec']['max'] < cold['dispatched_sec']['max']


def test_takes_too_long(interpreter, tmp_path):
  interpreter(
    f'import os, time\nopen("{tmp_path}/pid", "w").write(str(os.getpid()))\n'
    'time.sleep(600)'
  )
  with pytest.raises(ValueError, match=r'within 2 s .*nothing'):
    start_up.launch([], timeout=2)
  with pytest.raises(ProcessLookupError):
    os.kill(int((tmp_path / 'pid').read_text()), 0)
