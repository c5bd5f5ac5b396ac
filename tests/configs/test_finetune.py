"""Guards: configs/finetune.py agrees with literal copies of Table 4."""

import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.configs import finetune, robustness
from vit_jax.data import splits
from vit_jax.training import warm_start

# Data set -> spec, steps, warm-up, the percentage to train on while the rate is
# chosen on the rest, and the split to report. The rates are compared in
# tests/paper/items/test_settings.py and tests/sweep/test_reading.py.
TABLE_4 = {
  'imagenet2012': ('tfds:imagenet2012', 20_000, 500, 99, 'validation'),
  'cifar100': ('tfds:cifar100', 10_000, 500, 98, 'test'),
  'cifar10': ('tfds:cifar10', 10_000, 500, 98, 'test'),
  'pets': ('tfds:oxford_iiit_pet', 500, 100, 90, 'test'),
  'flowers': ('tfds:oxford_flowers102', 500, 100, 90, 'test'),
}
OWN = 'folder:/data/a'


@pytest.mark.parametrize('dataset', TABLE_4)
def test_table_4(dataset):
  spec, steps, warmup_steps, _, test = TABLE_4[dataset]
  config = finetune.get_config(f'ViT-B/16,{dataset}')
  assert config.data.dataset == spec
  assert config.total_steps == steps
  schedule = config.schedule.to_dict()
  assert schedule == schedule | {
    'name': 'cosine',
    # The rate of the released run with the accuracy in the config's docstring.
    'peak': 0.01 if dataset == 'cifar10' else 0.03,
    'warmup_steps': warmup_steps,
    'end': 0.0,
  }
  assert config.data.preprocess == 'inception_crop|flip'
  (evaluation,) = config.evals.values()
  assert evaluation.preprocess == 'resize'
  assert config.optimizer.to_dict() == {
    'name': 'sgd',
    'momentum': 0.9,
    'weight_decay': 0.0,
    'weight_decay_params': 'all',
    'accumulator_dtype': 'float32',
    'nesterov': False,
    'clip_norm': 1.0,
  }
  assert config.data.batch_size == 512
  assert config.image_size == (384, 384)
  assert config.polyak.decay == 0
  assert config.loss.to_dict() == config_lib.softmax().to_dict()
  assert config.model.representation_size is None
  assert config.init.new_head
  assert config.data.train_split == 'train'
  assert evaluation.split == test
  assert list(config.evals) == ['test']


@pytest.mark.parametrize(
  'images, batch_size, steps, peak',
  [
    (60, 16, 75, 0.03 / 32**0.5),
    (500, 32, 312, 0.03 / 4),
    (100_000, 512, 3_906, 0.03),
  ],
)
def test_fine_tuning_suits_the_size_of_data_of_ones_own(
  images, batch_size, steps, peak
):
  config = finetune.get_config(f'ViT-B/16,{OWN}')
  assert config.data.dataset == OWN
  config.init.checkpoint = 'runs/b16'
  config = config_lib.resolve(config, num_examples=images, num_classes=5)
  assert config.data.batch_size == batch_size
  assert config.total_steps == steps
  assert config.schedule.peak == pytest.approx(peak)
  assert config.schedule.warmup_steps == steps // 10
  assert config.evals.auto.every == steps // 10
  # Time, not steps, decides when a short run saves.
  assert config.checkpoint.every == 5_000
  assert config.checkpoint.every_minutes == 10
  # The head alone has an optimizer and a rate of its own.
  config = finetune.get_config(f'ViT-B/16,{OWN},tune=head,epochs=2')
  assert (config.schedule.peak, config.epochs) == (1e-3, 2)
  of_bit = finetune.get_config(f'setup=bit,BiT-R50x1,{OWN},train=selection')
  assert (of_bit.schedule.peak, of_bit.mixup_alpha) == (0.003, 0)
  assert of_bit.data.preprocess == 'resize(448)|random_crop|flip'
  assert of_bit.data.train_split == 'shuffled(train)[:90%]'


@pytest.mark.parametrize(
  'model', ['ViT-L/16', 'R50+ViT-B/32', 'Axial-ViT-B/16', 'BiT-R50x1']
)
def test_table_4_applies_to_all_models(model):
  config = finetune.get_config(f'{model},cifar100')
  expected = finetune.get_config('ViT-B/16,cifar100')
  rate = 0.1 if model == 'ViT-L/16' else 0.0
  assert (config.model.dropout_rate or 0.0) == rate
  config.model = expected.model
  config.dropout_rng = expected.dropout_rng
  assert config == expected


@pytest.mark.parametrize(
  'model, counterpart, rate',
  [
    ('R50+ViT-B/16', 'ViT-B/16', 0.0),
    ('R50+ViT-B/32', 'ViT-B/32', 0.0),
    ('R50+ViT-L/32', 'ViT-L/32', 0.0),
    ('R50+ViT-L/16', 'ViT-L/16', 0.1),
    ('R26+ViT-S/32', 'ViT-S/32', 0.0),
  ],
)
def test_a_hybrid_is_finetuned_like_its_vit(model, counterpart, rate):
  """Figure 5 and Table 6 compare hybrids with their ViTs."""
  hybrid, vit = (
    finetune.get_config(f'{name},imagenet2012') for name in (model, counterpart)
  )
  assert hybrid.model.dropout_rate == rate
  hybrid.model.name = counterpart
  assert hybrid == vit


