"""Guards: the config files agree with literal copies of the paper's tables."""

import jax
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config import inputs
from vit_jax.configs import (
  finetune,
  masked_patch,
  pretrain,
  quickstart,
  robustness,
)
from vit_jax.data import splits
from vit_jax.training import step as step_lib
from vit_jax.training import warm_start

# Pre-training: Table 3 -------------------------------------------------------

# Model, data set, epochs, base rate, decay, weight decay, dropout, and the
# resulting steps at batch 4096 for 303M, 12.4M and 1,281,167 images.
TABLE_3 = """
ViT-B/16      jft300m        7  8e-4  linear  0.1   0.0   517822
ViT-B/32      jft300m        7  8e-4  linear  0.1   0.0   517822
ViT-L/32      jft300m        7  6e-4  linear  0.1   0.0   517822
ViT-L/16      jft300m        7  4e-4  linear  0.1   0.0   517822
ViT-L/16      jft300m       14  4e-4  linear  0.1   0.0  1035644
ViT-H/14      jft300m       14  3e-4  linear  0.1   0.0  1035644
BiT-R50x1     jft300m        7  1e-3  linear  0.1   0.0   517822
BiT-R50x2     jft300m        7  1e-3  linear  0.1   0.0   517822
BiT-R101x1    jft300m        7  8e-4  linear  0.1   0.0   517822
BiT-R152x1    jft300m        7  6e-4  linear  0.1   0.0   517822
BiT-R152x2    jft300m        7  6e-4  linear  0.1   0.0   517822
R50+ViT-B/16  jft300m        7  8e-4  linear  0.1   0.0   517822
R50+ViT-B/32  jft300m        7  8e-4  linear  0.1   0.0   517822
R50+ViT-L/32  jft300m        7  2e-4  linear  0.1   0.0   517822
R50+ViT-L/16  jft300m        7  4e-4  linear  0.1   0.0   517822
R50+ViT-L/16  jft300m       14  4e-4  linear  0.1   0.0  1035644
ViT-B/16      imagenet21k   90  1e-3  linear  0.03  0.1   272460
ViT-B/32      imagenet21k   90  1e-3  linear  0.03  0.1   272460
ViT-L/16      imagenet21k   90  1e-3  linear  0.03  0.1   272460
ViT-L/32      imagenet21k   90  1e-3  linear  0.03  0.1   272460
ViT-L/16      imagenet21k   30  1e-3  linear  0.03  0.1    90820
ViT-L/32      imagenet21k   30  1e-3  linear  0.03  0.1    90820
ViT-B/16      imagenet2012 300  3e-3  cosine  0.3   0.1    93835
ViT-B/32      imagenet2012 300  3e-3  cosine  0.3   0.1    93835
ViT-L/16      imagenet2012 300  3e-3  cosine  0.3   0.1    93835
ViT-L/32      imagenet2012 300  3e-3  cosine  0.3   0.1    93835
"""
# Rows of Tables 5 and 6 that Table 3 lacks; the rates are from its other rows.
NOT_IN_TABLE_3 = """
BiT-R152x2    jft300m       14  6e-4  linear  0.1   0.0  1035644
BiT-R200x3    jft300m       14  6e-4  linear  0.1   0.0  1035644
ViT-H/14      imagenet21k   90  1e-3  linear  0.03  0.1   272460
"""
ROWS = [r.split() for r in (TABLE_3 + NOT_IN_TABLE_3).split('\n') if r]
# Rows that need `epochs=`; the other rows have the default.
OTHER_EPOCHS = {
  ('ViT-L/16', 'jft300m', '14'),
  ('R50+ViT-L/16', 'jft300m', '14'),
  ('BiT-R152x2', 'jft300m', '14'),
  ('ViT-L/16', 'imagenet21k', '30'),
  ('ViT-L/32', 'imagenet21k', '30'),
}
# Numbers of classes and of images in the training split.
SIZES = {
  'jft300m': (18_291, 302_948_800),
  'imagenet21k': (21_843, 12_348_800),
  'imagenet2012': (1000, 1_281_167),
}


