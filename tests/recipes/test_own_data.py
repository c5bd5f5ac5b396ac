"""Guards: recipes on data of one's own, and those of several stages."""

import numpy as np
import pytest

from tests.recipes import small
from vit_jax import config as config_lib
from vit_jax.config import inputs

OWN = 'S/16,data=folder:/data/birds,image_size=32'
# A recipe, with the stages that it has.
STAGED = [
  f'{name}:{OWN},stage={stage}'
  for name in ('deit3', 'vit5', 'mae')
  for stage in ('finetune', 'all')
]
RECIPES = [f'{name}:{OWN}{rest}' for name, rest in small.RECIPES.items()]


def stages(recipe):
  config = small.config_of(recipe)
  if 'stages' not in config:
    return [config]
  return [config.stages[name] for name in config.order]


@pytest.mark.parametrize('recipe', RECIPES + STAGED)
def test_a_recipe_suits_small_images(recipe):
  # Each column is brighter than the one before.
  image = np.tile(np.arange(256, dtype=np.uint8)[:, None], (256, 1, 3))
  for config in stages(recipe):
    config_lib.validate(config, located=False)
    assert config.image_size == (32, 32)
    [section] = config.evals.values()
    patches = config.loss.name in config_lib.PATCH_LOSSES
    assert section.kind == (config.loss.name if patches else 'classification')
    preprocess = inputs.parse_preprocess(config, section.preprocess)
    seen = preprocess(image, np.random.default_rng(0))
    assert seen.shape == (32, 32, 3)
    assert np.ptp(np.int32(seen)) > 210
    # By the number of classes: -10 is for thousands.
    assert config.model.head_bias is None
    # A rate of its own only where weights are trained already.
    assert (config.schedule.peak == -1) == (config.init.checkpoint == '')


def test_all_stages_read_the_same_data():
  first, second = stages(f'deit3:{OWN},stage=all,train=a,eval=b,epochs=3')
  for config in first, second:
    assert (config.data.train_split, config.evals.b.split) == ('a', 'b')
  assert (first.epochs, second.epochs) == (3, 20)


def test_the_splits_of_the_first_stage_are_not_those_of_imagenet():
  first, second = stages('deit3_21k:B/16,stage=all,train=a,eval=b')
  assert (first.data.train_split, second.data.train_split) == ('a', 'train')
  first, second = stages('deit3_21k:B/16,stage=all,copy=folder:/data/i21k')
  assert first.data.dataset == 'folder:/data/i21k'
  assert second.data.dataset == 'tfds:imagenet2012'
  assert second.evals.validation.split == 'validation'


def test_lars_is_for_large_batches():
  known, own = (
    small.config_of(f'mae:S/16,stage=finetune,tune=head{data}')
    for data in ('', ',data=folder:/data/birds')
  )
  assert known.optimizer.name == 'lars'
  own.init.checkpoint = '/weights'
  own = config_lib.resolve(own, num_examples=300, num_classes=5)
  assert (own.optimizer.name, own.schedule.peak) == ('adamw', 1e-3)


def test_sam_looks_less_far_with_small_batches():
  assert small.config_of('sam:S/16').sam.rho == 0.6
  assert small.config_of(f'sam:{OWN}').sam.rho == 0.05


@pytest.mark.parametrize('recipe', ['distill:S/16', 'flexi:S/16'])
def test_a_teacher_is_asked_for(recipe):
  with pytest.raises(ValueError, match=r'--config\.\w+\.\w+=WORKDIR'):
    config_lib.validate(small.config_of(recipe))
