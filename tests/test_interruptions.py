"""Real processes, killed without warning, end as if they never had been.

A run is killed (SIGKILL) at moments of a seeded plan and started again with
the same command each time, until it is left to finish. Its parameters,
optimizer state, averages and logged numbers must be those of a run that nobody
touched. With `-s` each kill is printed, and what it left behind.
"""

import contextlib
import os
import pathlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.test_train import assert_same_state, rows_but_times

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent
PATIENCE = 600  # Seconds for one launch.


class Launch:
  """One process of a command, and what can be seen of it from outside."""

  def __init__(self, arguments, workdir, devices):
    self.workdir = workdir
    self._saves = {}
    self._old_saves = set(self._list_saves())
    self._log = workdir.with_name(f'{workdir.name}.{time.monotonic_ns()}.txt')
    flag = f'--xla_force_host_platform_device_count={devices}'
    with self._log.open('w') as log:
      self.process = subprocess.Popen(
        [sys.executable, '-m', 'vit_jax.main', f'--workdir={workdir}']
        + arguments,
        cwd=ROOT,
        env=os.environ | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flag},
        stdout=log,
        stderr=subprocess.STDOUT,
      )
    self._started = time.monotonic()

  def seconds(self) -> float:
    return time.monotonic() - self._started

  def output(self) -> str:
    return self._log.read_text()

  def saves(self) -> list[str]:
    """The unfinished checkpoints that this process was seen writing."""
    for path, inode in self._list_saves():
      if (path, inode) not in self._old_saves:
        self._saves[inode] = path
    return list(self._saves.values())

  def describe(self) -> str:
    """Where the process is: its last line, and its checkpoints."""
    lines = self.output().splitlines() or ['nothing printed']
    folders = [
      path.relative_to(self.workdir).as_posix().replace('checkpoints/', '')
      for path in sorted(self._checkpoints())
    ]
    return f'{self.seconds():.1f}s, {folders}, after "{lines[-1][:70]}"'

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.process.kill()
    self.process.wait()

  def _checkpoints(self) -> Iterator[pathlib.Path]:
    """All finished and unfinished ones, of all stages."""
    for pattern in ('checkpoints/*', '*/checkpoints/*'):
      yield from self.workdir.glob(pattern)

  def _list_saves(self) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(FileNotFoundError):  # Finished in between.
      for path in self._checkpoints():
        if '-tmp' in path.name:
          yield path.relative_to(self.workdir).as_posix(), path.stat().st_ino


# When to kill: a condition on a launch, and seconds to wait once it holds.
Moment = tuple[Callable[[Launch], bool], float]


def after(seconds: float) -> Moment:
  return (lambda launch: launch.seconds() > seconds), 0.0


def printed(pattern: str, times: int, delay: float) -> Moment:
  return (
    lambda launch: len(re.findall(pattern, launch.output())) >= times
  ), delay


def saving(stage: str, times: int, delay: float) -> Moment:
  """While a checkpoint is being written, the `times`th of the launch."""
  return (
    lambda launch: (
      sum(path.startswith(stage) for path in launch.saves()) >= times
    )
  ), delay


def saved(name: str, delay: float) -> Moment:
  return (lambda launch: (launch.workdir / name).exists()), delay


def _wait(launch: Launch, moment: Moment | None = None) -> bool:
  """Waits until the moment, or the end; returns whether it was the moment."""
  while launch.process.poll() is None:
    if moment and moment[0](launch):
      time.sleep(moment[1])
      return launch.process.poll() is None
    if launch.seconds() > PATIENCE:
      pytest.fail(f'Not finished after {PATIENCE} s:\n{launch.output()}')
    time.sleep(0.001 if moment else 0.1)
  return False


def _finish(arguments, workdir, devices) -> float:
  """Runs the command to its end; returns the seconds that it took."""
  with Launch(arguments, workdir, devices) as launch:
    _wait(launch)
    assert launch.process.returncode == 0, launch.output()
    return launch.seconds()