@pytest.mark.parametrize('row', ROWS, ids=' '.join)
def test_table_3(row):
  model, dataset, epochs, rate, decay, weight_decay, dropout, steps = row
  argument = f'{model},{dataset}'
  if (model, dataset, epochs) in OTHER_EPOCHS:
    argument += f',epochs={epochs}'
  config = pretrain.get_config(argument)
  assert config.model.name == model
  # A BiT ResNet has no dropout.
  assert (config.model.dropout_rate or 0) == float(dropout)
  assert config.schedule.name == decay
  assert config.schedule.peak == float(rate)
  assert config.schedule.warmup_steps == 10_000
  assert config.optimizer.to_dict() == {
    'name': 'adam',
    'beta1': 0.9,
    'beta2': 0.999,
    'eps': 1e-8,
    'weight_decay': float(weight_decay),
    'weight_decay_params': 'all',
    'moment_dtype': 'float32',
    # Only ImageNet's rows clip.
    'clip_norm': 1.0 if dataset == 'imagenet2012' else 0.0,
  }
  assert config.data.batch_size == 4096
  assert config.image_size == (224, 224)
  assert config.loss.name == 'sigmoid'
  assert config.polyak.decay == 0
  classes, examples = SIZES[dataset]
  assert config.num_classes == classes
  resolved = config_lib.resolve(
    config, num_examples=examples, num_classes=classes
  )
  assert resolved.total_steps == int(steps)


@pytest.mark.parametrize('model', sorted({row[0] for row in ROWS}))
def test_models_of_the_table(model):
  config = pretrain.get_config(f'{model},jft300m')
  # The hidden layer of the head is as wide as the encoder; ResNets have none.
  size = model.partition('ViT-')[2]
  width = {'B': 768, 'L': 1024, 'H': 1280}[size[0]] if size else None
  built = _model(config)
  assert getattr(built, 'width', None) == width
  assert getattr(built, 'representation_size', None) == width


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


def _model(config):
  arguments = config.model.to_dict()
  if arguments['dtype'] == 'auto':
    arguments['dtype'] = 'float32'
  return models.build(
    arguments.pop('name'), num_classes=config.num_classes, **arguments
  )


def _shapes(config):
  """Returns the parameters' shapes and dtypes."""
  return jax.eval_shape(
    lambda: step_lib.init_params(
      _model(config), jax.random.key(0), (*config.image_size, config.channels)
    )
  )


def test_the_jft_config_lacks_only_the_path_of_the_data():
  config = pretrain.get_config('ViT-B/16,jft300m')
  shapes = _shapes(config)
  assert shapes['head']['kernel'].shape == (768, 18_291)
  assert shapes['pre_logits']['kernel'].shape == (768, 768)
  # The released 1000-way model without hidden layer has 86,567,656 parameters.
  assert sum(x.size for x in jax.tree.leaves(shapes)) == (
    86_567_656 + 768 * 769 + 769 * (18_291 - 1000)
  )
  with pytest.raises(ValueError, match=r'data.dataset is not set: .*=SPEC'):
    config_lib.validate(config)


@pytest.mark.parametrize(
  'argument', ['ViT-L/16,jft300m', 'ViT-B/32,imagenet21k', 'ViT-B/16,digits']
)
def test_sgd_has_the_settings_of_bit(argument):
  config = pretrain.get_config(f'{argument},optimizer=sgd')
  assert config.optimizer.to_dict() == {
    'name': 'sgd',
    'momentum': 0.9,
    'weight_decay': 1e-4,
    'weight_decay_params': 'all',
    'moment_dtype': 'float32',
    'clip_norm': 0.0,
  }
  schedule = config.schedule.to_dict()
  assert schedule.pop('warmup_steps') in (5_000, -1)
  # The rate is 0.03 per 256 images of a batch.
  batch = 256 if 'digits' in argument else 4096
  assert config.data.batch_size == batch
  assert schedule == {
    'name': 'staircase',
    'peak': 0.03 * batch / 256,
    'boundaries': (0.25, 0.575, 0.75, 0.925),
    'factor': 0.1,
  }


