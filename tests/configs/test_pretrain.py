"""Guards: configs/pretrain.py agrees with literal copies of Table 3."""

import jax
import numpy as np
import pytest

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.configs import pretrain
from vit_jax.data import splits
from vit_jax.training import step as step_lib

# Model, data set, epochs, base rate, decay, weight decay, dropout, and the
# resulting steps at batch 4096 for 303M, 12.4M and 1,281,167 images. These are
# some rows, with all epochs; paper/items/test_settings.py compares each cell.
TABLE_3 = """
ViT-B/16      jft300m        7  8e-4  linear  0.1   0.0   517822
ViT-L/16      jft300m       14  4e-4  linear  0.1   0.0  1035644
BiT-R50x1     jft300m        7  1e-3  linear  0.1   0.0   517822
R50+ViT-L/16  jft300m       14  4e-4  linear  0.1   0.0  1035644
ViT-B/16      imagenet21k   90  1e-3  linear  0.03  0.1   272460
ViT-L/16      imagenet21k   30  1e-3  linear  0.03  0.1    90820
ViT-L/32      imagenet21k   30  1e-3  linear  0.03  0.1    90820
ViT-B/16      imagenet2012 300  3e-3  cosine  0.3   0.1    93835
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
    'name': 'adamw',
    'b1': 0.9,
    'b2': 0.999,
    'eps': 1e-8,
    'weight_decay': float(weight_decay),
    'weight_decay_params': 'all',
    'mu_dtype': 'float32',
    'eps_root': 0.0,
    'nesterov': False,
    # Only ImageNet's rows clip.
    'clip_norm': 1.0 if dataset == 'imagenet2012' else 0.0,
  }
  assert config.data.batch_size == 4096
  assert config.image_size == (224, 224)
  assert config.loss.name == 'sigmoid'
  assert config.polyak.decay == 0
  # The hidden layer of the head is as wide as the encoder; ResNets have none.
  size = model.partition('ViT-')[2]
  width = {'B': 768, 'L': 1024, 'H': 1280}[size[0]] if size else None
  built = _model(config)
  assert getattr(built, 'width', None) == width
  classes, examples = SIZES[dataset]
  if dataset != 'imagenet2012':
    assert getattr(built, 'representation_size', None) == width
  assert config.num_classes == classes
  resolved = config_lib.resolve(
    config, num_examples=examples, num_classes=classes
  )
  assert resolved.total_steps == int(steps)


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
  assert config.optimizer == config_lib.optimizer(
    'sgd', momentum=0.9, weight_decay=1e-4
  )
  schedule = config.schedule.to_dict()
  assert schedule.pop('warmup_steps') in (5_000, -1)
  # The rate is 0.03 per 256 images of a batch.
  batch = 256 if 'digits' in argument else 4096
  assert config.data.batch_size == batch
  assert schedule == schedule | {
    'name': 'staircase',
    'peak': 0.03 * batch / 256,
    'boundaries': (0.25, 0.575, 0.75, 0.925),
    'factor': 0.1,
  }


def test_bit_on_imagenet_has_the_settings_of_its_authors():
  config = pretrain.get_config('R50x1,imagenet2012')
  assert config.epochs == 90
  assert config.optimizer == config_lib.optimizer(
    'sgd', momentum=0.9, weight_decay=1e-4
  )
  schedule = config.schedule.to_dict()
  assert schedule == schedule | {
    'name': 'staircase',
    'peak': 0.48,
    'warmup_steps': 5_000,
    # After 30, 60 and 80 of 90 epochs.
    'boundaries': pytest.approx((0.3333, 0.6667, 0.8889), abs=1e-4),
    'factor': 0.1,
  }
  assert config.loss.to_dict() == config_lib.softmax().to_dict()
  assert config.model.head_bias == 0
  # `optimizer=adam` selects the ViTs' row.
  config = pretrain.get_config('R50x1,imagenet2012,optimizer=adam')
  vit = pretrain.get_config('ViT-B/16,imagenet2012')
  for key in ('epochs', 'optimizer', 'schedule', 'loss'):
    assert config[key] == vit[key]
  # On other data sets, the paper uses Adam (section 4.1, Table 7).
  assert pretrain.get_config('R50x1,imagenet21k').optimizer.name == 'adamw'


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
  config = pretrain.get_config('ViT-S/16,folder:/a,epochs=5,eval=test')
  assert config.data.dataset == 'folder:/a'
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
  [(500, 16, 312, 31), (1_281_167, 4096, 3127, 312)],
)
def test_settings_follow_the_size_of_user_data(examples, batch, steps, warmup):
  config = pretrain.get_config('ViT-S/16,folder:/a,epochs=10')
  resolved = config_lib.resolve(config, num_examples=examples, num_classes=5)
  assert resolved.data.batch_size == batch
  assert resolved.total_steps == steps
  assert resolved.schedule.warmup_steps == warmup
  # ImageNet's rate at its batch; other rates follow the square root.
  rate = {16: 1.875e-4, 4096: 3e-3}[batch]
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
  # A part of a given training split stays within it.
  config = pretrain.get_config(
    'ViT-B/16,digits,train=train[:98%],eval=train[98%:],subset=50'
  )
  assert config.data.train_split == 'shuffled(train[:98%])[:50]'
  assert config.checkpoint.best == 'held_out/accuracy'


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