@pytest.mark.parametrize('dataset', [*TABLE_4, OWN])
def test_rates_are_selected_without_the_test_split(dataset):
  *_, percent, test = TABLE_4.get(dataset, (90, 'auto'))
  config = finetune.get_config(f'ViT-B/16,{dataset},train=selection')
  sizes = {'train': 1000, test: 1000}
  trained = splits.resolve(config.data.train_split, sizes)
  (evaluation,) = config.evals.values()
  held_out = splits.resolve(evaluation.split, sizes)
  if dataset in finetune.TABLE_4:
    assert trained.parts == (('train', 0, 10 * percent),)
    assert held_out.parts == (('train', 10 * percent, 1000),)
  else:
    # Files are sorted by class, so a slice would have only a few classes.
    assert config.data.train_split.startswith('shuffled(')
    assert (len(trained), len(held_out)) == (10 * percent, 100)
    assert not trained.shared(held_out)
  assert evaluation.dataset == ''


@pytest.mark.parametrize(
  'dataset, resolution',
  [('imagenet2012', 384), ('imagenet2012', 512), ('pets', 518)],
)
def test_resolution_sets_the_image_size(dataset, resolution):
  config = finetune.get_config(f'ViT-H/14,{dataset},resolution={resolution}')
  assert config.image_size == (resolution, resolution)
  averaged = dataset == 'imagenet2012' and resolution > 384
  assert config.polyak.decay == (0.9999 if averaged else 0.0)
  image = np.zeros((40, 30, 3), np.uint8)
  rng = np.random.default_rng(0)
  for text in (
    config.data.preprocess,
    *(e.preprocess for e in config.evals.values()),
  ):
    preprocess = inputs.parse_preprocess(config, text)
    assert preprocess(image, rng).shape == (resolution, resolution, 3)


# Data set -> BiT's resolution, size before the crop, and mixup.
BIT = {
  'imagenet2012': (384, 448, 0.1),
  'cifar100': (128, 160, 0.1),
  'cifar10': (128, 160, 0.1),
  'pets': (384, 448, 0.0),
  'flowers': (384, 448, 0.0),
}


@pytest.mark.parametrize('dataset', BIT)
def test_bit_setup_has_the_settings_of_bit(dataset):
  resolution, larger, mixup = BIT[dataset]
  spec, steps, warmup_steps, percent, test = TABLE_4[dataset]
  config = finetune.get_config(f'setup=bit,BiT-R50x1,{dataset}')
  assert config.image_size == (resolution, resolution)
  assert config.data.preprocess == f'resize({larger})|random_crop|flip'
  (evaluation,) = config.evals.values()
  assert (evaluation.split, evaluation.preprocess) == (test, 'resize')
  assert config.mixup_alpha == mixup
  assert config.total_steps == steps
  schedule = config.schedule.to_dict()
  assert schedule == schedule | {
    'name': 'staircase',
    'peak': 0.003,
    'warmup_steps': warmup_steps,
    'boundaries': (0.3, 0.6, 0.9),
    'factor': 0.1,
  }
  assert config.optimizer == config_lib.optimizer('sgd', momentum=0.9)
  assert (config.data.batch_size, config.data.dataset) == (512, spec)
  selection = finetune.get_config(
    f'setup=bit,train=selection,BiT-R50x1,{dataset}'
  )
  assert selection.data.train_split == f'train[:{percent}%]'
  # Table 4's setup has no mixup.
  assert finetune.get_config(f'BiT-R50x1,{dataset}').mixup_alpha == 0


def test_training_less_has_rates_of_its_own():
  head = finetune.get_config('ViT-L/16,pets,tune=head')
  assert (head.tuning.train, head.lora.rank) == ('head', 0)
  assert head.image_size == (224, 224)
  # Nothing adapts to the noise of dropout.
  assert head.model.dropout_rate == 0.0
  lora = finetune.get_config('ViT-L/16,pets,tune=lora')
  assert (lora.tuning.train, lora.lora.rank) == ('', 8)
  assert lora.image_size == (384, 384)
  for config in (head, lora):
    assert config.optimizer.name == 'adamw'
    assert config.schedule.peak == 1e-3
    assert config.total_steps == 500
  named = finetune.get_config('ViT-L/16,pets,tune=all')
  assert named == finetune.get_config('ViT-L/16,pets')


def test_real_labels_are_a_second_test_after_the_last_step():
  text = 'ViT-B/16,imagenet2012,resolution=512,preprocess=crop_small,real='
  config = finetune.get_config(text + 'true')
  assert list(config.evals) == ['real', 'test']
  expected = {
    'dataset': 'tfds:imagenet2012_real',
    'split': 'validation',
    'preprocess': "resize_small(597, method='area')|central_crop",
    'label_key': 'real_label',
    'max_labels': 32,
    'every': 0,
  }
  assert {key: config.evals.real[key] for key in expected} == expected
  assert config.evals.test.dataset == ''
  assert config.evals.test.preprocess == config.evals.real.preprocess
  # The rest of the run stays the same.
  del config.evals['real']
  assert config == finetune.get_config(text + 'false')
  again = robustness.get_config('ViT-B/16,real,resolution=512').evals.real
  other = finetune.get_config('ViT-B/16,imagenet2012,resolution=512,real=true')
  assert other.evals.real == again


@pytest.mark.parametrize('model', ['ViT-L/16', 'BiT-R50x1'])
def test_auto_takes_the_model_of_the_weights(model, tmp_path):
  named = finetune.get_config(f'{model},pets')
  config = finetune.get_config('auto,pets')
  saved = config_lib.default()
  saved.model.name = model
  (tmp_path / 'run').mkdir()
  config_lib.save(saved, tmp_path / 'run')
  for each in (named, config):
    each.init.checkpoint = str(tmp_path / 'run/checkpoints/9')
  found = warm_start.with_model(config, tmp_path / 'new')
  assert found == warm_start.with_model(named, tmp_path / 'new')