def test_bit_on_imagenet_has_the_settings_of_its_authors():
  config = pretrain.get_config('R50x1,imagenet2012')
  assert config.epochs == 90
  assert config.optimizer == config_lib.sgd(weight_decay=1e-4)
  assert config.schedule.to_dict() == {
    'name': 'staircase',
    'peak': 0.48,
    'warmup_steps': 5_000,
    # After 30, 60 and 80 of 90 epochs.
    'boundaries': pytest.approx((0.3333, 0.6667, 0.8889), abs=1e-4),
    'factor': 0.1,
  }
  assert config.loss.to_dict() == {'name': 'softmax', 'label_smoothing': 0.0}
  assert config.model.head_bias == 0
  # `optimizer=adam` selects the ViTs' row.
  config = pretrain.get_config('R50x1,imagenet2012,optimizer=adam')
  vit = pretrain.get_config('ViT-B/16,imagenet2012')
  for key in ('epochs', 'optimizer', 'schedule', 'loss'):
    assert config[key] == vit[key]
  # On other data sets, the paper uses Adam (section 4.1, Table 7).
  assert pretrain.get_config('R50x1,imagenet21k').optimizer.name == 'adam'


def test_pretraining_followed_by_few_shots():
  config = pretrain.get_config('ViT-B/16,jft300m,few_shot=imagenet2012')
  section = config.evals.few_shot
  assert section.dataset == 'tfds:imagenet2012'
  assert (section.train_split, section.split) == ('train[:65000]', 'validation')
  assert section.preprocess == 'resize(256)|central_crop'
  assert (section.shots, section.seeds) == ((1, 5, 10, 25), (0, 1, 2))
  assert section.l2 == (1024.0,)
  assert section.every == config.evals.validation.every
  config = pretrain.get_config('ViT-B/16,digits,few_shot=digits:0123')
  assert config.evals.few_shot.dataset == 'digits:0123'
  assert config.evals.few_shot.split == 'test'


def test_pretraining_on_user_data():
  config = pretrain.get_config('ViT-S/16,folder:/a,b,epochs=5,eval=test')
  assert config.data.dataset == 'folder:/a,b'
  assert (config.epochs, config.total_steps) == (5.0, None)
  assert config.num_classes is None
  assert {k: v.split for k, v in config.evals.items()} == {'test': 'test'}
  config_lib.validate(config)
  part = pretrain.get_config('ViT-S/16,digits,eval=train[90%:]').evals
  assert list(part) == ['held_out']
  small = pretrain.get_config('ViT-S/16,digits,image_size=32')
  assert small.image_size == (32, 32)


@pytest.mark.parametrize(
  'examples, batch, steps, warmup',
  [(500, 16, 312, 31), (10_000, 32, 3125, 312), (1_281_167, 4096, 3127, 312)],
)
def test_settings_follow_the_size_of_user_data(examples, batch, steps, warmup):
  config = pretrain.get_config('ViT-S/16,folder:/a,epochs=10')
  resolved = config_lib.resolve(config, num_examples=examples, num_classes=5)
  assert resolved.data.batch_size == batch
  assert resolved.total_steps == steps
  assert resolved.schedule.warmup_steps == warmup
  # ImageNet's rate at its batch; other rates follow the square root.
  rate = {16: 1.875e-4, 32: 2.6517e-4, 4096: 3e-3}[batch]
  assert resolved.schedule.peak == pytest.approx(rate, rel=1e-4)
  assert resolved.evals.auto.every == steps // 10
  assert (resolved.loss.name, resolved.model.head_bias) == ('softmax', 0.0)
  # A short run is not regularised.
  assert resolved.model.dropout_rate == 0
  assert resolved.data.preprocess == 'inception_crop(min_area=0.5)|flip'
  assert resolved.model.representation_size is None
  longer = pretrain.get_config('ViT-S/16,folder:/a,epochs=30')
  assert longer.model.dropout_rate == 0.1
  assert longer.data.preprocess == 'inception_crop|flip'
  # The other settings are ImageNet's row.
  assert resolved.optimizer.weight_decay == 0.3
  config.loss.name = 'sigmoid'
  resolved = config_lib.resolve(config, num_examples=examples, num_classes=5)
  # The log-odds of one class of five.
  assert resolved.model.head_bias == pytest.approx(np.log(1 / 4))


