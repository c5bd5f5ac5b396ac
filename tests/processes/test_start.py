"""What processes must agree on, and weights that none of them holds whole."""

import numpy as np

from tests.processes.launch import launch
from vit_jax import checkpoint


def test_unequal_data_is_refused_by_whom_it_concerns(tmp_path):
  texts = launch(
    *(2, 1),
    task='disagree',
    workdirs=[str(tmp_path / 'run')] * 2,
    splits=['train[:301]', 'train[:280]'],
    codes=(1,),
  )
  assert (
    'ValueError: Process 1 would not run what process 0 runs:\n'
    '  config: data: num_examples: 280 here, 301 in process 0; config: data:'
    ' train_split: "train[:280]" here, "train[:301]" in process 0; ' in texts[1]
  )
  assert not (tmp_path / 'run').exists()


def test_a_work_directory_of_ones_own_is_refused(tmp_path):
  texts = launch(
    *(2, 1),
    task='disagree',
    workdirs=[str(tmp_path / 'a'), str(tmp_path / 'b')],
    splits=['train[:301]'] * 2,
    codes=(1,),
  )
  assert (
    'ValueError: Process 1 does not see what process 0 writes to' in texts[1]
  )
  assert 'such as gs://BUCKET/PATH' in texts[1]


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
  # At a rate of zero nothing has moved but the head, which is new: zeros.
  assert np.abs(old['head']['kernel']).max() > 0
  assert np.abs(new['head']['kernel']).max() == 0
  for name in ('embedding', 'cls'):
    np.testing.assert_array_equal(
      *(np.asarray(next(iter_leaves(tree[name]))) for tree in (old, new))
    )
  mlps = [t['Transformer']['encoderblock_1']['MlpBlock_0'] for t in (old, new)]
  np.testing.assert_array_equal(*(mlp['Dense_0']['kernel'] for mlp in mlps))


def iter_leaves(tree):
  """The arrays of a tree, or of one."""
  if isinstance(tree, dict):
    for value in tree.values():
      yield from iter_leaves(value)
  else:
    yield tree
