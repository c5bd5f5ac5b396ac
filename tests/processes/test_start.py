"""Guards: processes that disagree are refused before the first step.

A write that fails in one process ends all of them. Processes can load weights
that none of them holds whole.
"""

import shutil
import signal

import cv2
import numpy as np
import pytest

from tests.processes.launch import launch
from vit_jax import checkpoint


@pytest.mark.gate
def test_a_process_with_different_data_refuses_to_run(tmp_path):
  texts = launch(
    *(2, 1),
    task='disagree',
    workdirs=[str(tmp_path / 'run')] * 2,
    splits=['train[:301]', 'train[:280]'],
    codes=(1,),
  )
  assert (
    'ValueError: Process 1 differs from process 0:\n'
    '  config: data: num_examples: 280 here, 301 in process 0; config: data:'
    ' train_split: "train[:280]" here, "train[:301]" in process 0; ' in texts[1]
  )
  assert not (tmp_path / 'run').exists()


@pytest.mark.gate
def test_other_images_on_the_disk_of_one_host_are_refused(tmp_path):
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
  texts = launch(
    *(2, 1),
    task='disagree',
    workdirs=[str(tmp_path / 'run')] * 2,
    splits=['train'] * 2,
    disks=[str(disk) for disk in disks],
    codes=(1,),
  )
  assert (
    'ValueError: Process 1 differs from process 0:\n  training data:'
    ' contents: 1: "cat/3.png '
  ) in texts[1]
  assert 'Another process differs' in texts[0]


@pytest.mark.gate
def test_separate_work_directories_are_refused(tmp_path):
  texts = launch(
    *(2, 1),
    task='disagree',
    workdirs=[str(tmp_path / 'a'), str(tmp_path / 'b')],
    splits=['train[:301]'] * 2,
    codes=(1,),
  )
  for text in texts:
    assert f'--workdir={tmp_path}' in text
    assert 'such as gs://BUCKET/PATH' in text


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


@pytest.mark.gate
def test_weights_of_another_run_split_over_two_processes(tmp_path):
  run = dict(workdir=str(tmp_path / 'first'), config=dict(mesh=dict(data=1)))
  run['config']['changes'] = {'total_steps': 6, 'polyak.decay': 0.0}
  out = str(tmp_path / 'seen')
  launch(1, 1, task='train', out=out, runs={'run': run})
  launch(
    *(2, 2),
    task='initialize',
    out=out,
    workdir=str(tmp_path / 'second'),
    weights=str(tmp_path / 'first'),
  )
  old, _ = checkpoint.read_params(tmp_path / 'first')
  new, _ = checkpoint.read_params(tmp_path / 'second')
  # The learning rate is zero, so only the head differs: it is new, and zero.
  assert np.abs(old['head']['kernel']).max() > 0
  assert np.abs(new['head']['kernel']).max() == 0
  for name in ('embedding', 'cls'):
    np.testing.assert_array_equal(
      *(np.asarray(next(iter_leaves(tree[name]))) for tree in (old, new))
    )
  mlps = [t['Transformer']['encoderblock_1']['MlpBlock_0'] for t in (old, new)]
  np.testing.assert_array_equal(*(mlp['Dense_0']['kernel'] for mlp in mlps))


def iter_leaves(tree):
  """Yields the arrays of a tree."""
  if isinstance(tree, dict):
    for value in tree.values():
      yield from iter_leaves(value)
  else:
    yield tree
