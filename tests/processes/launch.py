"""Starts several local processes that act as the hosts of one run."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from tests import ports

ROOT = pathlib.Path(__file__).parents[2]


def launch(
  num_processes: int, devices: int, *, codes=(0,), timeout=300, **arguments
) -> list[str]:
  """Runs `worker.py` in several processes, with `devices` devices each.

  Asserts that every exit code is one of `codes`.

  Returns:
    The output of each process.
  """
  place = {}
  if num_processes > 1:
    place = dict(
      coordinator_address=f'127.0.0.1:{ports.free_port()}',
      num_processes=num_processes,
    )
  processes, outputs = [], []
  with contextlib.ExitStack() as stack:
    for i in range(num_processes):
      if place:
        place['process_id'] = i
      # A process could block on a full pipe that nobody reads yet.
      outputs.append(stack.enter_context(tempfile.TemporaryFile('w+')))
      processes.append(_start(place, devices, arguments, outputs[-1]))
      stack.callback(processes[-1].kill)
    for process in processes:
      process.wait(timeout)
    texts = []
    for output in outputs:
      output.seek(0)
      texts.append(output.read())
  for process, text in zip(processes, texts, strict=True):
    assert process.returncode in codes, text[-5000:]
  return texts


def _start(place, devices, arguments, output) -> subprocess.Popen:
  flags = (
    f'--xla_force_host_platform_device_count={devices}'
    ' --xla_backend_optimization_level=0'
    ' --xla_llvm_disable_expensive_passes=true'
  )
  return subprocess.Popen(
    [sys.executable, '-m', 'tests.processes.worker', json.dumps(arguments)],
    cwd=ROOT,
    env=os.environ
    | {'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu', 'PLACE': json.dumps(place)},
    stdout=output,
    stderr=subprocess.STDOUT,
  )
