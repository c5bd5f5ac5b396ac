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
from collections.abc import Callable, Iterator, Sequence

from tests import several

ROOT = pathlib.Path(__file__).parents[2]
# The runs' flags --start_timeout and --lost_timeout, in seconds.
START_TIMEOUT = 40
LOST_TIMEOUT = 15
PATIENCE = 400  # Seconds for an undisturbed launch.
FAIL = 120  # Seconds for a launch that must end with an error.
STEP_LINE = re.compile(r' step +(\d+)/\d+ ')


@dataclasses.dataclass(frozen=True)
class Layout:
  """The number of processes of a run, and of simulated devices in each."""

  processes: int
  devices: int
  steps: int
  overrides: tuple[str, ...] = ()

  @property
  def name(self) -> str:
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
_XLA_FLAGS = (
  '--xla_force_host_platform_device_count={devices}'
  # Compilation takes most of the time of a small model.
  ' --xla_backend_optimization_level=0'
  ' --xla_llvm_disable_expensive_passes=true'
)


def command(
  layout: Layout, workdir: pathlib.Path, extra: Sequence[str] = ()
) -> list[str]:
  """Returns the command of all processes, without the flags of their places.

  Args:
    layout: see LAYOUTS.
    workdir: the run's work directory.
    extra: more arguments.
  """
  return [
    *(sys.executable, '-m', 'vit_jax.main', f'--workdir={workdir}'),
    *_ARGUMENTS,
    f'--config.total_steps={layout.steps}',
    *layout.overrides,
    *extra,
  ]


class Launch:
  """One start of a command, in all its processes."""

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
      words: the command of each, without the flags of its place.
      workdir: the run's work directory.
      logs: the beginning of the paths of the processes' outputs.
      processes: the number of processes.
      devices: the number of simulated devices in each.
    """
    self.workdir = workdir
    self.overdue: list[int] = []
    self.signalled: set[int] = set()
    self._saves: dict[int, str] = {}
    self._old_saves = dict(self._list_saves())
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
      'XLA_FLAGS': _XLA_FLAGS.format(devices=devices),
      # Also caches programs that compile fast.
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'PYTHONFAULTHANDLER': '1',
    }
    self.logs = []
    self.processes = []
    self._started = time.monotonic()
    for index in range(processes):
      self.logs.append(logs.with_name(f'{logs.name}.{index}.txt'))
      with self.logs[-1].open('w') as log:
        self.processes.append(
          subprocess.Popen(
            [*words, *place, *([f'--process_id={index}'] if place else [])],
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

  def seconds(self) -> float:
    """Returns the seconds since the start."""
    return time.monotonic() - self._started

  def output(self, index: int | None = None) -> str:
    """Returns the output of one process, or of all."""
    logs = self.logs if index is None else [self.logs[index]]
    return ''.join(log.read_text(errors='replace') for log in logs)

  def last_step(self) -> int:
    """Returns the last step that process 0 printed; 0 if none."""
    steps = STEP_LINE.findall(self.output(0))
    return int(steps[-1]) if steps else 0

  def saves(self) -> list[str]:
    """Returns the unfinished checkpoints that were seen in this launch."""
    for inode, name in self._list_saves():
      if self._old_saves.get(inode) != name:
        self._saves[inode] = name
    return list(self._saves.values())

  def codes(self) -> list[int | None]:
    """Returns the exit codes; None for a process that still runs."""
    return [process.poll() for process in self.processes]

  @property
  def several(self) -> bool:
    """True if the run has more than one process."""
    return len(self.processes) > 1

  def running(self) -> bool:
    return None in self.codes()

  def send(self, number: signal.Signals, index: int | None = None) -> None:
    """Sends a signal to one process, or to all at once."""
    for i, process in enumerate(self.processes):
      if index in (None, i):
        self.signalled.add(i)
        process.send_signal(number)

  def until(
    self, condition: Callable[[], bool], delay: float, pause: float = 0.02
  ) -> bool:
    """Waits for a condition, and then for some more seconds.

    Args:
      condition: returns whether the wait is over.
      delay: seconds to wait after that.
      pause: seconds between two calls of `condition`.

    Returns:
      False if all processes or `PATIENCE` ended before.
    """
    deadline = time.monotonic() + PATIENCE
    while self.running() and time.monotonic() < deadline:
      if condition():
        time.sleep(delay)
        return self.running()
      time.sleep(pause)
    return False

  def wait(self, limit: float) -> list[int]:
    """Waits for all processes; kills those that outlive the limit.

    Returns:
      The exit codes; `overdue` lists the killed processes.
    """
    deadline = time.monotonic() + limit
    while self.running() and time.monotonic() < deadline:
      time.sleep(0.02)
    self.overdue = [i for i, code in enumerate(self.codes()) if code is None]
    for index in self.overdue:
      self.processes[index].kill()
      self.processes[index].wait()
    return self.codes()

  def _list_saves(self) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(FileNotFoundError):  # A save has just finished.
      for path in self.workdir.glob('*/*-tmp*'):
        name = path.relative_to(self.workdir).as_posix()
        yield path.stat().st_ino, name
