"""Guards: the other config files, and arguments that do not fit."""

import pytest

from vit_jax import config as config_lib
from vit_jax.configs import (
  finetune,
  masked_patch,
  pretrain,
  quickstart,
  robustness,
)
from vit_jax.data import splits

OWN = 'folder:/data/a'

# Masked patch prediction -----------------------------------------------------


def test_masked_patch_prediction_has_the_papers_settings():
  config = masked_patch.get_config('ViT-B/16,jft300m')
  assert config.loss.to_dict() == {
    'name': 'masked_patch',
    'target': 'mean_colour',
    'fraction': 0.5,
    'mask_share': 0.8,
    'other_share': 0.1,
  }
  schedule = config.schedule.to_dict()
  assert schedule == schedule | {
    'name': 'cosine',
    'peak': 2e-4,
    'warmup_steps': 10_000,
    'end': 0.0,
  }
  assert (
    config.optimizer.to_dict()
    == config_lib.optimizer('adamw', weight_decay=0.0).to_dict()
  )
  assert config.data.batch_size == 4096
  assert config.total_steps == 1_000_000
  assert not config.epochs
  assert config.image_size == (224, 224)
  assert config.model.name == 'ViT-B/16'
  for key in ('representation_size', 'dropout_rate'):
    assert config.model[key] is None
  assert config.evals.validation.kind == 'masked_patch'
  assert config.evals.validation.split == 'train[:51200]'
  config.data.dataset = 'folder:/data/jft'
  config_lib.validate(config)
  resolved = config_lib.resolve(
    config, num_examples=303_000_000, num_classes=18_291
  )
  assert resolved.total_steps == 1_000_000


def test_options_of_masked_patch_prediction():
  config = masked_patch.get_config(
    'ViT-S/8,folder:/data/a,target=pixels,fraction=0.15,steps=500,eval=test,'
    'few_shot=digits'
  )
  assert config.data.dataset == 'folder:/data/a'
  assert (config.loss.target, config.loss.fraction) == ('pixels', 0.15)
  assert config.evals.test.split == 'test'
  assert config.evals.few_shot.dataset == 'digits'
  # A short run has a short warm-up.
  resolved = config_lib.resolve(config, num_examples=10_000, num_classes=2)
  assert resolved.schedule.warmup_steps == 50


# Robustness and the quickstart -----------------------------------------------


def test_robustness():
  config = robustness.get_config('ViT-B/16,validation+real+a')
  assert {name: s.split for name, s in config.evals.items()} == {
    'validation': 'validation',
    'real': 'validation',
    'a': 'test',
  }
  trained = finetune.get_config('ViT-B/16,imagenet2012').evals.test.preprocess
  assert {s.preprocess for s in config.evals.values()} == {trained}
  real, a = config.evals.real, config.evals.a
  assert (real.dataset, real.label_key) == (
    'tfds:imagenet2012_real',
    'real_label',
  )
  assert (a.dataset, a.classes, a.restrict) == (
    *('tfds:imagenet_a', 'names', True),
  )
  assert config.init.checkpoint is None
  everything = robustness.get_config('ViT-B/16,all').evals
  assert list(everything) == ['a', 'r', 'real', 'v2', 'validation']


def test_quickstart_is_a_fair_transfer():
  config = quickstart.get_config()
  assert config.order == ('pretrain', 'finetune', 'scratch')
  first, tuned, scratch = (config.stages[name] for name in config.order)
  for name in config.order:
    config_lib.validate(config.stages[name])
    alone = quickstart.get_config(name)
    assert alone.to_dict() == config.stages[name].to_dict()
  # Fine-tuning has other digits, at twice the resolution.
  assert first.data.dataset == 'digits:13589'
  assert tuned.data.dataset == 'digits:02467'
  assert tuned.image_size == tuple(2 * size for size in first.image_size)
  assert tuned.init.checkpoint == 'stage:pretrain'
  assert scratch.init.checkpoint == ''
  for key in ('data', 'model', 'image_size', 'total_steps', 'evals'):
    assert tuned[key] == scratch[key], key
  sizes = {'train': 1000, 'test': 200}
  used = [
    range(start, stop)
    for split in (
      tuned.data.train_split,
      tuned.evals.validation.split,
      tuned.evals.test.split,
    )
    for name, start, stop in splits.resolve(split, sizes).parts
    if name == 'train'
  ]
  assert sorted(i for part in used for i in part) == list(range(1000))


@pytest.mark.parametrize(
  'file, argument, message',
  [
    (finetune, 'ViT-B/16,pets,train=some', r"='some' .*'all', 'selection'"),
    (finetune, 'ViT-B/16,pets,preprocess=vgg', r"'vgg' .*'inception', 'crop'"),
    (finetune, 'ViT-B/16,pets,epochs=2', 'epochs=2 is for data of your own'),
    (finetune, 'ViT-B/16,pets,eval=val', 'eval=val is for data of your own'),
    (
      finetune,
      f'ViT-B/16,{OWN},train=selection,eval=val',
      'eval=val is for train=all',
    ),
    (finetune, 'R50x1,pets,tune=head,setup=bit', r'tune=head has an .*=bit'),
    (
      finetune,
      'ViT-B/16,real=true,imagenet2012,train=selection',
      'not on imagenet2012 with train=selec',
    ),
    (pretrain, 'ViT-B/16,digits,optimizer=lamb', r"='lamb' .*'adam', 'sgd'"),
    (pretrain, 'ViT-B/16,digits,subset=50', r'subset=50 stops early, .*eval='),
    (
      pretrain,
      'ViT-B/16,digits,eval=train[98%:],subset=50',
      r"stopped early by 'train\[98%:\]', whi",
    ),
    *(
      (pretrain, f'ViT-B/16,jft300m,subset={subset}', 'a number of examples')
      for subset in ('0', '101%', '1.5', 'all', '1e6')
    ),
    (pretrain, f'ViT-B/16,{OWN},data=digits', 'names its data itself'),
    (masked_patch, 'ViT-B/16', 'lacks DATASET'),
    (masked_patch, 'ViT-B/16,digits,steps=many', 'not of type int'),
    (robustness, 'ViT-B/16,real+reel', r"\['reel'\] are not sets"),
    (robustness, 'ViT-B/16,objectnet', 'objectnet=PATH belong together'),
  ],
)
def test_arguments_that_do_not_fit(file, argument, message):
  with pytest.raises(ValueError, match=message) as error:
    file.get_config(argument)
  assert 'Usage: configs/' in str(error.value)
