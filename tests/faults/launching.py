"""Starts the processes of one run together, and observes them from outside."""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from tests import several

ROOT = pathlib.Path(__file__).parents[2]
# The runs' flags --start_timeout and --lost_timeout, in seconds.
START_TIMEOUT = 40
LOST_TIMEOUT = 15
PATIENCE = 400  # Seconds for an undisturbed launch.
_STEP_LINE = re.compile(r' step +(\d+)/\d+ ')


@dataclasses.dataclass(frozen=True)
class Layout:
  """The number of processes of a run, and of simulated devices in each."""

  processes: int
  devices: int
  steps: int
  overrides: tuple[str, ...] = ()

  def __str__(self) -> str:
    return f'{self.processes}x{self.devices}'


LAYOUTS = (
  Layout(1, 1, 100),
  Layout(1, 4, 100, ('--config.mesh.fsdp=2',)),
  Layout(2, 2, 60, ('--config.mesh.fsdp=2',)),
)

# Steps between checkpoints. The arguments below give the state every part that
# a state can have.
SAVE_EVERY = 5
_ARGUMENTS = (
  '--config=configs/quickstart.py:pretrain',
  '--config.image_size=(8, 8)',
  '--config.model.width=32',
  '--config.model.depth=1',
  '--config.model.heads=2',
  '--config.model.mlp_dim=64',
  '--config.model.dropout_rate=0.1',
  '--config.accumulation_steps=2',
  '--config.polyak.decay=0.99',
  '--config.polyak.start_step=10',
  '--config.schedule.warmup_steps=10',
  f'--config.checkpoint.every={SAVE_EVERY}',
  '--config.checkpoint.keep=3',
  '--config.checkpoint.timeout=60',
  '--config.evals.test.every=20',
  f'--config.log.every={SAVE_EVERY}',
  '--config.log.tensorboard=false',
)


def arguments(layout: Layout) -> list[str]:
  """Returns the arguments of a run's command."""
  steps = f'--config.total_steps={layout.steps}'
  return [*_ARGUMENTS, steps, *layout.overrides]


class Launch:
  """One start of a run's command, in all its processes.

  Attributes:
    processes: the processes.
  """

  def __init__(
    self,
    words: Sequence[str],
    workdir: pathlib.Path,
    logs: pathlib.Path,
    *,
    processes: int = 1,
    devices: int = 1,
  ):
    """Starts the processes.

    Args:
      words: the arguments of `vit_jax.main`, without those of its place.
      workdir: the run's work directory.
      logs: the beginning of the paths of the processes' outputs.
      processes: the number of processes.
      devices: the number of simulated devices in each.
    """
    self._workdir = workdir
    self._old = set(self._unfinished())
    place = []
    if processes > 1:
      place = [
        f'--coordinator_address=127.0.0.1:{several.free_port()}',
        f'--num_processes={processes}',
        f'--start_timeout={START_TIMEOUT}',
        f'--lost_timeout={LOST_TIMEOUT}',
      ]
    environment = os.environ | {
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': several.xla_flags(devices),
      # Also caches programs that compile fast.
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'PYTHONFAULTHANDLER': '1',
    }
    self._logs, self.processes = [], []
    self._started = time.monotonic()
    for index in range(processes):
      self._logs.append(logs.with_name(f'{logs.name}.{index}.txt'))
      own = [f'--process_id={index}'] if place else []
      with self._logs[-1].open('w') as log:
        self.processes.append(
          subprocess.Popen(
            [
              *(sys.executable, '-m', 'vit_jax.main', f'--workdir={workdir}'),
              *(*words, *place, *own),
            ],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
          )
        )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      process.kill()
    for process in self.processes:
      process.wait()

  def output(self, index: int | None = None) -> str:
    """Returns the output of one process, or of all."""
    logs = self._logs if index is None else [self._logs[index]]
    return ''.join(log.read_text(errors='replace') for log in logs)

  def steps(self) -> list[int]:
    """Returns the steps that process 0 has printed."""
    return [int(step) for step in _STEP_LINE.findall(self.output(0))]

  def is_saving(self) -> bool:
    """Whether a checkpoint of this launch is being written."""
    return bool(set(self._unfinished()) - self._old)

  def running(self) -> list[int]:
    """Returns the numbers of the processes that still run."""
    return [i for i, each in enumerate(self.processes) if each.poll() is None]

  def send(self, number: signal.Signals, indices: Collection[int]) -> None:
    """Sends a signal to processes."""
    for index in indices:
      self.processes[index].send_signal(number)

  def until(self, condition: Callable[[], bool], delay: float) -> bool:
    """Waits for a condition, and then for some more seconds.

    Returns:
      False if all processes or `PATIENCE` ended before.
    """
    deadline = time.monotonic() + PATIENCE
    while self.running() and time.monotonic() < deadline:
      if condition():
        time.sleep(delay)
        return bool(self.running())
      time.sleep(0.005)
    return False

  def wait(self, limit: float) -> list[int]:
    """Waits for all processes; returns their exit codes.

    Raises:
      AssertionError: some still run after so many seconds.
    """
    deadline = time.monotonic() + limit
    while late := self.running():
      assert time.monotonic() < deadline, f'{late} still run: {self.output()}'
      time.sleep(0.02)
    return [process.returncode for process in self.processes]

  def _unfinished(self) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(FileNotFoundError):  # A save has just finished.
      for path in self._workdir.glob('*/*-tmp*'):
        yield path.stat().st_ino, path.name
