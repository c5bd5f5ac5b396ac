"""Guards: the settings of the recipes, value by value as they were published.

`ROWS` is a second copy of the published tables. The sources are named in the
docstrings of the recipes.
"""

import pytest

from tests.recipes import small
from vit_jax import config as config_lib

RAND_AUGMENT = 'timm_rand_augment("rand-m9-mstd0.5-inc1")'
THREE_AUGMENT = 'flip|three_augment|colour_jitter(0.3, 0.3, 0.3)'
CENTRE = "resize_small(256, method='area')|central_crop"
INCEPTION = 'inception_crop|flip'

# big_vision's optimizer: decay is in proportion to the rate.
BIG_VISION = {
  'optimizer.name': 'adamw',
  'optimizer.b1': 0.9,
  'optimizer.b2': 0.999,
  'optimizer.mu_dtype': 'bfloat16',
  'optimizer.weight_decay': 0.1,
  'optimizer.weight_decay_params': 'kernels',
  'optimizer.clip_norm': 1.0,
  'schedule.name': 'cosine',
  'schedule.peak': 1e-3,
  'schedule.warmup_steps': 10_000,
  'schedule.end': 0.0,
}
AUGREG = BIG_VISION | {
  'epochs': 300.0,
  'data.batch_size': 4096,
  'image_size': (224, 224),
  'loss.name': 'sigmoid',
  'loss.label_smoothing': 0.0,
  'evals.validation.preprocess': CENTRE,
}


def augreg(layers, magnitude, mixup, decay=0.1, drop=None):
  """Returns the settings that AugReg gives a model."""
  randaug = f'|rand_augment({layers}, {magnitude})' if layers else ''
  return AUGREG | {
    'data.preprocess': INCEPTION + randaug,
    'mixup_alpha': mixup,
    'optimizer.weight_decay': decay,
    'model.dropout_rate': drop,
    'model.stochastic_depth': drop,
  }


# facebookresearch/deit, main.py: its defaults.
DEIT_CODE = {
  'data.jpeg_dct': 'accurate',
  'optimizer.weight_decay_params': 'kernels',
  'optimizer.clip_norm': 0.0,
  'optimizer.b1': 0.9,
  'optimizer.b2': 0.999,
  'schedule.name': 'cosine',
  'schedule.warmup_epochs': 5.0,
  'schedule.warmup_start': 1e-6,
  'schedule.end': 1e-5,
  'model.dropout_rate': None,
  'model.gelu': 'exact',
}
DEIT = DEIT_CODE | {
  'epochs': 300.0,
  'image_size': (224, 224),
  'data.batch_size': 1024,
  'data.repeats': 3,
  'data.preprocess': f'random_resized_crop|flip|{RAND_AUGMENT}'
  '|random_erasing(0.25, noise="normal")',
  'mixup_alpha': 0.8,
  'cutmix_alpha': 1.0,
  'cutmix_share': 0.5,
  'mix_by': 'batch',
  'loss.name': 'softmax',
  'loss.label_smoothing': 0.1,
  'optimizer.name': 'adamw',
  'optimizer.weight_decay': 0.05,
  'schedule.peak': 5e-4,
  'schedule.peak_batch': 512,
  'model.stochastic_depth': 0.1,
  'model.stochastic_depth_rule': 'linear',
  'evals.validation.preprocess': 'eval_crop(0.875)',
}
DISTILLED = {
  'model.distillation_token': True,
  'distill.kind': 'hard',
  'distill.weight': 0.5,
}
DEIT3_CODE = DEIT_CODE | {
  'cutmix_alpha': 1.0,
  'model.layer_scale': 1e-4,
  'model.stochastic_depth_rule': 'uniform',
  'evals.validation.preprocess': 'eval_crop(1.0)',
  'schedule.peak_batch': 0,
}


def deit3(side, depth, peak):
  """Returns README_revenge.md's settings of a model on ImageNet."""
  return DEIT3_CODE | {
    'epochs': 800.0,
    'image_size': (side, side),
    'data.batch_size': 2048,
    'data.repeats': 3,
    'data.preprocess': f'random_resized_crop|{THREE_AUGMENT}',
    'mixup_alpha': 0.8,
    'loss.name': 'sigmoid',
    'loss.binary': True,
    'loss.reduce': 'mean',
    'loss.label_smoothing': 0.0,
    'optimizer.name': 'lamb',
    'optimizer.weight_decay': 0.05,
    'schedule.peak': peak,
    'model.stochastic_depth': depth,
  }


def then(side, depth):
  """Returns the settings of the second stage on ImageNet."""
  return DEIT3_CODE | {
    'epochs': 20.0,
    'image_size': (side, side),
    'data.batch_size': 512,
    'data.repeats': 1,
    'data.preprocess': f'random_resized_crop|flip|{RAND_AUGMENT}',
    'mixup_alpha': 0.8,
    'loss.name': 'softmax',
    'loss.label_smoothing': 0.1,
    'optimizer.name': 'adamw',
    'optimizer.weight_decay': 0.1,
    'schedule.peak': 1e-5,
    'model.stochastic_depth': depth,
    'init.new_head': False,
  }


