"""Guards: each key changes the training step or the initial parameters."""

import functools

import jax
import ml_collections
import pytest

from tests.tiny_run import SIZES
from vit_jax import config as config_lib
from vit_jax import sharding
from vit_jax.training import program as program_lib


def _small_config(optimizer, schedule):
  config = config_lib.default()
  config.total_steps, config.num_classes = 10, 2
  config.image_size, config.channels = (8, 8), 1
  config.data.batch_size = 8
  config.model.name = 'ViT-B/4'
  config.model.update(SIZES)
  config.model.dropout_rate = 0.1
  config.model.dtype = 'float32'
  config.mesh.data = 1
  config.polyak.decay = 0.9
  config.optimizer, config.schedule = optimizer, schedule
  return config


def _program(config):
  """Returns the traced initialisation and step as text, with constants."""
  program = program_lib.build(config, sharding.build(**config.mesh))
  jaxprs = (
    jax.make_jaxpr(
      lambda: program_lib.fresh_params(
        config, program.model, program.params_key
      )
    )(),
    jax.make_jaxpr(program.train_step.__wrapped__)(
      program.shapes, program.abstract_batch
    ),
  )
  return '\n'.join(f'{jaxpr}{jaxpr.consts}' for jaxpr in jaxprs)


ADAM = config_lib.adam(weight_decay=0.1, clip_norm=1.0)
SGD = config_lib.sgd(weight_decay=0.1, clip_norm=1.0)
LINEAR = config_lib.schedule('linear', peak=1e-3, warmup_steps=2)
STAIRCASE = config_lib.schedule(
  'staircase', peak=1e-3, warmup_steps=2, boundaries=(0.5,), factor=0.1
)
# Key -> another value, or for a `name` another section.
CHANGES = {
  'seed': 1,
  'total_steps': 11,
  'image_size': (8, 12),
  'channels': 3,
  'num_classes': 3,
  'accumulation_steps': 2,
  'mixup_alpha': 0.2,
  'cutmix_alpha': 0.2,
  'dropout_rng': 'rbg',
  'model.name': 'ViT-B/2',
  'model.width': 32,
  'model.depth': 2,
  'model.heads': 4,
  'model.mlp_dim': 64,
  'model.representation_size': 8,
  'model.patch_size': (2, 4),
  'model.pooling': 'gap',
  'model.attention_implementation': 'lanes',
  'model.position_embedding': '2d',
  'model.position_site': 'every_layer',
  'model.position_stddev': 0.5,
  'model.gelu': 'exact',
  'model.norm_epsilon': 1e-3,
  'model.norm_position': 'post',
  'model.parallel': True,
  'model.qk_norm': True,
  'model.qkv_bias': False,
  'model.norm_bias': False,
  'model.dropout_rate': 0.5,
  'model.head_bias': -3.0,
  'model.dtype': 'bfloat16',
  'model.remat': 'full',
  'model.scan': True,
  'model.quantization': 'int8',
  'loss.name': 'sigmoid',
  'loss.label_smoothing': 0.1,
  'polyak.decay': 0.5,
  'polyak.start_step': 3,
  'guard.nonfinite': 'skip',
  'tuning.freeze': 'cls',
  'tuning.train': 'head',
  'tuning.layer_decay': 0.7,
  'optimizer.name': SGD,
  'optimizer.beta1': 0.5,
  'optimizer.beta2': 0.5,
  'optimizer.eps': 1e-3,
  'optimizer.weight_decay': 0.5,
  'optimizer.weight_decay_params': 'kernels',
  'optimizer.moment_dtype': 'bfloat16',
  'optimizer.clip_norm': 0.5,
  'schedule.name': config_lib.schedule('cosine', peak=1e-3, warmup_steps=2),
  'schedule.peak': 0.5,
  'schedule.warmup_steps': 3,
  'schedule.end': 0.5,
}
# Keys that only other models, optimizers and schedules have, or that have an
# effect only with two blocks, or with both mixup and CutMix.
HYBRID_CHANGES = {
  'cutmix_share': 0.2,
  'model.stochastic_depth': 0.2,
  'model.attention': 'axial',
  'model.resnet_blocks': (2,),
  'model.resnet_width': 2,
  'optimizer.momentum': 0.5,
  'schedule.boundaries': (0.7,),
  'schedule.factor': 0.5,
}
LORA_CHANGES = {
  'lora.rank': 3,
  'lora.alpha': 32.0,
  'lora.targets': ('key',),
  'tuning.train': 'cls|head',
}
RESNET_CHANGES = {'model.blocks': (1, 1), 'model.width_factor': 2}
MASKED_PATCH_CHANGES = {
  'seed': 1,
  'loss.name': config_lib.default().loss,
  'loss.target': 'pixels',
  'loss.fraction': 0.25,
  'loss.mask_share': 0.7,
  'loss.other_share': 0.2,
}
# Keys that do not affect a training step.
AROUND_THE_STEP = (
  *('epochs', 'data.', 'evals.', 'init.'),
  *('checkpoint.', 'log.', 'profile.', 'mesh.'),
  *('guard.max_skipped', 'guard.report_after', 'guard.exit_after'),
)


def _hybrid_config():
  config = _small_config(SGD, STAIRCASE)
  config.model.patch_size, config.model.resnet_blocks = (1, 1), (1,)
  config.model.pooling, config.model.depth = 'gap', 2
  config.mixup_alpha, config.cutmix_alpha = 0.2, 1.0
  return config


def _resnet_config():
  config = _small_config(ADAM, LINEAR)
  empty = config_lib.default().model
  config.model = empty
  config.model.name, config.model.dtype = 'BiT-R50x1', 'float32'
  config.model.blocks = (1,)
  return config


def _masked_patch_config():
  config = _small_config(ADAM, LINEAR)
  config.loss = config_lib.masked_patch()
  return config


def _lora_config():
  config = _small_config(ADAM, LINEAR)
  config.lora.rank = 2
  return config


BASES = {
  'vit': (_small_config(ADAM, LINEAR), CHANGES),
  'hybrid': (_hybrid_config(), HYBRID_CHANGES),
  'lora': (_lora_config(), LORA_CHANGES),
  'resnet': (_resnet_config(), RESNET_CHANGES),
  'masked_patch': (_masked_patch_config(), MASKED_PATCH_CHANGES),
}


@functools.cache
def _program_of(base):
  return _program(BASES[base][0])


@pytest.mark.parametrize(
  'base, key', [(b, k) for b, (_, changes) in BASES.items() for k in changes]
)
def test_changing_a_key_changes_the_step(base, key):
  if key == 'model.quantization':
    pytest.importorskip('qwix')
  config, changes = BASES[base]
  config = config.copy_and_resolve_references()
  value = changes[key]
  section, _, name = key.rpartition('.')
  if isinstance(value, ml_collections.ConfigDict):
    config[section] = value
  else:
    (config[section] if section else config)[name] = value
  assert _program(config) != _program_of(base)


@pytest.mark.parametrize('base', BASES)
def test_equal_configs_give_equal_programs(base):
  config, _ = BASES[base]
  assert _program(config.copy_and_resolve_references()) == _program_of(base)


@pytest.mark.parametrize('base', BASES)
def test_changes_cover_all_keys_of_the_step(base):
  keys = config_lib.flatten(BASES[base][0])
  keys = {key for key in keys if not key.startswith(AROUND_THE_STEP)}
  changes = (changes for _, changes in BASES.values())
  assert keys <= set().union(*changes)