def _campaign(arguments, tmp_path, devices, plan, stages=('.',)):
  """Kills a run by the plan, and compares it with an uninterrupted one."""
  expected, workdir = tmp_path / 'expected', tmp_path / 'killed'
  seconds = _finish(arguments, expected, devices)
  print(f'\nUninterrupted: {seconds:.0f}s')
  kills = 0
  for moment in plan:
    with Launch(arguments, workdir, devices) as launch:
      if not _wait(launch, moment):
        assert launch.process.returncode == 0, launch.output()
        print('  finished before the moment came')
        break
    kills += 1
    print(f'  kill {kills}: {launch.describe()}')
  assert kills >= len(plan) - 1
  _finish(arguments, workdir, devices)
  for stage in stages:
    assert (workdir / stage / 'DONE').read_text() == (
      expected / stage / 'DONE'
    ).read_text()
    assert_same_state(workdir / stage, expected / stage)
    assert rows_but_times(workdir / stage) == rows_but_times(expected / stage)
    assert not list((workdir / stage / 'checkpoints').glob('*tmp*'))
  print(f'{kills} kills: the same')


@pytest.mark.parametrize(
  ('devices', 'overrides'),
  [
    (1, []),
    (8, []),
    (
      1,
      [
        '--config.accumulation_steps=2',
        '--config.model.dropout_rate=0.1',
        '--config.polyak.decay=0.99',
        '--config.polyak.start_step=30',
      ],
    ),
  ],
  ids=['1 device', '8 devices', 'accumulation, dropout and averaging'],
)
def test_killed_run_ends_as_an_uninterrupted_one(tmp_path, devices, overrides):
  rng = random.Random(repr(overrides) + str(devices))
  step = r'step +\d+/200 '
  plan = [
    after(rng.uniform(0.5, 4)),
    printed('parameters', 1, rng.uniform(0, 3)),  # While it compiles.
    printed(step, rng.randint(2, 4), rng.uniform(0, 0.5)),
    saving('', rng.randint(1, 2), rng.uniform(0, 0.02)),
    printed('Resuming', 1, rng.uniform(0, 1)),
    printed(step, rng.randint(1, 4), rng.uniform(0, 0.5)),
    saving('', 1, rng.uniform(0, 0.05)),
    saving('', 2, 0),
    saved('checkpoints/200', 0),
  ]
  arguments = [
    '--config=configs/quickstart.py:pretrain',
    '--config.total_steps=200',
    '--config.checkpoint.every=20',
    '--config.log.every=10',
    '--config.evals.test.every=50',
  ]
  _campaign(arguments + overrides, tmp_path, devices, plan)


def test_killed_stages_end_as_uninterrupted_ones(tmp_path):
  rng = random.Random(0)
  arguments = ['--config=configs/quickstart.py']
  for stage in ('pretrain', 'finetune', 'scratch'):
    arguments += [
      f'--config.stages.{stage}.total_steps=60',
      f'--config.stages.{stage}.schedule.warmup_steps=10',
      f'--config.stages.{stage}.checkpoint.every=20',
      f'--config.stages.{stage}.log.every=5',
    ]
  plan = [
    printed(r'step +\d+/60 ', 6, rng.uniform(0, 0.3)),
    saved('pretrain/checkpoints/60', rng.uniform(0, 0.2)),
    printed('Stage 2 of 3', 1, rng.uniform(0, 2)),
    printed('Weights from', 1, rng.uniform(0, 3)),
    printed(r'(?s)Stage 2.*step +\d\d/60 ', 1, rng.uniform(0, 0.5)),
    saving('finetune', 1, rng.uniform(0, 0.02)),
    saved('finetune/DONE', 0),
    printed(r'(?s)Stage 3.*step +\d\d/60 ', 1, rng.uniform(0, 0.5)),
    saving('scratch', 1, rng.uniform(0, 0.05)),
    saved('scratch/checkpoints/60', 0),
  ]
  _campaign(
    arguments, tmp_path, 1, plan, stages=('pretrain', 'finetune', 'scratch')
  )
