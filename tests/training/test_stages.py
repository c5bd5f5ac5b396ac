"""Guards: stages run in order from the named weights; the table of results."""

import ml_collections
import pytest

from tests.tiny_run import assert_same_but, tiny_config, weights
from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.training import stages


def _stage(dataset, size, init=''):
  return tiny_config(
    {
      'data.dataset': dataset,
      'data.train_split': 'train[:48]',
      'image_size': size,
      'init.checkpoint': init,
    }
  )


def _config(order=('pretrain', 'finetune'), **runs):
  return ml_collections.ConfigDict({'stages': runs, 'order': order})


def test_stages_run_in_order_from_the_named_weights(tmp_path, capsys):
  pretrain = _stage('digits:135', (8, 8))
  pretrain.evals.test = config_lib.evaluation('test[:20]')
  finetune = _stage('digits:02', (16, 8), init='stage:pretrain')
  # The model is that of the weights.
  finetune.model = config_lib.default().model
  finetune.model.name = 'auto'
  finetune.schedule.peak = 0.0  # So that the weights do not change.
  config = _config(finetune=finetune, pretrain=pretrain)
  stages.train_stages(config, tmp_path)
  for name in ('pretrain', 'finetune'):
    assert (tmp_path / name / 'DONE').read_text() == '2\n'
  old, new = map(weights, (tmp_path / 'pretrain', tmp_path / 'finetune'))
  position = 'Transformer/posembed_input/pos_embedding'
  assert new[position].shape == (1, 1 + 4 * 2, 16)
  assert new['head/kernel'].shape == (16, 2)
  assert_same_but(new, old, but={position, 'head/kernel', 'head/bias'})
  printed = capsys.readouterr().out
  finals = {
    name: results.final_metrics(tmp_path / name) for name in config.order
  }
  assert printed == stages.summary(tmp_path, finals) + '\n'

  # A second launch only prints the table.
  stages.train_stages(config, tmp_path)
  assert capsys.readouterr().out == printed
  for name in config.order:
    assert results.final_metrics(tmp_path / name) == finals[name]


def test_summary_compares_the_stages(tmp_path):
  tmp_path /= 'a run'
  tmp_path.mkdir()
  finals = {}
  for name, dataset, size, init in (
    ('pretrain', 'digits:135', (8, 8), ''),
    ('finetune', 'digits:02', (16, 12), 'stage:pretrain'),
  ):
    config = config_lib.resolve(
      _stage(dataset, size, init), num_examples=48, num_classes=2
    )
    config.total_steps = 1600
    (tmp_path / name).mkdir()
    config_lib.save(config, tmp_path / name)
    finals[name] = {
      'step': 1600,
      'train/accuracy': 1.0,
      'validation/accuracy': 0.5,
      'validation/count': 12.0,
      'test/accuracy': 0.98765,
      'test/count': 1234.0,
    }
  del finals['pretrain']['validation/accuracy']
  lines = stages.summary(tmp_path, finals).splitlines()
  assert lines[1].split() == [
    *('stage', 'data', 'images', 'steps', 'weights', 'from', 'accuracy'),
  ]
  assert [' '.join(line.split()) for line in lines[2:4]] == [
    'pretrain digits:135 train[:48] 48 1,600 scratch test 98.77% of 1,234',
    'finetune digits:02 train[:48] 48 1,600 pretrain'
    ' validation 50.00% of 12, test 98.77% of 1,234',
  ]


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'order': ('a', 'b', 'b')}, r"each of the stages \['a', 'b'\]"),
    ({'order': ('a',)}, r"each of the stages \['a', 'b'\]"),
    ({'init.checkpoint': 'stage:b'}, r"'stage:b' .* those are \['a'\]"),
    ({'distill.teacher': 'stage:b'}, r"'stage:b' .* those are \['a'\]"),
    ({'log.every': 0}, r'log\.every=0'),
    ({'data.dataset': 'folder:/nowhere'}, r'^stages.b: folder:.*no folder'),
    ({'data.train_split': 'trane'}, r"^stages.b: .*'trane'"),
    (
      {'mesh.data': 8, 'data.batch_size': 50},
      r'^stages\.b: .*batch_size=50.* 8 ',
    ),
  ],
)
def test_no_stage_starts_if_a_later_one_is_wrong(tmp_path, changes, message):
  order = changes.pop('order', ('a', 'b'))
  config = _config(
    order, a=_stage('digits', (8, 8)), b=_stage('digits', (8, 8))
  )
  config.stages.b.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=message):
    stages.train_stages(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
