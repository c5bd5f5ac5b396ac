"""Guards: the timed steps, their configs, and the plain model, like ours."""

import functools
import re

import jax
import numpy as np
import pytest

from benchmarks import plain_vit, report, steps
from tests.tiny_run import tiny_config
from vit_jax import config as config_lib
from vit_jax import sharding
from vit_jax.plan import analysis
from vit_jax.training import program as program_lib


def test_changed():
  config = config_lib.default()
  found = steps.changed(
    config,
    'model.scan=true,image_size=(32,48),schedule.peak=2,model.remat=full,'
    'accumulation_steps=4,model.qkv_bias=false',
  )
  assert found.model.scan is True
  assert found.model.qkv_bias is False
  assert found.image_size == (32, 48)
  assert found.schedule.peak == 2.0
  assert found.model.remat == 'full'
  assert found.accumulation_steps == 4
  # The original did not change.
  assert config.model.scan is None
  assert config.image_size == (224, 224)


@pytest.mark.parametrize(
  'text',
  [
    *('fast', 'model.scam=true', 'modle.scan=true', 'seed.x=1'),
    *('model.scan=maybe', 'accumulation_steps=two'),
  ],
)
def test_wrong_changes(text):
  with pytest.raises(ValueError, match=re.escape(f'{text!r}: expected KEY=')):
    steps.changed(config_lib.default(), text)


def test_figures_of_steps():
  # ViT-B/16 needs 17.5 GMACs, so training at 100 images/s is 10.5 TFLOP/s.
  h100 = {'batch_size': 200, 'devices': 2, 'forward_macs': 17_500_000_000}
  h100['device_kind'] = 'NVIDIA H100 PCIe'
  facts = {'a': h100, 'b': h100 | {'batch_size': 100, 'device_kind': 'cpu'}}
  found = report.of_steps({'a': [1.0], 'b': [1.0]}, facts)
  assert found['a']['images_per_sec'] == 200
  assert found['a']['mfu'] == pytest.approx(10.5 / 756)
  assert found['b']['mfu'] is None
  # Twice as long for an image.
  assert found['b']['ratio'] == 2


def test_a_turn_starts_afresh():
  """Each turn begins with a fresh state and runs `warmup` + `steps` steps."""
  calls = []

  def run(state, batch):
    calls.append(state)
    return state + 1, None

  timed = steps.Step(lambda: 0, dict, run, {})
  assert timed.turn(steps=3, warmup=2) > 0
  timed.turn(steps=1, warmup=0)
  assert calls == [0, 1, 2, 3, 4, 0]


def _as_plain(params):
  """Returns our parameters under the names of the plain model's."""
  encoder = params['Transformer']
  plain = {
    'Conv_0': params['embedding'],
    'token': params['cls'],
    'position': encoder['posembed_input']['pos_embedding'],
    'LayerNorm_4': encoder['encoder_norm'],
    'Dense_4': params['pre_logits'],
    'Dense_5': params['head'],
  }
  for i in range(2):
    block = encoder[f'encoderblock_{i}']
    attention = 'MultiHeadDotProductAttention'
    plain[f'{attention}_{i}'] = block[f'{attention}_0']
    for j in range(2):
      plain[f'LayerNorm_{2 * i + j}'] = block[f'LayerNorm_{j}']
      plain[f'Dense_{2 * i + j}'] = block['MlpBlock_0'][f'Dense_{j}']
  return plain


def _config(**changes):
  config = tiny_config(
    {
      'image_size': (16, 16),
      'channels': 3,
      'data.batch_size': 8,
      'model.name': 'ViT-Ti/8',
      'model.depth': 2,
      'model.representation_size': 8,
      'num_classes': 5,
      'optimizer.weight_decay': 0.1,
      'optimizer.clip_norm': 0.5,
      # With a large eps, updates depend on the gradient's size, not only its
      # sign.
      'optimizer.eps': 1.0,
    }
  )
  config.schedule = config_lib.schedule('constant', peak=1.0, warmup_steps=0)
  config.update_from_flattened_dict(changes)
  return analysis.resolve(config, 'cpu')


@pytest.mark.gate
def test_plain_model_and_step_are_the_same():
  config = _config()
  program = program_lib.Program(config, sharding.build(**config.mesh))
  leaves, structure = jax.tree.flatten(program.shapes.params)
  rng = np.random.default_rng(0)
  params = structure.unflatten(
    [0.3 * rng.standard_normal(x.shape, np.float32) for x in leaves]
  )
  batch = {
    'image': rng.integers(0, 256, (8, 16, 16, 3)).astype(np.uint8),
    'label': np.arange(8, dtype=np.int32) % 5,
    'mask': np.ones(8, bool),
    'unreadable': np.zeros(8, bool),
  }
  images = batch['image'].astype(np.float32) / 127.5 - 1
  start = _as_plain(params)
  ours, plain = (
    jax.jit(functools.partial(of.apply, train=False))({'params': own}, images)
    for of, own in (
      (program.model, params),
      (plain_vit.PlainViT(program.model), start),
    )
  )
  np.testing.assert_allclose(plain, ours[0], rtol=1e-4, atol=1e-5)

  state = program.init_state(jax.tree.map(np.copy, params))
  batch = sharding.put_batch(batch, program.layout.mesh)
  state, metrics = program.train_step(state, batch)
  init, plain_step = plain_vit.make_step(config, program.model)
  shapes = jax.eval_shape(init)
  assert jax.tree.map(lambda x: x.shape, shapes[0]) == jax.tree.map(
    lambda x: x.shape, start
  )
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes[1])
  (trained, _, _), loss = jax.jit(plain_step)(
    (start, zeros, jax.random.key(0)), batch
  )
  np.testing.assert_allclose(loss, metrics['loss'], rtol=1e-5)
  for mine, theirs in zip(
    jax.tree.leaves(_as_plain(state.params)),
    jax.tree.leaves(trained),
    strict=True,
  ):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'changes, word',
  [
    ({'model.gelu': 'exact'}, 'gelu'),
    ({'model.position_embedding': '2d'}, 'position_embedding'),
  ],
)
def test_what_has_no_plain_form_is_refused(changes, word):
  with pytest.raises(ValueError, match=word):
    steps.build(_config(**changes), plain=True)
