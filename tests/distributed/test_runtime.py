"""How a process ends when JAX would abort it, or wait at its end."""

import subprocess
import sys
import time

import pytest

_ABORT = """
import ctypes, os, threading, time
from vit_jax.distributed import runtime
restore = runtime.delay_abort()
{restore}
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
time.sleep(1)
os._exit(76)
"""

_END = """
import atexit, sys, threading, time
from vit_jax.distributed import runtime
{waits}
runtime.abandon(7)
print('ends', flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(('restore', 'code'), [('', 76), ('restore()', -6)])
def test_abort_leaves_time_to_tell_the_cause(restore, code):
  script = _ABORT.format(restore=restore)
  command = [sys.executable, '-c', script]
  assert subprocess.run(command, check=False).returncode == code


@pytest.mark.parametrize(
  ('waits', 'least', 'most'),
  [
    # As JAX does, for the other processes.
    ('atexit.register(time.sleep, 60)', 0, 2),
    pytest.param(
      'threading.Thread(target=time.sleep, args=[60]).start()',
      2,
      10,
      marks=pytest.mark.slow,  # Waits for seconds.
    ),
  ],
  ids=['exit handler', 'thread'],
)
def test_abandoned_process_ends(waits, least, most):
  command = [sys.executable, '-c', _END.format(waits=waits)]
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    assert process.stdout.readline() == 'ends\n'
    start = time.monotonic()
    assert process.wait(30) == 7
    assert least <= time.monotonic() - start < most