def test_pretraining_never_sees_its_validation_images():
  for dataset, split in (('jft300m', 'train'), ('imagenet21k', 'full')):
    config = pretrain.get_config(f'ViT-B/16,{dataset}')
    sizes = {split: 100_000}
    assert splits.resolve(config.data.train_split, sizes).parts == (
      (split, 51_200, 100_000),
    )
    assert splits.resolve(config.evals.validation.split, sizes).parts == (
      (split, 0, 51_200),
    )
  config = pretrain.get_config('ViT-B/16,imagenet2012')
  assert config.data.train_split == 'train'
  assert config.evals.validation.split == 'validation'


# Figure 4: random subsets, early stopping ------------------------------------


@pytest.mark.parametrize(
  'subset, part',
  [
    ('9_000_000', '9000000'),
    ('0.1', '10%'),
    ('.0297', '2.97%'),
    ('29.7%', '29.7%'),
    ('1.0', '100%'),
  ],
)
def test_a_random_subset_changes_only_the_training_data(subset, part):
  argument = 'ViT-B/16,jft300m,few_shot=imagenet2012'
  config = pretrain.get_config(f'{argument},subset={subset}')
  assert config.data.train_split == f'shuffled(train[51200:])[:{part}]'
  assert config.checkpoint.best == 'validation/accuracy'
  assert config.evals.few_shot.every == config.evals.validation.every
  config_lib.validate(config, located=False)
  whole = pretrain.get_config(argument)
  config.data.train_split = whole.data.train_split
  config.checkpoint.best = ''
  assert config == whole


def test_runs_on_subsets_have_the_same_number_of_steps():
  for dataset, size, batch, options in (
    # The run on all images needs the split that `subset=` has by default.
    ('imagenet2012', 1_268_355, 4096, ',train=train[:99%],eval=train[99%:]'),
    # The batch size follows from the whole data, also for the subset.
    ('digits', 1437, 16, ',eval=test'),
  ):
    whole, subset = (
      config_lib.resolve(
        pretrain.get_config(f'ViT-B/16,{dataset},epochs=9{options}{option}'),
        num_examples=found,
        num_classes=1000 if dataset == 'imagenet2012' else 10,
        whole=size,
      )
      for option, found in (('', size), (',subset=0.1', round(size / 10)))
    )
    assert subset.total_steps == whole.total_steps == 9 * size // batch
    assert subset.data.num_examples == round(size / 10)
    assert subset.schedule == whole.schedule


def test_early_stopping_does_not_use_the_test_images_of_imagenet():
  config = pretrain.get_config('ViT-B/16,imagenet2012,subset=10%')
  assert config.data.train_split == 'shuffled(train[:99%])[:10%]'
  [(name, section)] = config.evals.items()
  assert (name, section.split) == ('held_out', 'train[99%:]')
  assert config.checkpoint.best == 'held_out/accuracy'
  assert config.data.examples_per_epoch == 1_268_355
  whole = pretrain.get_config('ViT-B/16,imagenet2012')
  assert whole.data.num_examples == 1_281_167
  assert whole.evals.validation.split == 'validation'


