"""Guards: processes that disagree are refused before the first step.

A write that fails in one process ends all of them.
"""

import json
import shutil
import signal

import cv2
import numpy as np
import pytest

from tests.processes.launch import launch


@pytest.mark.gate
def test_processes_that_disagree_are_refused(tmp_path):
  disks = [tmp_path / 'a', tmp_path / 'b']
  for i in range(8):
    name = f'images/train/{"cat" if i % 2 else "dog"}/{i}.png'
    (disks[0] / name).parent.mkdir(parents=True, exist_ok=True)
    image = np.full((8, 8, 3), 30 * i, np.uint8)
    cv2.imwrite(str(disks[0] / name), image)
  shutil.copytree(*disks)
  # The file has the same name and size; only its pixels differ.
  other = disks[1] / 'images/train/cat/3.png'
  shutil.copy(disks[1] / 'images/train/cat/5.png', other)
  run, digits, same = [f'{tmp_path}/run'] * 2, ['digits'] * 2, ['train'] * 2
  cases = {
    'split': (run, ['train[:301]', 'train[:280]'], digits),
    'images': ([f'{tmp_path}/b'] * 2, same, list(map(str, disks))),
    'workdir': ([f'{tmp_path}/c', f'{tmp_path}/d'], same, digits),
  }
  out = str(tmp_path / 'out')
  launch(2, 1, task='disagree', out=out, cases=cases)
  first, second = (
    json.loads((tmp_path / f'out.{i}.json').read_text()) for i in range(2)
  )
  assert (
    'config: data: num_examples: 280 here, 301 in process 0'
    in (second['split'])
  )
  assert 'training data: contents: 1: "cat/3.png ' in second['images']
  assert 'Another process differs' in first['split']
  assert 'Another process differs' in first['images']
  for texts in (first, second):
    assert f'--workdir={tmp_path}' in texts['workdir']
    assert 'such as gs://BUCKET/PATH' in texts['workdir']


@pytest.mark.gate
def test_a_failed_write_of_predictions_ends_all_processes(tmp_path):
  texts = launch(
    *(2, 1),
    task='fail',
    workdir=str(tmp_path / 'run'),
    codes=(1, 76, -signal.SIGABRT),
    timeout=120,
  )
  assert f'SaveError: {tmp_path / "run"}: No space left on device' in texts[0]
