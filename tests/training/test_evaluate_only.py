"""Guards: --eval_only finds what training found, and keeps finished results."""

import json
import shutil

import pytest

from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax import convert
from vit_jax.evaluators.classification import Classification
from vit_jax.training import evaluate, train
from vit_jax.workdir import metrics


def _config(checkpoint=''):
  config = tiny_config(
    {
      'data.dataset': 'digits:0123',
      'data.train_split': 'train[:64]',
      'epochs': 3.0,
      'total_steps': 0,
      'init.checkpoint': checkpoint,
    }
  )
  config.schedule = config_lib.schedule('cosine', peak=1e-2, warmup_steps=2)
  config.optimizer = config_lib.adam()
  config.evals.test = config_lib.evaluation('test')
  return config


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('trained')
  return str(workdir), train.train_and_evaluate(_config(), workdir)


def test_what_training_found(trained, tmp_path):
  checkpoint, expected = trained
  config = _config(checkpoint)
  config.tuning.freeze, config.lora.rank = 'head', 2  # Nothing trains.
  found = evaluate.evaluate_only(config, tmp_path)
  for name in ('accuracy', 'loss', 'ece', 'count'):
    assert found[f'test/{name}'] == expected[f'test/{name}']
  assert found['step'] == 0
  assert (tmp_path / 'DONE').read_text() == '0\n'
  # Results on other data are not those that are asked for.
  config.data.dataset = 'digits:1234'
  with pytest.raises(ValueError, match=r'another config:\n  data.dataset: '):
    evaluate.evaluate_only(config, tmp_path)


def test_the_model_is_that_of_the_weights(trained, tmp_path):
  config = _config(trained[0])
  config.model = config_lib.default().model
  config.model.name = 'auto'
  config.epochs, config.total_steps = 0.0, 3
  found = evaluate.evaluate_only(config, tmp_path / 'evaluated')
  assert found['test/loss'] == trained[1]['test/loss']
  # A run that starts from the weights takes their model, too.
  train.train_and_evaluate(config, tmp_path / 'tuned')
  saved = config_lib.load(tmp_path / 'tuned')['model']
  assert (saved['name'], saved['width']) == ('ViT-Ti/4', 16)


def test_another_resolution_and_other_data(trained, tmp_path):
  config = _config(trained[0])
  config.image_size = (16, 12)
  config.evals.few = config_lib.evaluation(
    'test', 'few_shot', train_split='train', dataset='digits:89'
  )
  config.evals.shared = config_lib.evaluation('test')
  config.evals.shared.update(dataset='digits:0389', classes='names')
  config.evals.among = config_lib.evaluation('test')
  config.evals.among.update(
    dataset='digits:0389', classes='names', restrict=True
  )
  found = evaluate.evaluate_only(config, tmp_path)
  assert found['few/5shot/accuracy'] > 0.5
  # 75 images of 0 and 3; 68 of 8 and 9, which are unknown to the model.
  assert found['shared/count'] == 75
  assert found['shared/unlabelled'] == 68
  assert found['among/count'] == found['shared/count']
  assert found['among/accuracy'] > found['shared/accuracy']


def test_only_what_is_missing_is_evaluated(trained, tmp_path, monkeypatch):
  config = _config(trained[0])
  config.evals.half = config_lib.evaluation('test[:50%]')
  first = evaluate.evaluate_only(config, tmp_path)
  rows = metrics.read(tmp_path)
  runs = []
  original = Classification.run

  def run(self, *args):
    runs.append(len(self.data['test']))
    return original(self, *args)

  monkeypatch.setattr(Classification, 'run', run)
  assert evaluate.evaluate_only(config, tmp_path) == first
  assert (runs, metrics.read(tmp_path)) == ([], rows)
  config.evals.few = config_lib.evaluation('test[:10]')
  assert evaluate.evaluate_only(config, tmp_path)['few/count'] == 10
  assert runs == [10]


def test_a_changed_evaluation_that_is_interrupted(
  trained, tmp_path, monkeypatch
):
  config = _config(trained[0])
  config.evals.half = config_lib.evaluation('test[:50%]')
  evaluate.evaluate_only(config, tmp_path)
  config.evals.test.split = 'test[:10]'
  with monkeypatch.context() as patch:
    patch.setattr(metrics.MetricWriter, 'write', _interrupt)
    with pytest.raises(KeyboardInterrupt):
      evaluate.evaluate_only(config, tmp_path)
  # The result in the work directory is that of the earlier split.
  assert evaluate.evaluate_only(config, tmp_path)['test/count'] == 10
  assert list(config_lib.load(tmp_path)['evals']) == ['half', 'test']