def deit3_21k(epochs, side, depth, peak, dataset):
  """Returns the settings of a stage of the runs that begin on ImageNet-21k."""
  return DEIT3_CODE | {
    'epochs': float(epochs),
    'image_size': (side, side),
    'data.dataset': dataset,
    'data.batch_size': 2048,
    'data.repeats': 1,
    'data.preprocess': f'simple_random_crop|{THREE_AUGMENT}',
    'mixup_alpha': 0.0,
    'loss.name': 'softmax',
    'loss.label_smoothing': 0.1,
    'optimizer.name': 'lamb',
    'optimizer.weight_decay': 0.02,
    'schedule.peak': peak,
    'model.stochastic_depth': depth,
  }


VIT5 = {
  'model.norm': 'rms',
  'model.qk_norm': True,
  'model.qkv_bias': False,
  'model.registers': 4,
  'model.rotary': 'axial',
}


def mae_finetune(epochs, rate, decay, depth):
  """Returns FINETUNE.md's settings of a model."""
  return {
    'epochs': float(epochs),
    'data.batch_size': 1024,
    'schedule.peak': rate,
    'schedule.peak_batch': 256,
    'schedule.warmup_epochs': 5.0,
    'schedule.warmup_start': 0.0,
    'schedule.end': 1e-6,
    'tuning.layer_decay': decay,
    'model.stochastic_depth': depth,
    'model.stochastic_depth_rule': 'linear',
    'model.pooling': 'gap_patches',
    'model.final_norm': 'pooled',
    'optimizer.name': 'adamw',
    'optimizer.weight_decay': 0.05,
    'data.preprocess': f'random_resized_crop|flip|{RAND_AUGMENT}'
    '|random_erasing(0.25, noise="normal")',
    'mixup_alpha': 0.8,
    'cutmix_alpha': 1.0,
    'loss.label_smoothing': 0.1,
  }


