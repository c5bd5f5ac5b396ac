"""Guards the options of blocks that came after the paper.

`test_blocks.py` compares them with NumPy's formulas, and `test_theirs.py` with
timm and transformers.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from tests.models import naive, stacking
from tests.models.test_attention import lengths as lengths
from vit_jax import models, sharding
from vit_jax.models import (
  attention,
  encoder,
  model_options,
  rotary,
  shared,
)

RNG = np.random.default_rng(0)
SIZE, GRID = (8, 12), (2, 3)
IMAGES = RNG.uniform(-1, 1, (8, *SIZE, 3)).astype('f')
KINDS = ('axial', 'mixed', 'dinov3')
# Each option, with others that it does not exclude.
OPTIONS = {
  'all': dict(
    **dict(norm='rms', qk_norm=True, mlp='swiglu', layer_scale=0.5),
    **dict(rotary='mixed', parallel=True, qkv_bias=False, pooling='map'),
    **dict(stochastic_depth=0.2, stochastic_depth_rule='uniform'),
  ),
  'dinov3': dict(rotary='dinov3', rotary_base=9.0, pooling='gap'),
  'tokens': dict(
    **dict(distillation_token=True, registers=4, rotary='axial'),
    **dict(rotary_registers=9.0, position_site='every_layer_shared'),
  ),
  'later': dict(
    **dict(embedding_norm=True, patch_bias=False, key_bias=False, gelu='quick'),
    **dict(pooling='token_gap', class_position=False, registers=2),
    **dict(image_mean=(0.4, 0.5, 0.7), image_std=(0.2, 0.3, 2.0)),
    **dict(layer_scale=0.5, norm_position='post'),
  ),
  'axial attention': dict(
    **dict(rotary='axial', attention='axial', pooling='gap'),
    position_embedding='none',
  ),
}
_, *OTHERS = OPTIONS
WAYS = ('full', 'lanes', 'cudnn', 'tensor')


def _options(**options):
  sizes = dict(depth=1, heads=2, mlp_dim=24)
  return model_options.Options(**(sizes | options))


# Rotary positions ------------------------------------------------------------


def _turned(kind, grid, heads, *, rows=None, **options):
  """Turns [B, L, H, K], with the patches first after the other tokens."""
  options = _options(rotary=kind, **options)
  _, tokens, count, width = heads.shape
  learned = RNG.normal(size=(2, count, width // 2)).astype('f')
  angles = rotary.angles(
    *(options, grid, tokens, rows or tokens, width, learned)
  )
  assert angles.dtype == jnp.float32
  assert angles.shape in {(rows or tokens, n, width // 2) for n in (1, count)}
  return rotary.rotate(heads, angles[:tokens], kind), angles


@pytest.mark.parametrize('kind', KINDS)
def test_only_patches_turn(kind):
  heads = RNG.normal(size=(1, 5 + 6, 2, 8)).astype('f')
  turned, angles = _turned(kind, GRID, heads, rows=16)
  np.testing.assert_array_equal(turned[:, :5], heads[:, :5])
  assert not angles[11:].any()
  rounded, _ = _turned(kind, GRID, jnp.asarray(heads, jnp.bfloat16))
  assert rounded.dtype == jnp.bfloat16
  if kind != 'mixed':  # Its frequencies are drawn anew.
    np.testing.assert_allclose(rounded, turned, atol=0.03)


@pytest.mark.parametrize('registers, others', [(4, 1), (1, 3), (9, 2)])
def test_registers_turn_on_a_grid_of_their_own(registers, others):
  before, side = registers + others, round(registers**0.5)
  heads = RNG.normal(size=(1, before + 6, 2, 8)).astype('f')
  turned, _ = _turned(
    *('axial', GRID, heads), registers=registers, rotary_registers=9.0
  )
  expected = naive.rotated(heads, GRID, 'axial', 100)
  expected[:, :before] = naive.rotated(
    heads[:, :before], (side, side), 'axial', 9
  )
  np.testing.assert_allclose(turned, expected, atol=1e-5)
  np.testing.assert_array_equal(turned[:, :others], heads[:, :others])


def test_initial_mixed_frequencies_have_random_directions():
  x, y = rotary.init_mixed(None)(jax.random.key(0), (2, 3, 4))
  sizes = [1, 10**-0.5]  # 10^(-4i/K) for K = 8.
  np.testing.assert_allclose(np.hypot(x, y), [sizes * 2] * 3, rtol=1e-5)
  # Planes i and i + K/4 are at right angles.
  np.testing.assert_allclose(
    x[:, :2] * x[:, 2:] + y[:, :2] * y[:, 2:], 0, atol=1e-6
  )
  assert len(np.unique(np.arctan2(y, x)[:, 0].round(3))) == 3


# Other options ---------------------------------------------------------------


def test_a_layer_scale_of_0_is_the_identity_of_a_block():
  options = _options(layer_scale=0.0, mlp='swiglu', norm='rms')
  block, x = encoder.EncoderBlock(options), RNG.normal(size=(2, 7, 16))
  x = x.astype('f')
  call = dict(grid=GRID, train=False)
  scales = {f'layer_scale_{i}': jnp.zeros(16) for i in (0, 1)}
  initial = jax.jit(functools.partial(block.init, **call))(jax.random.key(0), x)
  for name, zeros in scales.items():
    np.testing.assert_array_equal(initial['params'][name], zeros)
  params = naive.random_params(block, x, **call)
  apply = jax.jit(functools.partial(block.apply, **call))
  np.testing.assert_array_equal(apply({'params': params | scales}, x), x)
  for name in scales:  # One branch each.
    own = {'params': params | scales | {name: jnp.ones(16)}}
    assert np.abs(apply(own, x) - x).min() > 0


def test_rates_of_stochastic_depth():
  np.testing.assert_allclose(shared.depth_rates(0.3, 4, 'uniform'), [0.3] * 4)
  assert shared.depth_rates(0, 2, 'uniform') == [None, None]
  assert shared.depth_rates(0.0, 3) == [None, None, None]
  assert shared.depth_rates(0.5, 1) == [None]
  first, *linear = shared.depth_rates(0.3, 4)
  assert first is None
  np.testing.assert_allclose(linear, [0.1, 0.2, 0.3], rtol=1e-6)
  # The first block leaves branches out, too: one block has nothing else.
  model = tiny.vit(depth=1, stochastic_depth=0.9)
  params = tiny.params(model, SIZE)

  def out(rule):
    own = model.clone(stochastic_depth_rule=rule)
    apply = jax.jit(functools.partial(own.apply, train=True))
    rngs = {'dropout': jax.random.key(0)}
    return apply({'params': params}, IMAGES, rngs=rngs)[0]

  assert np.abs(out('uniform') - out('linear')).max() > 0.1


# Ways to compute -------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.value_and_grad, argnums=1)
def _loss_and_grads(model, params):
  _, out = model.apply({'params': params}, IMAGES)
  return (out['pre_logits'] ** 2).mean()


def _assert_close(actual, expected):
  jax.tree.map(
    lambda a, e: np.testing.assert_allclose(
      a, e, rtol=1e-4, atol=1e-4 * float(np.abs(e).max()) + 1e-6
    ),
    actual,
    expected,
  )


@functools.cache
def _case(name):
  """Returns a model, parameters, and the loss and its gradients."""
  model = tiny.vit(**OPTIONS[name])
  params = jax.tree.map(lambda x: x * 0.3, tiny.params(model, SIZE))
  return model, params, _loss_and_grads(model, params)


# Scans that keep and compute anew what a gradient needs, and other ways.
@pytest.mark.parametrize(
  'name, way',
  [
    *(('all', way) for way in WAYS),
    *(
      pytest.param(name, way, marks=pytest.mark.gate)
      for name, way in (('all', 'none'), *itertools.product(OTHERS, WAYS))
    ),
  ],
)
def test_each_way_to_compute_gives_the_same(name, way, lengths):
  model, params, expected = _case(name)
  if way in ('none', 'full'):
    stacked = stacking.stack_blocks(params)
    scanned = model.clone(scan=True, remat=way)
    loss, grads = _loss_and_grads(scanned, stacked)
    _assert_close((loss, models.unstack_blocks(grads)), expected)
    return
  if way != 'tensor':
    fast = model.clone(attention_implementation=way)
    _assert_close(_loss_and_grads(fast, params), expected)
    return
  layout = sharding.Layout(sharding.make_mesh(2, 2, 2))
  layout.check(params)
  split = sharding.put_tree(params, layout.params(params))
  with sharding.use_mesh(layout.mesh):
    _assert_close(_loss_and_grads(model, split), expected)
  for leaf, x in tiny.flat(split).items():
    if leaf.endswith(('gate/kernel', 'gate/bias', 'rotary_frequencies')):
      assert 'tensor' in x.sharding.spec, leaf


# Sizes -----------------------------------------------------------------------


@pytest.mark.parametrize(
  'name, width', [('M/16', 64), ('So400m/14', 72), ('g/14', 88), ('G/14', 104)]
)
def test_heads_of_all_sizes(name, width):
  model = models.build(f'ViT-{name}', num_classes=2)
  assert attention.head_width(model.width, model.heads) == width
  assert not attention.why_not_cudnn('bfloat16', width, here=False)
  x = RNG.normal(size=(1, 9, 2 * width)).astype('f')
  out = {}
  for implementation in ('plain', 'lanes'):
    options = _options(rotary='axial', attention_implementation=implementation)
    module = attention.MultiHeadDotProductAttention(options)
    params = naive.random_params(module, x, scale=0.05, grid=(2, 4))
    apply = jax.jit(functools.partial(module.apply, grid=(2, 4)))
    out[implementation] = apply({'params': params}, x)
  np.testing.assert_allclose(out['lanes'], out['plain'], atol=1e-5)
