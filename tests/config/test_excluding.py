"""Guards: configs accept lists of exclusions, and runs keep theirs."""

import cv2
import numpy as np
import pytest

from tests import tiny_run
from vit_jax import compare, data
from vit_jax import config as config_lib
from vit_jax.compare import table
from vit_jax.config import inputs
from vit_jax.configs import features, finetune, pretrain
from vit_jax.data import exclusion
from vit_jax.training import train


def _evals(config):
  return {
    name: (section.dataset, section.split)
    for name, section in config.evals.items()
  }


def test_the_list_belongs_to_the_data_spec():
  parse = features.get_config
  config = parse('folder:/data/a,b,resolution=32,exclude=/x/e.json')
  assert config.data.dataset == 'folder:/data/a,b,exclude=/x/e.json'
  assert config.image_size == (32, 32)
  config = parse('tfds:cifar10,exclude=gs://b/e.json')
  assert config.data.dataset == 'tfds:cifar10,exclude=gs://b/e.json'
  with pytest.raises(ValueError, match='needs a data spec'):
    config_lib.parse_argument(
      'exclude=/e.json', positional=(), options={}, usage=''
    )


@pytest.mark.parametrize(
  'file, given, spec, evals',
  [
    (
      *(finetune, 'cifar10', 'tfds:cifar10'),
      {'test': ('', 'test'), 'test_clean': ('tfds:cifar10,exclude=t', 'test')},
    ),
    (
      *(pretrain, 'imagenet2012', 'tfds:imagenet2012'),
      {
        'validation': ('', 'validation'),
        'validation_clean': ('tfds:imagenet2012,exclude=t', 'validation'),
      },
    ),
    (
      *(pretrain, 'folder:/a,eval=val', 'folder:/a'),
      {'val': ('', 'val'), 'val_clean': ('folder:/a,exclude=t', 'val')},
    ),
  ],
)
def test_clean_adds_an_evaluation(file, given, spec, evals):
  config = file.get_config(f'ViT-B/16,{given},exclude=/e.json,clean=t')
  assert config.data.dataset == f'{spec},exclude=/e.json'
  assert _evals(config) == evals
  first, second = (dict(section) for section in config.evals.values())
  assert first | {'dataset': second['dataset']} == second


def test_other_evaluations_have_no_clean_one():
  config = finetune.get_config('ViT-B/16,imagenet2012,real=true,clean=t')
  assert set(config.evals) == {'test', 'real', 'test_clean'}
  with pytest.raises(ValueError, match=r'whole test split.*held_out'):
    finetune.get_config('ViT-B/16,cifar10,train=selection,clean=t')


def test_a_run_without_some_examples_has_as_many_steps():
  config = pretrain.get_config('ViT-B/16,imagenet2012,exclude=e')
  assert not config.data.num_examples
  assert config.data.examples_per_epoch == 1_281_167
  with pytest.raises(ValueError, match='needs the location of the data'):
    pretrain.get_config('ViT-B/16,jft300m,exclude=e')


def _folder(root, splits):
  for split in splits:
    for name in ('a/1', 'a/2', 'a/3', 'b/1', 'b/2', 'b/3'):
      path = root / split / f'{name}.png'
      path.parent.mkdir(parents=True, exist_ok=True)
      cv2.imwrite(str(path), np.full((8, 8, 3), 9 * int(name[-1]), np.uint8))
  return f'folder:{root}'


def test_a_chosen_split_gets_a_clean_evaluation(tmp_path):
  spec = _folder(tmp_path, ['train', 'val'])
  source = data.open_source(spec)
  config = pretrain.get_config(f'ViT-Ti/4,{spec},clean=t')
  assert _evals(inputs.settle(config, source)) == {
    'val': ('', 'val'),
    'val_clean': (f'{spec},exclude=t', 'val'),
  }
  config.evals.auto.split = 'train'
  assert set(inputs.settle(config, source).evals) == {
    'held_out',
    'held_out_clean',
  }
  spec = _folder(tmp_path / 'other', ['train'])
  config = pretrain.get_config(f'ViT-Ti/4,{spec},clean=t')
  with pytest.raises(ValueError, match='leave out clean='):
    inputs.settle(config, data.open_source(spec))


def test_the_options_of_the_training_data_hold_without_some_examples(
  monkeypatch,
):
  config = tiny_run.tiny_config(
    {'data.image_key': 'photo', 'data.label_key': 'kind'}
  )
  keys = []
  monkeypatch.setattr(
    data,
    'open_source',
    lambda spec, **kw: keys.append((kw['image_key'], kw['label_key'])),
  )
  config.data.dataset = 'tfds:a,exclude=e'
  for spec in ('tfds:a', 'tfds:a,exclude=t', 'tfds:b,exclude=e'):
    inputs.open_source(config, spec)
  assert keys == [('photo', 'kind'), ('photo', 'kind'), ('image', 'label')]


def test_a_list_may_move_but_not_appear(tmp_path):
  config = tiny_run.tiny_config({'data.dataset': 'digits,exclude=/a/e.json'})
  config_lib.save(config, tmp_path)
  config.data.dataset = 'digits,exclude=/b/e.json'
  config_lib.check_same_run(config, tmp_path)
  for spec in ('digits', 'digits:01,exclude=/a/e.json'):
    config.data.dataset = spec
    with pytest.raises(ValueError, match=r'data\.dataset'):
      config_lib.check_same_run(config, tmp_path)
  config.data.dataset = 'folder:/a'
  config_lib.save(config, tmp_path)
  config.data.dataset = 'folder:/a,exclude=e'
  with pytest.raises(ValueError, match=r'data\.dataset'):
    config_lib.check_same_run(config, tmp_path)


def test_a_run_keeps_its_list_and_tells_of_it(tmp_path, caplog):
  caplog.set_level('INFO')
  whole = data.open_source('digits:01')
  path, run = tmp_path / 'exclude.json', tmp_path / 'run'
  exclusion.write(path, whole, {'train': [3, 5]})
  spec = exclusion.join('digits:01', str(path))
  config = tiny_run.tiny_config({'data.dataset': spec, 'total_steps': 1})
  config.evals.test = config_lib.evaluation('test')
  clean = tmp_path / 'clean.json'
  exclusion.write(clean, whole, {'test': [0, 2, 4]})
  config_lib.add_clean(config, str(clean), '')
  values = train.train_and_evaluate(config, run)
  assert values['test/count'] - values['test_clean/count'] == 3
  size = whole.info.splits['train']
  note = f'training data: 2 of {size} excluded by exclude.json'
  assert f'{note}.' in caplog.messages
  assert 'test: test: 0 of' in caplog.text
  runs = compare.load_runs(run)
  tests = whole.info.splits['test']
  note += f'; test_clean: test: 3 of {tests} excluded by clean.json'
  assert runs['excluded'][0] == note
  assert f'{note}.' in table.render(runs, [], 200)
  # Another list of the same size has another digest.
  exclusion.write(path, whole, {'train': [3, 6]})
  config.total_steps = 1
  config.evals.test.every = 1  # Something is left to do.
  with pytest.raises(ValueError, match='exclusion list: digest'):
    train.train_and_evaluate(config, run)