PATIENT = BIG_VISION | {
  'epochs': 1200.0,
  'data.batch_size': 4096,
  'optimizer.weight_decay': 3e-4 / 0.03,
  'schedule.peak': 0.03,
  'schedule.warmup_steps': 5_000,
  'mixup_alpha': 1.0,
  'distill.kind': 'soft',
  'distill.temperature': 1.0,
  'distill.weight': 1.0,
}
ROWS = {
  # Recommended on ImageNet-21k.
  'augreg:L/16,data=imagenet21k': augreg(2, 20, 0.5),
  'augreg:B/16,data=imagenet21k': augreg(2, 15, 0.2),
  'augreg:S/16,data=imagenet21k': augreg(2, 0, 0.0, 0.03),
  'augreg:Ti/16,data=imagenet21k': augreg(0, 0, 0.0, 0.03),
  'augreg:B/32,data=imagenet21k': augreg(2, 0, 0.0),
  'augreg:S/32,data=imagenet21k': augreg(0, 0, 0.0),
  'augreg:R50+L/32,data=imagenet21k': augreg(2, 15, 0.2, drop=0.1),
  'augreg:R26+S/32,data=imagenet21k': augreg(2, 0, 0.0),
  'augreg:R+Ti/16,data=imagenet21k': augreg(0, 0, 0.0, 0.03),
  # The strengths.
  'augreg:B/16,strength=none': augreg(0, 0, 0.0),
  'augreg:B/16,strength=light1': augreg(2, 0, 0.0),
  'augreg:B/16,strength=light2': augreg(2, 10, 0.2),
  'augreg:B/16,strength=medium1': augreg(2, 15, 0.2),
  'augreg:B/16,strength=medium2': augreg(2, 15, 0.5),
  'augreg:B/16,strength=strong1': augreg(2, 20, 0.5),
  'augreg:B/16,strength=strong2': augreg(2, 20, 0.8),
  'augreg:B/16': augreg(2, 15, 0.5) | {'data.train_split': 'train[:99%]'},
  'plain:S/16': BIG_VISION
  | {
    'epochs': 90.0,
    'data.batch_size': 1024,
    'data.train_split': 'train[:99%]',
    'data.preprocess': f'{INCEPTION}|rand_augment(2, 10)',
    'mixup_alpha': 0.2,
    'model.pooling': 'gap',
    'model.position_embedding': 'sincos2d',
    'model.representation_size': -1,
    'loss.name': 'softmax',
  },
  'deit:S/16': DEIT,
  'deit:B/16': DEIT,
  'distill:B/16,teacher=t,kind=token': DEIT | DISTILLED,
  'distill:BiT-R50x1,teacher=t': PATIENT,
  'deit3:S/16': deit3(224, 0.05, 4e-3),
  'deit3:B/16': deit3(192, 0.2, 3e-3),
  'deit3:L/16': deit3(192, 0.45, 3e-3),
  'deit3:H/14': deit3(160, 0.6, 3e-3),
  'deit3:B/16,stage=finetune': then(224, 0.2),
  'deit3:L/16,stage=finetune': then(224, 0.45),
  'deit3:H/14,stage=finetune': then(224, 0.55),
  'deit3:S/16,stage=finetune,resolution=384': then(384, 0.0),
  'deit3:B/16,stage=finetune,resolution=384': then(384, 0.15),
  'deit3:L/16,stage=finetune,resolution=384': then(384, 0.4),
  'vit5:S/16': deit3(224, 0.05, 4e-3) | VIT5,
  'vit5:B/16': deit3(192, 0.2, 3e-3) | VIT5,
  'vit5:S/16,stage=finetune': then(224, 0.05) | VIT5,
  'vit5:L/16': deit3(192, 0.35, 3e-3) | VIT5 | {'epochs': 400.0},
  'sam:B/16': {
    'epochs': 300.0,
    'data.batch_size': 4096,
    'data.preprocess': INCEPTION,
    'schedule.name': 'linear',
    'schedule.peak': 3e-3,
    'schedule.end': 3e-5,
    'optimizer.weight_decay': 1e-3 / 3e-3,
    'data.train_split': 'train[:99%]',
    'sam.rho': 0.6,
    'sam.rho_end': 0.1,
    'sam.alpha': 0.6,
    'model.pooling': 'gap',
  },
  'scaling:g/14': {
    'total_steps': 1_000_000,
    'data.batch_size': 16_384,
    'optimizer.name': 'adafactor',
    'optimizer.decay_rate': 0.8,
    'optimizer.momentum': 0.9,
    'optimizer.dtype_momentum': 'bfloat16',
    'optimizer.min_dim_size_to_factor': 32,
    'optimizer.weight_decay_rate': 0.03,
    'schedule.name': 'rsqrt',
    'schedule.peak': 8e-4,
    'schedule.timescale': 10_000,
    'schedule.warmup_steps': 10_000,
    'schedule.cooldown_steps': 50_000,
    'model.pooling': 'map',
  },
  'mae:B/16': {
    'epochs': 800.0,
    'data.batch_size': 4096,
    'data.preprocess': 'random_resized_crop(min_area=0.2)|flip',
    'loss.name': 'mae',
    'loss.mask': 0.75,
    'loss.normalise': True,
    'loss.decoder_depth': 8,
    'loss.decoder_width': 512,
    'optimizer.name': 'adamw',
    'optimizer.b1': 0.9,
    'optimizer.b2': 0.95,
    'optimizer.weight_decay': 0.05,
    'schedule.peak': 1.5e-4,
    'schedule.peak_batch': 256,
    'schedule.warmup_epochs': 40.0,
  },
  'mae:B/16,stage=finetune': mae_finetune(100, 5e-4, 0.65, 0.1),
  'mae:L/16,stage=finetune': mae_finetune(50, 1e-3, 0.75, 0.2),
  'mae:H/14,stage=finetune': mae_finetune(50, 1e-3, 0.75, 0.3),
  'mae:B/16,stage=finetune,tune=head': {
    'epochs': 90.0,
    'data.batch_size': 16_384,
    'optimizer.name': 'lars',
    'optimizer.weight_decay': 0.0,
    'schedule.peak': 0.1,
    'schedule.peak_batch': 256,
    'schedule.warmup_epochs': 10.0,
    'tuning.train': 'head',
    'model.head_stddev': 0.01,
  },
  'flexi:B/16,teacher=t': BIG_VISION
  | {
    'epochs': 90.0,
    'image_size': (240, 240),
    'data.batch_size': 1024,
    'schedule.peak': 1e-4,
    'schedule.warmup_steps': 5_000,
    'optimizer.weight_decay': 1e-5 / 1e-4,
    'flexi.patch_sizes': (8, 10, 12, 15, 16, 20, 24, 30, 40, 48),
    'data.train_split': 'train[:99%]',
    'model.kernel_size': (16, 16),
    'model.position_grid': (7, 7),
    'init.checkpoint': 't',
    'distill.teacher': 't',
    'distill.image_size': (384, 384),
    'mixup_alpha': 1.0,
    'distill.kind': 'soft',
    'distill.weight': 1.0,
  },
}
IMAGENET = 'tfds:imagenet2012'
for name, row in {
  'S/16': ((240, 224, 0.05, 1e-3), (50, 224, 0.05, 3e-4)),
  'B/16': ((240, 224, 0.1, 1e-3), (50, 224, 0.15, 3e-4)),
  'L/16': ((240, 224, 0.3, 1e-3), (50, 224, 0.4, 3e-4)),
  'H/14': ((90, 128, 0.5, 1e-3), (50, 224, 0.45, 3e-4)),
}.items():
  first, second = row
  ROWS[f'deit3_21k:{name}'] = deit3_21k(*first, None)
  ROWS[f'deit3_21k:{name},stage=finetune'] = deit3_21k(*second, IMAGENET)


@pytest.mark.parametrize('recipe', ROWS)
def test_a_recipe_has_the_published_settings(recipe):
  flat = config_lib.flatten(small.config_of(recipe))
  for key, value in ROWS[recipe].items():
    # 3e-4 / 0.03 and 0.01 are the same decay.
    wanted = pytest.approx(value) if isinstance(value, float) else value
    assert flat[key] == wanted, key
