"""Guards: each config key changes the training step or the initial weights.

A key of the sections model, optimizer, schedule and loss is an argument of one
function, whose tests say what it does. So one of each section stands for all.
"""

import functools

import jax
import pytest

from tests.tiny_run import SIZES
from vit_jax import config as config_lib
from vit_jax import models, sharding
from vit_jax.training import program as program_lib


def _small_config(**changes):
  config = config_lib.default()
  config.total_steps, config.num_classes = 10, 2
  config.image_size, config.channels = (8, 8), 1
  config.data.batch_size = 8
  config.model.update({'name': 'ViT-B/4', 'dtype': 'float32'} | SIZES)
  config.mesh.data = 1
  config.update_from_flattened_dict(changes)
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


# Keys -> (a config in which they have an effect, their other values).
BASES = {
  'plain': (
    _small_config(**{'model.dropout_rate': 0.1, 'polyak.decay': 0.9}),
    {
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
      'model.position_stddev': 0.5,
      'loss': config_lib.masked_patch(),
      'loss.label_smoothing': 0.1,
      'polyak.decay': 0.5,
      'polyak.start_step': 3,
      'guard.nonfinite': 'skip',
      'tuning.freeze': 'cls',
      'tuning.train': 'head',
      'tuning.layer_decay': 0.7,
      'optimizer': config_lib.sgd(),
      'optimizer.beta1': 0.5,
      'schedule': config_lib.schedule('linear', peak=1e-3, warmup_steps=0),
      'schedule.peak': 0.5,
    },
  ),
  'mixed': (
    _small_config(mixup_alpha=0.2, cutmix_alpha=1.0),
    {'cutmix_share': 0.2},
  ),
  'lora': (
    _small_config(**{'lora.rank': 2}),
    {'lora.rank': 3, 'lora.alpha': 32.0, 'lora.targets': ('key',)},
  ),
  'masked_patch': (
    _small_config(loss=config_lib.masked_patch()),
    {'seed': 1, 'loss.fraction': 0.25, 'loss.other_share': 0.2},
  ),
}
# Keys that do not affect a training step.
AROUND_THE_STEP = (
  *('epochs', 'data.', 'evals.', 'init.'),
  *('checkpoint.', 'log.', 'profile.', 'mesh.'),
  *('guard.max_skipped', 'guard.exit_after'),
)


@functools.cache
def _program_of(base):
  return _program(BASES[base][0])


@pytest.mark.parametrize(
  'base, key', [(b, k) for b, (_, changes) in BASES.items() for k in changes]
)
def test_changing_a_key_changes_the_step(base, key):
  config, changes = BASES[base]
  config = config.copy_and_resolve_references()
  section, _, name = key.rpartition('.')
  (config[section] if section else config)[name] = changes[key]
  assert _program(config) != _program_of(base)


def test_equal_configs_give_equal_programs():
  config, _ = BASES['plain']
  assert _program(config.copy_and_resolve_references()) == _program_of('plain')


def test_changes_cover_all_keys_of_the_step():
  changes = set().union(*(changes for _, changes in BASES.values()))
  # The other keys of these sections are arguments of the same functions.
  sections = ('model', 'loss', 'optimizer', 'schedule')
  assert {f'{name}.' for name in sections} <= {
    f'{key.partition(".")[0]}.' for key in changes
  }
  keys = config_lib.flatten(config_lib.default())
  assert {
    key
    for key in keys
    if not key.startswith((*AROUND_THE_STEP, *(f'{s}.' for s in sections)))
  } <= changes


def test_every_key_of_the_model_is_an_option_of_some_model():
  options = set().union(*(models.options(name) for name in models.names()))
  assert set(config_lib.default().model) <= options | {'name'}
