"""Guards: the train-step benchmark and its plain model, which equals ours."""

import functools

import jax
import numpy as np
import pytest

from benchmarks.measure import plain_vit, settings, training
from tests.benchmarks import tiny
from vit_jax import config as config_lib
from vit_jax import losses, sharding
from vit_jax.training import program as program_lib

# Names of our modules -> names of plain_vit's modules.
_BLOCK = {
  'LayerNorm_0': 'LayerNorm_0',
  'LayerNorm_1': 'LayerNorm_1',
  'MultiHeadDotProductAttention_0': 'MultiHeadDotProductAttention_0',
}


def _as_plain(params):
  encoder = params['Transformer']
  plain = {
    'Conv_0': params['embedding'],
    'token': params['cls'],
    'position': encoder['posembed_input']['pos_embedding'],
    'LayerNorm_0': encoder['encoder_norm'],
    'Dense_0': params['pre_logits'],
    'Dense_1': params['head'],
  }
  for i in range(2):
    block = encoder[f'encoderblock_{i}']
    plain[f'PlainBlock_{i}'] = {
      **{ours: block[theirs] for ours, theirs in _BLOCK.items()},
      **block['MlpBlock_0'],
    }
  return plain


def _pair():
  """Returns a resolved config, its program and random parameters."""
  config = tiny.config(depth=2, representation_size=8)
  config.num_classes = 5
  config.mesh.data = 1  # Compiles faster than for all eight devices.
  config.optimizer.weight_decay = 0.1
  config.optimizer.clip_norm = 0.5
  # With a large eps, updates depend on the gradient's size, not only its sign.
  config.optimizer.eps = 1.0
  config.schedule = config_lib.schedule('constant', peak=1.0, warmup_steps=0)
  config = settings.resolve(config)
  program = program_lib.Program(config, sharding.build(**config.mesh))
  shapes = program.shapes.params
  leaves, structure = jax.tree.flatten(shapes)
  generator = np.random.default_rng(0)
  params = structure.unflatten(
    [0.3 * generator.standard_normal(x.shape, np.float32) for x in leaves]
  )
  return config, program, params


@pytest.mark.gate
def test_plain_model_and_step_are_the_same():
  config, program, params = _pair()
  model = plain_vit.build(config, program.model)
  generator = np.random.default_rng(1)
  batch = {
    'image': generator.integers(0, 256, (8, 16, 16, 3)).astype(np.uint8),
    'label': np.arange(8, dtype=np.int32) % 5,
    'mask': np.ones(8, bool),
    'unreadable': np.zeros(8, bool),
  }
  images = batch['image'].astype(np.float32) / 127.5 - 1
  ours, plain = (
    jax.jit(functools.partial(of.apply, train=False))({'params': own}, images)
    for of, own in ((program.model, params), (model, _as_plain(params)))
  )
  np.testing.assert_allclose(plain, ours[0], rtol=1e-4, atol=1e-5)

  state = program.init_state(jax.tree.map(np.copy, params))
  layout = program.layout
  batch = sharding.put_batch(batch, layout.mesh)
  state, metrics = program.train_step(state, batch)
  init, plain_step = plain_vit.make_step(config, model)
  key = jax.random.key(0)
  zeros = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(init, key)[1]
  )
  start = _as_plain(params)
  (trained, _, _), loss = jax.jit(plain_step)((start, zeros, key), batch)
  np.testing.assert_allclose(loss, metrics['loss'], rtol=1e-5)
  for mine, theirs in zip(
    jax.tree.leaves(_as_plain(state.params)),
    jax.tree.leaves(trained),
    strict=True,
  ):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  'name, labels',
  [
    ('softmax', [0, 2, 1]),
    ('sigmoid', [0, 2, 1]),
    ('sigmoid', [[0, 1], [2, -1], [-1, -1]]),
  ],
)
def test_plain_losses(name, labels):
  logits = np.linspace(-2, 3, 9, dtype=np.float32).reshape(3, 3)
  labels = np.array(labels)
  found = plain_vit.loss_of(name, logits, labels)
  expected = losses.build(name)(logits, labels).mean()
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def _fake_step(run=None, batch_size=1):
  return training.Step(
    init=lambda: 0,
    make_batch=dict,
    step=run,
    abstract_state=None,
    batch_size=batch_size,
    devices=2,
    forward_macs=10**9,
    facts={'params': 5},
  )


def test_a_turn_starts_afresh():
  """Each turn begins with a fresh state and runs `warmup` + `steps` steps."""
  calls = []

  def run(state, batch):
    calls.append(state)
    return state + 1, None

  timed = _fake_step(run)
  assert timed.turn(steps=3, warmup=2) > 0
  timed.turn(steps=1, warmup=0)
  assert calls == [0, 1, 2, 3, 4, 0]
