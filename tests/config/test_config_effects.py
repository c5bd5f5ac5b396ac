"""Guards: each config key changes the training step or the initial weights.

A key of the sections model, optimizer, schedule and loss is an argument of one
function, whose tests say what it does. So some of each section stand for all.
"""

import functools

import jax
import pytest

from tests.tiny_run import SIZES
from vit_jax import config as config_lib
from vit_jax import models, sharding
from vit_jax.training import program as program_lib

BASE = config_lib.default()
BASE.total_steps, BASE.num_classes = 10, 2
BASE.image_size, BASE.channels = (8, 8), 1
BASE.data.batch_size = 8
BASE.model.update({'name': 'ViT-B/4', 'dtype': 'float32'} | SIZES)
BASE.model.dropout_rate, BASE.polyak.decay, BASE.mesh.data = 0.1, 0.9, 1
BASE.tuning.train = 'head'  # A gradient of all weights takes long to trace.
CHANGES = {
  'seed': 1,
  'total_steps': 11,
  'accumulation_steps': 2,
  'mixup_alpha': 0.2,
  'cutmix_alpha': 0.2,
  'cutmix_share': 0.2,
  'mix_by': 'pair',
  'dropout_rng': 'rbg',
  'sam.rho': 0.1,
  'sam.rho_end': 0.0,
  'sam.alpha': 0.5,
  'model.position_stddev': 0.5,
  'loss.label_smoothing': 0.1,
  'loss.binary': True,
  'loss.reduce': 'mean',
  'polyak.decay': 0.5,
  'polyak.start_step': 3,
  'tuning.layer_decay': 0.7,
  'distill.teacher': 'some',
  'distill.model': 'ViT-B/4:width=8,depth=1,heads=1,mlp_dim=8',
  'distill.image_size': (12, 12),
  'distill.kind': 'hard',
  'distill.temperature': 2.0,
  'distill.weight': 1.0,
  'optimizer.b1': 0.5,
  'schedule.peak': 0.5,
}
# Keys whose effect tests/training/test_tuning.py, test_recording.py and
# losses/test_flexi.py guard more exactly, and the sizes, without which no run
# would work.
GUARDED = {
  *('flexi.patch_sizes', 'tuning.freeze', 'tuning.train', 'guard.nonfinite'),
  'guard.replay_every',
  *('lora.rank', 'lora.alpha', 'lora.targets'),
  *('image_size', 'channels', 'num_classes'),
}
TEACHER = {
  'distill.teacher': 'some',
  'distill.model': 'ViT-B/4:width=8,depth=1,heads=2,mlp_dim=8',
}
# Without these values, a key has no effect.
NEEDED = {
  **dict.fromkeys(
    ('distill.model', 'distill.kind', 'distill.temperature', 'distill.weight')
    + ('distill.image_size',),
    TEACHER,
  ),
  'tuning.layer_decay': {'tuning.train': ''},
  'cutmix_share': {'mixup_alpha': 0.2, 'cutmix_alpha': 0.2},
  'distill.teacher': {'distill.model': TEACHER['distill.model']},
  'mix_by': {'mixup_alpha': 0.2},
  'loss.binary': {'mixup_alpha': 0.2},
  'sam.rho_end': {'sam.rho': 0.1},
  'sam.alpha': {'sam.rho': 0.1},
}
# Sections of one function each, and keys that do not affect a training step.
ARGUMENTS = ('model.', 'loss.', 'optimizer.', 'schedule.')
AROUND_THE_STEP = (
  *('epochs', 'data.', 'evals.', 'init.'),
  *('checkpoint.', 'log.', 'profile.', 'mesh.'),
  *('guard.max_skipped', 'guard.exit_after'),
)


@functools.cache
def _program(**changes):
  config = BASE.copy_and_resolve_references()
  config.update_from_flattened_dict(changes)
  return program_lib.Program(config, sharding.build(**config.mesh))


@functools.cache
def _traced(part, **changes):
  """Returns the traced step or initialisation as text, with constants."""
  program = _program(**changes)
  if part == 'step':
    jaxpr = jax.make_jaxpr(program.train_step.__wrapped__)(*program.arguments)
  else:
    jaxpr = jax.make_jaxpr(
      lambda: program_lib.fresh_params(
        program.config, program.model, program.params_key
      )
    )()
  return f'{jaxpr}{jaxpr.consts}'


@pytest.mark.parametrize('key, value', CHANGES.items(), ids=CHANGES)
def test_changing_a_key_changes_the_program(key, value):
  others = NEEDED.get(key, {})
  assert any(
    _traced(part, **(others | {key: value})) != _traced(part, **others)
    for part in ('step', 'initialisation')
  )


def test_changes_cover_all_keys():
  assert _traced('step', seed=BASE.seed) == _traced('step')
  keys = config_lib.flatten(config_lib.default())
  own = [k for k in keys if not k.startswith(ARGUMENTS + AROUND_THE_STEP)]
  assert set(own) <= CHANGES.keys() | GUARDED
  options = set().union(*(models.options(name) for name in models.names()))
  assert set(config_lib.default().model) <= options | {'name'}