def _interrupt(*_):
  raise KeyboardInterrupt


@pytest.mark.gate
def test_features_need_no_head(trained, tmp_path):
  config = _config(trained[0])
  config.data.dataset = 'digits:89'
  del config.evals.test
  config.evals.few = config_lib.evaluation(
    'test', 'few_shot', train_split='train', shots=(5,)
  )
  config.evals.near = config_lib.evaluation(
    'test', 'knn', train_split='train', k=(5, 20)
  )
  config.evals.inner = config_lib.evaluation(
    'test', 'knn', train_split='train', k=(5,)
  )
  config.evals.inner.layer = 'block_0'
  config.evals.probe = config_lib.evaluation(
    'test', 'linear_probe', train_split='train'
  )
  found = evaluate.evaluate_only(config, tmp_path)
  assert found['few/5shot/accuracy'] > 0.5
  assert found['near/20nn/accuracy'] > 0.8
  assert found['inner/5nn/accuracy'] != found['near/5nn/accuracy']
  assert found['probe/accuracy'] > 0.8
  for name, section in config.evals.items():
    assert found[f'{name}/count'] == 71
    for metric in config_lib.metrics_of(section):
      assert f'{name}/{metric}' in found
  config.evals.inner.layer = 'block_1'
  with pytest.raises(ValueError, match=r"evals\.inner: .* no layer 'block_1'"):
    evaluate.evaluate_only(config, tmp_path / 'other')


def test_another_loss(trained, tmp_path):
  config = _config(trained[0])
  config.loss.name = 'sigmoid'
  with pytest.raises(ValueError, match=r'was trained with loss\.name=soft'):
    evaluate.evaluate_only(config, tmp_path)


def test_weights_beside_a_run_have_not_its_loss(trained, tmp_path):
  checkpoint = shutil.copytree(f'{trained[0]}/checkpoints', tmp_path / 'copies')
  shutil.copy(f'{trained[0]}/config.json', tmp_path)
  config = _config(str(checkpoint / '12'))
  config.loss.name = 'sigmoid'
  found = evaluate.evaluate_only(config, tmp_path / 'evaluated')
  assert found['test/count'] > 0


def test_foreign_weights_say_how_images_are_prepared(trained, tmp_path):
  folder = tmp_path / 'folder'
  convert.convert(trained[0], folder)
  path = folder / 'preprocessor_config.json'
  facts = json.loads(path.read_text())
  own = {k: v for k, v in facts.items() if not k.startswith('vit_jax')}
  path.write_text(json.dumps(own | {'resample': 0, 'do_resize': True}))
  config = _config(str(folder))
  evaluate.evaluate_only(config, tmp_path / 'own')
  saved = config_lib.load(tmp_path / 'own')
  expected = "resize(method='pillow_nearest')"
  assert saved['evals']['test']['preprocess'] == expected
  assert saved['data']['jpeg_dct'] == 'accurate'
  # What the user names stays.
  config.evals.test.preprocess = "resize(method='bilinear')"
  evaluate.evaluate_only(config, tmp_path / 'named')
  saved = config_lib.load(tmp_path / 'named')
  assert saved['evals']['test']['preprocess'] == "resize(method='bilinear')"


def test_what_is_refused(trained, tmp_path):
  with pytest.raises(ValueError, match='--eval_only needs weights'):
    evaluate.evaluate_only(_config(), tmp_path)
  config = _config(trained[0])
  with pytest.raises(ValueError, match='belongs to a training run, but'):
    evaluate.evaluate_only(config, trained[0])
  config.data.dataset = 'digits:012'
  with pytest.raises(
    ValueError, match='--eval_only trains no head: evaluate on the'
  ):
    evaluate.evaluate_only(config, tmp_path)
  config = _config(trained[0])
  del config.evals.test
  with pytest.raises(ValueError, match='needs evals, but this config has none'):
    evaluate.evaluate_only(config, tmp_path)
  assert {path.name for path in tmp_path.iterdir()} == {
    'owner.json',
    'train.log',
  }