def test_a_subset_excludes_the_held_out_images():
  config = pretrain.get_config(
    'ViT-B/16,digits,train=train[:98%],eval=train[98%:],subset=50'
  )
  assert config.data.train_split == 'shuffled(train[:98%])[:50]'
  assert config.checkpoint.best == 'held_out/accuracy'
  config = pretrain.get_config(
    'ViT-B/16,imagenet2012,train=shuffled(train,seed=1)[:99%]'
    ',eval=shuffled(train,seed=1)[99%:],subset=50%'
  )
  assert config.data.train_split == (
    'shuffled(shuffled(train,seed=1)[:99%])[:50%]'
  )
  assert config.evals.held_out.split == 'shuffled(train,seed=1)[99%:]'
  assert config.data.examples_per_epoch == 1_268_355
  assert not config.data.num_examples


# Fine-tuning: Table 4 --------------------------------------------------------

_GRID = (0.001, 0.003, 0.01, 0.03)
# Data set -> spec, steps, warm-up, rates, the percentage to train on while the
# rate is chosen on the rest, and the split to report.
TABLE_4 = {
  'imagenet2012': (
    *('tfds:imagenet2012', 20_000, 500, (0.003, 0.01, 0.03, 0.06), 99),
    'validation',
  ),
  'cifar100': ('tfds:cifar100', 10_000, 500, _GRID, 98, 'test'),
  'cifar10': ('tfds:cifar10', 10_000, 500, _GRID, 98, 'test'),
  'pets': ('tfds:oxford_iiit_pet', 500, 100, _GRID, 90, 'test'),
  'flowers': ('tfds:oxford_flowers102', 500, 100, _GRID, 90, 'test'),
}
OWN = 'folder:/data/a,b'


@pytest.mark.parametrize('dataset', TABLE_4)
def test_table_4(dataset):
  spec, steps, warmup_steps, rates, _, test = TABLE_4[dataset]
  config = finetune.get_config(f'ViT-B/16,{dataset}')
  assert config.data.dataset == spec
  assert config.total_steps == steps
  assert config.schedule.to_dict() == {
    'name': 'cosine',
    # The rate of the released run with the accuracy in the config's docstring.
    'peak': 0.01 if dataset == 'cifar10' else 0.03,
    'warmup_steps': warmup_steps,
    'end': 0.0,
  }
  assert config.schedule.peak in rates
  assert config.data.preprocess == 'inception_crop|flip'
  (evaluation,) = config.evals.values()
  assert evaluation.preprocess == 'resize'
  assert finetune.TABLE_4[dataset].learning_rates == rates
  assert config.optimizer.to_dict() == {
    'name': 'sgd',
    'momentum': 0.9,
    'weight_decay': 0.0,
    'weight_decay_params': 'all',
    'moment_dtype': 'float32',
    'clip_norm': 1.0,
  }
  assert config.data.batch_size == 512
  assert config.image_size == (384, 384)
  assert config.polyak.decay == 0
  assert config.loss.to_dict() == {'name': 'softmax', 'label_smoothing': 0.0}
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
    (4_096, 512, 160, 0.03),
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


@pytest.mark.parametrize('dataset', TABLE_4)
@pytest.mark.parametrize(
  'model', ['ViT-L/16', 'R50+ViT-B/32', 'Axial-ViT-B/16', 'BiT-R50x1']
)
def test_table_4_applies_to_all_models(model, dataset):
  config = finetune.get_config(f'{model},{dataset}')
  expected = finetune.get_config(f'ViT-B/16,{dataset}')
  rate = 0.1 if model == 'ViT-L/16' else 0.0
  assert (config.model.dropout_rate or 0.0) == rate
  config.model = expected.model
  config.dropout_rng = expected.dropout_rng
  assert config == expected


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
    assert trained.shuffled
    assert (len(trained), len(held_out)) == (10 * percent, 100)
    assert not trained.shared(held_out)
  assert evaluation.dataset == ''


