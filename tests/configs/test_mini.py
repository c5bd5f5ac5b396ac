"""Guards: models and data of configs/mini.py keep the paper's proportions."""

import cv2
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import data, models
from vit_jax.config import inputs
from vit_jax.configs import mini
from vit_jax.models import position
from vit_jax.paper import cost
from vit_jax.paper.items.tables import table6


def _model(config):
  options = config.model.to_dict() | {'dtype': 'float32'}
  return models.build(options.pop('name'), num_classes=31, **options)


_MODELS = [*dict.fromkeys(start.model for start in table6.STARTS.values())]


@pytest.mark.parametrize('name', _MODELS)
def test_cost_keeps_its_proportion_within_a_family(name):
  if name.startswith('R50+'):
    return  # The ResNet is half of the cost and shrinks less.
  smallest = 'BiT-R50x1' if name.startswith('BiT-') else 'ViT-B/32'
  papers, macs = cost.MACS['paper'], cost.MACS['mini']
  ratio = macs[name] / macs[smallest] / (papers[name] / papers[smallest])
  assert 0.4 < ratio < 1.1


def test_every_model_of_the_paper_has_a_miniature():
  for name in (*_MODELS, 'ViT-b/32'):
    config = mini.get_config(f'{name},jft300m')
    grid = position.grid_of(_model(config), config.image_size)
    patch = name.rpartition('/')[2]
    if '/' in name:
      assert grid == {'32': (3, 3)}.get(patch, (6, 6))
    else:
      assert grid is None


def test_epochs_of_the_paper_give_proportional_steps():
  seven = mini.get_config('ViT-B/16,jft300m')
  assert seven.total_steps == 400
  assert mini.get_config('ViT-B/16,jft300m,epochs=14').total_steps == 800
  assert mini.get_config('ViT-B/16,imagenet21k,epochs=45').total_steps == 106
  assert seven.data.train_split == 'train[:48000]'
  subset = mini.get_config('ViT-B/16,jft300m,subset=1440')
  assert subset.data.train_split == 'shuffled(train[:48000])[:1440]'
  assert subset.total_steps == 400


def test_rates_keep_the_proportions_of_table_3():
  peaks = {
    name: mini.get_config(f'{name},jft300m').schedule.peak
    for name in ('ViT-B/16', 'ViT-L/16', 'BiT-R50x1', 'Axial-ViT-B/16')
  }
  assert peaks == pytest.approx(
    {
      'ViT-B/16': 3e-3,  # 8e-4 in the table.
      'ViT-L/16': 1.5e-3,  # 4e-4 in the table.
      'BiT-R50x1': 3.75e-3,  # 1e-3 in the table.
      'Axial-ViT-B/16': 3e-3,  # Not in the table.
    }
  )


def test_miniatures_support_masked_patch_prediction():
  config = mini.get_config('ViT-B/16,jft300m,epochs=14,objective=masked_patch')
  config_lib.validate(config)
  assert config.loss.name == 'masked_patch'
  assert config.evals.validation.kind == 'masked_patch'
  # The paper's rate is 2e-4 for masked patches and 8e-4 with labels.
  assert config.schedule.peak == pytest.approx(7.5e-4)
  assert config.total_steps == 800


def test_few_shot_average_adds_all_tasks():
  config = mini.get_config('ViT-L/32,jft300m,few_shot=average')
  config_lib.validate(config)
  assert [name for name in config.evals if name.startswith('few_shot')] == [
    'few_shot',
    'few_shot_cifar10',
    'few_shot_cifar100',
    'few_shot_flowers',
    'few_shot_pets',
  ]
  assert config.evals.few_shot_pets.dataset == 'shapes:shape+colour'
  assert config.evals.few_shot_cifar10.train_split == 'train'
  # One task is measured several times, the others only at the end.
  assert (config.evals.few_shot.every, config.evals.few_shot_pets.every) == (
    *(80, 0),
  )


def test_evals_sets_how_often_a_run_is_evaluated():
  def every(argument):
    evals = mini.get_config(f'ViT-B/32,{argument}').evals
    return evals.validation.every, evals.few_shot.every

  assert every('jft300m') == (80, 80)
  assert every('jft300m,evals=1') == (400, 400)
  assert every('imagenet2012,evals=73') == (1, 1)
  # This run has three steps.
  assert every('jft300m,epochs=0.05') == (1, 1)
  for often in (0, 401):
    with pytest.raises(ValueError, match=f'evals={often}, expected 1 to 400'):
      every(f'jft300m,evals={often}')


def test_user_data_replaces_the_scenes(tmp_path):
  # 2 classes with 200 images each to train, and 10 each to test.
  pixels = np.zeros((8, 8, 3), np.uint8)
  for split, count in (('train', 200), ('test', 10)):
    for name in ('cat', 'dog'):
      folder = tmp_path / split / name
      folder.mkdir(parents=True)
      for i in range(count):
        cv2.imwrite(f'{folder}/{i}.png', pixels)
  spec = f'folder:{tmp_path}'
  whole, small, part, task = (
    mini.get_config(f'ViT-B/32,{argument},of={spec}')
    for argument in (
      'jft300m',
      'imagenet21k',
      'jft300m,subset=4800',
      'imagenet',
    )
  )
  for config in (whole, small, part, task):
    config_lib.validate(config)
    assert config.data.dataset == spec
  source = inputs.open_source(whole, spec)
  whole_view, small_view, part_view, task_view = (
    data.View(source, config.data.train_split)
    for config in (whole, small, part, task)
  )
  # 90% of train, and of these 2,200 and 4,800 in 48,000.
  assert [len(whole_view), len(small_view), len(part_view)] == [360, 16, 36]
  held_out = data.View(source, whole.evals.validation.split)
  test = data.View(source, task.evals.test.split)
  assert [len(held_out), len(task_view), len(test)] == [40, 40, 20]
  assert small_view.shared(whole_view) == small_view.shared(part_view) == 16
  assert whole_view.shared(task_view) == whole_view.shared(held_out) == 0
  # The subset has both classes, although the files are sorted by class.
  assert {part_view.label(i) for i in range(36)} == {0, 1}
  # Other tasks keep their data.
  other = mini.get_config(f'ViT-B/32,cifar10,of={spec}')
  assert other.data.dataset == 'digits'


@pytest.mark.parametrize('task', mini.TASKS)
def test_tasks_are_tested_on_images_not_trained_on(task):
  config = mini.get_config(f'BiT-R50x1,{task}')
  config_lib.validate(config)
  source = inputs.open_source(config, config.data.dataset)
  train = data.View(source, config.data.train_split)
  test = data.View(source, config.evals.test.split)
  assert train.shared(test) == 0
  assert len(test) >= 360
  image = inputs.parse_preprocess(config, config.data.preprocess)(
    train[0].image, np.random.default_rng(0)
  )
  assert image.shape == (*config.image_size, config.channels)


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('ViT-B/16,cifar', "'cifar' is not one of its data sets.*cifar100"),
    ('ViT-B/16,jft300m,optimizer=lamb', "optimizer='lamb' .*'adam', 'sgd'"),
    ('ViT-B/16,pets,epochs=3', 'epochs= is for pre-training'),
    ('ViT-S/16,jft300m', "'ViT-S/16' has no miniature.*b, B, L, H"),
    ('ViT-B/8,jft300m', "'ViT-B/8' has no miniature.*32, 16, 14"),
  ],
)
def test_invalid_arguments_are_refused(argument, message):
  with pytest.raises(ValueError, match=message):
    mini.get_config(argument)
