"""The models and data of configs/mini.py keep the paper's proportions."""

import numpy as np
import pytest

from configs import mini
from vit_jax import accounting, inputs, models
from vit_jax import config as config_lib
from vit_jax.paper import numbers


def _model(config):
  options = config.model.to_dict() | {'dtype': 'float32'}
  return models.build(options.pop('name'), num_classes=31, **options)


def _macs(name):
  return accounting.forward_macs(
    _model(mini.get_config(f'{name},jft300m')), mini.IMAGE_SIZE
  )


@pytest.mark.parametrize('row', numbers.ROWS_6)
def test_cost_keeps_its_proportion_within_a_family(row):
  name, _ = row
  if name.startswith('R50+'):
    return  # Half of a hybrid is its root, which does not shrink as the rest.
  smallest = 'BiT-R50x1' if name.startswith('BiT-') else 'ViT-B/32'
  printed = numbers.COMPUTE[f'{name}, {row[1]} epochs', 'GMACs'].value
  base = numbers.COMPUTE[f'{smallest}, 7 epochs', 'GMACs'].value
  ratio = _macs(name) / _macs(smallest) / (printed / base)
  assert 0.4 < ratio < 1.1


def test_names_of_the_paper_are_models_here():
  for name in (*(model for model, _ in numbers.ROWS_6), 'ViT-b/32'):
    config = mini.get_config(f'{name},jft300m')
    grid = _model(config).token_grid(config.image_size)
    patch = name.rpartition('/')[2]
    if '/' in name:
      assert grid == {'32': (4, 4)}.get(patch, (8, 8))
    else:
      assert grid is None


def test_epochs_are_the_papers():
  seven = mini.get_config('ViT-B/16,jft300m')
  assert seven.total_steps == 2_000
  assert mini.get_config('ViT-B/16,jft300m,epochs=14').total_steps == 4_000
  assert mini.get_config('ViT-B/16,imagenet21k,epochs=45').total_steps == 530
  assert seven.data.train_split == 'train[:48000]'
  subset = mini.get_config('ViT-B/16,jft300m,subset=1440')
  assert subset.data.train_split == 'shuffled(train[:48000])[:1440]'
  assert subset.total_steps == 2_000


@pytest.mark.parametrize('task', mini.TASKS)
def test_tasks_are_measured_on_other_images(task):
  config = mini.get_config(f'BiT-R50x1,{task}')
  config_lib.validate(config)
  source = inputs.open_source(config, config.data.dataset)
  from vit_jax import data

  train = data.View(source, config.data.train_split)
  test = data.View(source, config.evals.test.split)
  assert train.shared(test) == 0
  assert len(test) >= 360
  image = inputs.parse_preprocess(config, config.data.preprocess)(
    train[0].image, np.random.default_rng(0)
  )
  channels = 1 if task == 'cifar10' else 3
  assert image.shape == (32, 32, channels) or channels == 1


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('ViT-B/16,cifar', "'cifar' is no data set here.*cifar100"),
    ('ViT-B/16,jft300m,optimizer=lamb', "optimizer='lamb' .*'adam', 'sgd'"),
    ('ViT-B/16,pets,epochs=3', 'epochs= is for pre-training'),
    ('ViT-S/16,jft300m', "'ViT-S/16' has no miniature.*b, B, L, H"),
    ('ViT-B/8,jft300m', "'ViT-B/8' has no miniature.*32, 16, 14"),
  ],
)
def test_what_is_refused(argument, message):
  with pytest.raises(ValueError, match=message):
    mini.get_config(argument)
