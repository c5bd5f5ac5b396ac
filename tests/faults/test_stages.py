"""Guards: a run with stages, killed in each of them, ends as if undisturbed."""

import re
import signal

import pytest

from tests.faults import comparing, launching

STEPS = 60
STAGES = ('pretrain', 'finetune', 'scratch')
# What a launch has printed when it is killed.
MOMENTS = (
  r'(?s)(step +\d+/60 .*){6}',
  'Stage 2 of 3',
  r'(?s)Stage 2.*step +\d\d/60 ',
  r'(?s)Stage 3.*step +\d\d/60 ',
)


def _start(workdir, logs):
  words = ['--config=configs/quickstart.py']
  for stage in STAGES:
    words += [
      f'--config.stages.{stage}.total_steps={STEPS}',
      f'--config.stages.{stage}.schedule.warmup_steps=10',
      f'--config.stages.{stage}.checkpoint.every=20',
      f'--config.stages.{stage}.log.every=5',
    ]
  return launching.Launch(words, workdir, logs)


@pytest.mark.slow  # Takes minutes, because it has six launches.
def test_killed_stages_end_like_uninterrupted_ones(tmp_path):
  expected, workdir = tmp_path / 'expected', tmp_path / 'killed'
  for number, moment in enumerate(MOMENTS):
    with _start(workdir, tmp_path / f'killed.{number}') as launch:
      assert launch.until(lambda: re.search(moment, launch.output()), 0.2)  # noqa: B023
      launch.send(signal.SIGKILL, [0])
  for folder in (expected, workdir):
    with _start(folder, tmp_path / f'{folder.name}.last') as launch:
      assert launch.wait(launching.PATIENCE) == [0], launch.output()
  for stage in STAGES:
    comparing.assert_same(workdir / stage, expected / stage, STEPS)