@pytest.mark.parametrize('resolution', [384, 512, 518])
@pytest.mark.parametrize('dataset', TABLE_4)
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
  spec, steps, warmup_steps, _, percent, test = TABLE_4[dataset]
  config = finetune.get_config(f'setup=bit,BiT-R50x1,{dataset}')
  assert config.image_size == (resolution, resolution)
  assert config.data.preprocess == f'resize({larger})|random_crop|flip'
  (evaluation,) = config.evals.values()
  assert (evaluation.split, evaluation.preprocess) == (test, 'resize')
  assert config.mixup_alpha == mixup
  assert config.total_steps == steps
  assert config.schedule.to_dict() == {
    'name': 'staircase',
    'peak': 0.003,
    'warmup_steps': warmup_steps,
    'boundaries': (0.3, 0.6, 0.9),
    'factor': 0.1,
  }
  assert config.optimizer.momentum == 0.9
  assert config.optimizer.clip_norm == 0
  assert config.optimizer.weight_decay == 0
  assert config.data.batch_size == 512
  assert config.data.dataset == spec
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
    assert config.optimizer.name == 'adam'
    assert config.schedule.peak == 1e-3
    assert config.total_steps == 500
  named = finetune.get_config('ViT-L/16,pets,tune=all')
  assert named == finetune.get_config('ViT-L/16,pets')


def test_real_labels_are_a_second_test_after_the_last_step():
  text = 'ViT-B/16,imagenet2012,resolution=512,preprocess=crop_small,real='
  config = finetune.get_config(text + 'true')
  assert list(config.evals) == ['real', 'test']
  assert config.evals.real.to_dict() == {
    'kind': 'classification',
    'dataset': 'tfds:imagenet2012_real',
    'split': 'validation',
    'preprocess': "resize_small(597, method='area')|central_crop",
    'label_key': 'real_label',
    'max_labels': 32,
    'classes': '',
    'restrict': False,
    'save_predictions': False,
    'batch_size': 0,
    'every': 0,
  }
  assert config.evals.test.dataset == ''
  assert config.evals.test.preprocess == config.evals.real.preprocess
  # The rest of the run stays the same.
  del config.evals['real']
  assert config == finetune.get_config(text + 'false')
  assert config == finetune.get_config(text.removesuffix(',real='))
  again = robustness.get_config('ViT-B/16,real,resolution=512').evals.real
  other = finetune.get_config('ViT-B/16,imagenet2012,resolution=512,real=true')
  assert other.evals.real == again


@pytest.mark.parametrize('model', ['ViT-L/16', 'ViT-B/16', 'BiT-R50x1'])
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
  assert config.schedule.to_dict() == {
    'name': 'cosine',
    'peak': 2e-4,
    'warmup_steps': 10_000,
    'end': 0.0,
  }
  assert config.optimizer.to_dict() == config_lib.adam().to_dict()
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
    'ViT-S/8,folder:/data/a,b,target=pixels,fraction=0.15,steps=500,eval=test,'
    'few_shot=digits'
  )
  assert config.data.dataset == 'folder:/data/a,b'
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


def test_a_copy_of_imagenet21k_is_counted_where_it_is():
  spec = 'arrayrecord:/data/tfds/i21k'
  config = pretrain.get_config(f'ViT-B/16,imagenet21k,data={spec}')
  assert config.data.dataset == spec
  assert config.data.label_key == 'label'
  assert config.data.train_split == 'shuffled(train)[51200:]'
  assert config.evals.validation.split == 'shuffled(train)[:51200]'
  # Not the paper's numbers, which are those of another release.
  assert (config.num_classes, config.data.examples_per_epoch) == (0, 0)
  assert config.data.max_labels == 16
  excluded = pretrain.get_config(
    f'ViT-B/16,imagenet21k,data={spec},exclude=/x.json'
  )
  assert excluded.data.dataset == f'{spec},exclude=/x.json'


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
