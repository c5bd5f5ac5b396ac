"""Guards: a process ends with our exit code where JAX would abort or wait."""

import os
import socket
import subprocess
import sys
import time

import jax
import pytest

from tests import ports
from vit_jax.runtime import errors
from vit_jax.runtime.distributed import cluster, jax_service

_START = """
import sys
from vit_jax.runtime.distributed import cluster, jax_service
jax_service._INITIALIZE = 1.0
jax_service.start(cluster.Place(sys.argv[1], 2, 1), 10)
"""

_ABORT = """
import ctypes, os, threading, time
from vit_jax.runtime.distributed import jax_service
restore = jax_service.delay_abort()
{restore}
threading.Thread(target=ctypes.CDLL(None).abort, daemon=True).start()
time.sleep(1)
os._exit(76)
"""

_END = """
import atexit, sys, threading, time
from vit_jax.runtime.distributed import jax_service
{waits}
jax_service.abandon(7)
print('ends', flush=True)
sys.exit(3)
"""

_SIGTERM = """
import os, signal, sys, time
import orbax.checkpoint as ocp
from vit_jax.runtime.distributed import cluster, jax_service
jax_service.start(cluster.Place('127.0.0.1:' + sys.argv[1], 1, 0), 30)
print(ocp.utils.reached_preemption(1), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(5)
"""


@pytest.mark.parametrize(('restore', 'code'), [('', 76), ('restore()', -6)])
def test_abort_leaves_time_to_report_the_cause(restore, code):
  script = _ABORT.format(restore=restore)
  command = [sys.executable, '-c', script]
  assert subprocess.run(command, check=False).returncode == code


@pytest.mark.parametrize(
  ('waits', 'least', 'most'),
  [
    # JAX's exit handler waits like this for the other processes.
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


def test_jax_leaves_sigterm_alone():
  command = [sys.executable, '-c', _SIGTERM, str(ports.free_port())]
  environment = os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  result = subprocess.run(
    command, capture_output=True, text=True, env=environment, check=False
  )
  # Orbax learns of no preemption, and the signal ends the process as usual.
  assert (result.stdout, result.returncode) == ('False\n', -15), result.stderr


def test_runtime_that_does_not_start_in_time():
  with socket.create_server(('127.0.0.1', 0)) as silent:
    address = f'127.0.0.1:{silent.getsockname()[1]}'
    command = [sys.executable, '-c', _START, address]
    result = subprocess.run(
      command, capture_output=True, text=True, check=False
    )
  assert result.returncode == 76
  assert (
    f"JAX's runtime did not start at {address}, though all 2 processes are"
    ' there: no answer for 1 s.' in result.stderr
  )


@pytest.mark.parametrize(
  ('error', 'expected'),
  [
    (jax.errors.JaxRuntimeError('no route'), errors.HostLostError),
    (RuntimeError('called twice'), RuntimeError),
  ],
)
def test_runtime_that_fails_to_start(monkeypatch, error, expected):
  def fail(**_):
    raise error

  monkeypatch.setattr(jax.distributed, 'initialize', fail)
  before = jax.config.jax_enable_preemption_service
  try:
    with pytest.raises(RuntimeError, match=str(error)) as caught:
      jax_service.start(cluster.Place('127.0.0.1:9', 2, 0), 10)
  finally:
    jax.config.update('jax_enable_preemption_service', before)
  assert type(caught.value) is expected


def test_end_process_does_not_wait_for_a_locked_log():
  script = (
    'import threading\n'
    'from absl import logging\n'
    'from vit_jax.runtime.distributed import jax_service\n'
    'logging.get_absl_handler().python_handler.acquire()\n'
    'end = threading.Thread(target=jax_service.end_process, args=[7])\n'
    'end.start()\n'
    'end.join()\n'
  )
  command = [sys.executable, '-c', script]
  assert subprocess.run(command, timeout=30, check=False).returncode == 7
