"""Guards: a run with stages, killed in each of them, ends as if undisturbed."""

import random
import re
import signal
import sys

import pytest

from tests.faults import launching, runs

pytestmark = pytest.mark.slow  # Takes minutes, because it has twelve launches.

STAGES = ('pretrain', 'finetune', 'scratch')
STEPS = 60


def _words(workdir):
  words = [
    *(sys.executable, '-m', 'vit_jax.main', f'--workdir={workdir}'),
    '--config=configs/quickstart.py',
  ]
  for stage in STAGES:
    words += [
      f'--config.stages.{stage}.total_steps={STEPS}',
      f'--config.stages.{stage}.schedule.warmup_steps=10',
      f'--config.stages.{stage}.checkpoint.every=20',
      f'--config.stages.{stage}.log.every=5',
    ]
  return words


def _moments(rng):
  """Returns conditions on a launch, and seconds to wait after each."""

  def printed(pattern, times=1):
    return lambda launch: len(re.findall(pattern, launch.output())) >= times

  def saving(stage):
    return lambda launch: any(s.startswith(stage) for s in launch.saves())

  def exists(name):
    return lambda launch: (launch.workdir / name).exists()

  return [
    (printed(r'step +\d+/60 ', 6), rng.uniform(0, 0.3)),
    (exists('pretrain/checkpoints/60'), rng.uniform(0, 0.2)),
    (printed('Stage 2 of 3'), rng.uniform(0, 2)),
    (printed('Weights from'), rng.uniform(0, 3)),
    (printed(r'(?s)Stage 2.*step +\d\d/60 '), rng.uniform(0, 0.5)),
    (saving('finetune'), rng.uniform(0, 0.02)),
    (exists('finetune/DONE'), 0),
    (printed(r'(?s)Stage 3.*step +\d\d/60 '), rng.uniform(0, 0.5)),
    (saving('scratch'), rng.uniform(0, 0.05)),
    (exists('scratch/checkpoints/60'), 0),
  ]


def _finish(workdir, logs):
  with launching.Launch(_words(workdir), workdir, logs) as launch:
    assert launch.wait(launching.PATIENCE) == [0], launch.output()


def test_killed_stages_end_like_uninterrupted_ones(tmp_path):
  expected, workdir = tmp_path / 'expected', tmp_path / 'killed'
  _finish(expected, tmp_path / 'expected')
  moments = _moments(random.Random(0))
  kills = 0
  for number, (condition, delay) in enumerate(moments, start=1):
    logs = tmp_path / f'killed.{number}'
    with launching.Launch(_words(workdir), workdir, logs) as launch:
      if not launch.until(lambda: condition(launch), delay, pause=0.002):  # noqa: B023
        assert launch.wait(1) == [0], launch.output()
        break
      launch.send(signal.SIGKILL)
    kills += 1
  # The run may have finished before the last kill.
  assert kills >= len(moments) - 1
  _finish(workdir, tmp_path / 'killed.last')
  for stage in STAGES:
    assert not runs.differences(workdir / stage, expected / stage, STEPS)
