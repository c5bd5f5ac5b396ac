"""Guards: two real processes save, fall back and resume together."""

import os
import pathlib
import subprocess
import sys

from tests import ports

ROOT = pathlib.Path(__file__).parents[2]


def test_two_processes(tmp_path):
  port = str(ports.free_port())
  environment = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'JAX_CPU_COLLECTIVES_IMPLEMENTATION': 'gloo',
    'XLA_FLAGS': '--xla_force_host_platform_device_count=2'
    ' --xla_backend_optimization_level=0',
  }
  module = [sys.executable, '-m', 'tests.checkpoint.two_processes']
  processes = [
    subprocess.Popen(
      [*module, str(rank), port, str(tmp_path / 'run')],
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for rank in range(2)
  ]
  try:
    outputs = [process.communicate(timeout=120)[0] for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  for process, output in zip(processes, outputs, strict=True):
    assert process.returncode == 0, output[-3000:]
    assert 'All is well.' in output
