"""Guards: --eval_only finds what training found, and more if asked."""

import json
import shutil
from unittest import mock

import pytest

from tests.tiny_run import Death, tiny_config
from vit_jax import config as config_lib
from vit_jax import convert
from vit_jax.evaluators import predictions
from vit_jax.training import evaluate


def _config(checkpoint=''):
  config = tiny_config({'init.checkpoint': str(checkpoint)})
  config.evals.test = config_lib.evaluation('test')
  return config


def _auto_config(checkpoint):
  """Neither the model nor a run's length is named, and nothing would train."""
  config = _config(checkpoint)
  config.model = config_lib.default().model
  config.model.name = 'auto'
  config.epochs, config.total_steps = 0.0, 3
  config.tuning.freeze, config.lora.rank = 'head', 2
  return config


@pytest.fixture(scope='module')
def evaluated(finished, tmp_path_factory):
  """The run's own evaluation: a directory of results, and the results."""
  workdir = tmp_path_factory.mktemp('evaluated')
  config = _auto_config(finished[0])
  config.evals.test.save_predictions = True
  return workdir, evaluate.evaluate_only(config, workdir)


def test_what_training_found(finished, evaluated):
  workdir, found = evaluated
  for name in ('accuracy', 'loss', 'ece', 'count'):
    assert found[f'test/{name}'] == finished[1][f'test/{name}']
  assert found['step'] == 0
  assert (workdir / 'DONE').read_text() == '0\n'
  saved, expected = (
    predictions.read(predictions.path(each, 'test'))
    for each in (workdir, finished[0])
  )
  assert saved[0]['correct'].tolist() == expected[0]['correct'].tolist()
  assert saved[1]['step'] == 0


def test_a_later_launch_adds_evaluations(
  finished, evaluated, tmp_path, monkeypatch
):
  workdir = shutil.copytree(evaluated[0], tmp_path / 'copy')
  config = _auto_config(finished[0])
  config.evals.few = config_lib.evaluation('test[:10]')
  found = evaluate.evaluate_only(config, workdir)
  assert (found['few/count'], found['test/count']) == (10, 72)
  assert list(config_lib.load(workdir)['evals']) == ['few', 'test']
  # Results on other data are not those that are asked for.
  config.data.dataset = 'digits:10'
  with pytest.raises(ValueError, match=r"has results on .* not on 'digits:10'"):
    evaluate.evaluate_only(config, workdir)
  assert (workdir / 'DONE').exists()
  # Results of several weights are not passed off as finished.
  monkeypatch.setattr(evaluate.Run, 'evaluate', mock.Mock(side_effect=Death))
  with pytest.raises(Death):
    evaluate.evaluate_only(_auto_config(finished[0]), workdir)
  assert not (workdir / 'DONE').exists()


def test_another_resolution_and_other_data(finished, tmp_path):
  config = _config(finished[0])
  config.image_size = (16, 12)
  config.evals.test.update(dataset='digits:0389', classes='names')
  found = evaluate.evaluate_only(config, tmp_path)
  # The images of 0; those of 3, 8 and 9 are unknown to the model.
  assert found['test/count'] == 35
  assert found['test/unlabelled'] == 108


def test_features_need_neither_the_head_nor_its_loss(finished, tmp_path):
  config = _config(finished[0])
  config.data.dataset, config.loss.name = 'digits:89', 'sigmoid'
  del config.evals['test']
  config.evals.few = config_lib.evaluation(
    'test', 'few_shot', train_split='train', shots=(5,)
  )
  for name in ('near', 'inner'):
    config.evals[name] = config_lib.evaluation(
      'test', 'knn', train_split='train', k=(5,)
    )
  config.evals.inner.layer = 'block_0'
  found = evaluate.evaluate_only(config, tmp_path)
  assert found['few/5shot/accuracy'] > 0.5
  assert found['near/5nn/accuracy'] > 0.8
  assert found['inner/5nn/accuracy'] != found['near/5nn/accuracy']
  for name, section in config.evals.items():
    assert found[f'{name}/count'] == 71
    for metric in config_lib.metrics_of(section):
      assert f'{name}/{metric}' in found
  config.evals.inner.layer = 'block_1'
  with pytest.raises(ValueError, match=r"evals\.inner: .* no layer 'block_1'"):
    evaluate.evaluate_only(config, tmp_path / 'other')


def test_foreign_weights_say_how_images_are_prepared(finished, tmp_path):
  folder = tmp_path / 'folder'
  convert.convert(str(finished[0]), folder)
  path = folder / 'preprocessor_config.json'
  facts = json.loads(path.read_text())
  own = {k: v for k, v in facts.items() if not k.startswith('vit_jax')}
  path.write_text(json.dumps(own | {'resample': 0, 'do_resize': True}))
  config = _config(folder)
  # What the user names stays.
  config.evals.named = config_lib.evaluation('test')
  config.evals.named.preprocess = "resize(method='bilinear')"
  evaluate.evaluate_only(config, tmp_path / 'run')
  saved = config_lib.load(tmp_path / 'run')
  expected = "resize(method='pillow_nearest')"
  assert saved['evals']['test']['preprocess'] == expected
  assert saved['evals']['named']['preprocess'] == "resize(method='bilinear')"
  assert saved['data']['jpeg_dct'] == 'accurate'


def test_what_is_refused(finished, tmp_path):
  checkpoint = str(finished[0])
  for changes, workdir, message in (
    ({'init.checkpoint': ''}, tmp_path, '--eval_only needs weights'),
    ({}, checkpoint, 'belongs to a training run, but'),
    ({'data.dataset': 'digits:012'}, tmp_path, 'trains no head: evaluate on'),
    ({'loss.name': 'sigmoid'}, tmp_path, r'trained with loss\.name=soft'),
    ({'evals': {}}, tmp_path, 'needs evals, but this config has none'),
  ):
    config = _config(checkpoint)
    config.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=message):
      evaluate.evaluate_only(config, workdir)
  names = {path.name for path in tmp_path.iterdir()}
  assert names == {'owner.json', 'train.log'}
