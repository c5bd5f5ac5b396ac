"""Starts several local processes that act as the hosts of one run."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import time
from collections.abc import Sequence

from tests import commands


def free_port() -> int:
  """Returns a port that is free, and whose next higher port is free, too.

  It is below the ports that the system gives to outgoing connections.
  """
  while True:
    port = random.randrange(20000, 30000)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
      for number in (port, port + 1):
        address = ('127.0.0.1', number)
        stack.enter_context(socket.create_server(address))
      return port


def wait_for(condition, limit: float = 60) -> None:
  """Waits until a condition holds; fails after so many seconds."""
  end = time.monotonic() + limit
  while not condition():
    assert time.monotonic() < end, f'{condition} did not hold in time'
    time.sleep(0.02)


def is_running(pid: int) -> bool:
  """Whether a process has not ended; the exit code may not be read yet."""
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return False
  return text.rpartition(')')[2].split()[0] != 'Z'


def xla_flags(devices: int) -> str:
  """Returns XLA_FLAGS of so many simulated devices, and quick compilation."""
  return (
    f'--xla_force_host_platform_device_count={devices}'
    ' --xla_backend_optimization_level=0'
    ' --xla_llvm_disable_expensive_passes=true'
  )


def place() -> dict:
  """Returns what `Several` told this process of its place among the others."""
  return json.loads(os.environ['PLACE'])


class Several:
  """Processes that run one module, and what they print.

  Each finds its place (arguments of `distributed.connected`) by `place`.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    module: str,
    words: Sequence[Sequence[str]],
    *,
    devices: int = 1,
    **variables,
  ):
    """Starts the processes.

    Args:
      folder: gets the outputs.
      module: the name of the module.
      words: the arguments of each process.
      devices: the number of simulated devices in each.
      **variables: environment variables.
    """
    count = len(words)
    shared = {}
    if count > 1:
      shared = dict(
        coordinator_address=f'127.0.0.1:{free_port()}', num_processes=count
      )
    self.processes = []
    for index, own in enumerate(words):
      at = json.dumps({**shared, 'process_id': index} if shared else {})
      (folder / f'{index}').mkdir(parents=True, exist_ok=True)
      self.processes.append(
        commands.shared().start(
          *(folder / f'{index}', module, *own),
          **{'PLACE': at, 'XLA_FLAGS': xla_flags(devices), **variables},
        )
      )

  def output(self, index: int) -> str:
    """Returns what a process has printed, its errors too."""
    return self.processes[index].out + self.processes[index].err

  def _outputs(self) -> list[str]:
    return [self.output(index) for index in range(len(self.processes))]

  def wait_for(self, text: str, limit: float) -> None:
    """Waits until each process has printed a text."""
    end = time.monotonic() + limit
    while not all(text in found for found in self._outputs()):
      assert time.monotonic() < end, ''.join(self._outputs())
      time.sleep(0.05)

  def codes(self, limit: float) -> list[int]:
    """Waits for the processes to end; returns their exit codes."""
    return [process.wait(limit) for process in self.processes]

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      process.send(signal.SIGKILL)
      process.wait(30)
