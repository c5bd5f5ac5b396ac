"""Guards the Vision Transformer: it equals NumPy, and each option works."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive
from vit_jax import models
from vit_jax.accounting import traces
from vit_jax.models import model_options, vit

# 2x3 patches: L = 7 tokens with the class token; D = 16, H = 2, K = 8.
IMAGES = np.random.default_rng(0).uniform(-1, 1, (3, 8, 12, 3))
IMAGES = IMAGES.astype(np.float32)


def _build(**overrides):
  tiny = {
    'width': 16,
    'depth': 2,
    'heads': 2,
    'mlp_dim': 24,
    'patch_size': 4,
    **overrides,
  }
  return models.build('ViT-B/16', num_classes=5, **tiny)


def _random_params(model, stream=0.5):
  """Returns nonzero parameters; `stream` is the residual stream's scale."""
  rng = np.random.default_rng(1)

  def randomise(path, a):
    name = jax.tree_util.keystr(path)
    writes = ('cls', 'embedding', 'out', 'Dense_1')
    scale = stream if any(w in name for w in writes) else 0.5
    return (scale * rng.normal(size=a.shape)).astype(np.float32)

  shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGES)['params']
  return jax.tree_util.tree_map_with_path(randomise, shapes)


def _equations(jaxpr):
  """Yields all equations of a jaxpr and its inner jaxprs, in order."""
  for equation in jaxpr.eqns:
    yield equation
    yield from (
      inner
      for jaxpr in traces.functions(equation)
      for inner in _equations(jaxpr)
    )


def _equations_of_primitive(function, primitive, *args):
  """Returns the equations of one primitive in the function's jaxpr."""
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  return [e for e in _equations(jaxpr) if e.primitive.name == primitive]


@pytest.mark.parametrize(
  'pooling, representation_size, patch_size',
  # What is beyond the last whole patch is dropped.
  [('token', 9, (3, 5)), ('gap', None, 4)],
)
def test_forward_equals_numpy(pooling, representation_size, patch_size):
  model = _build(
    pooling=pooling,
    representation_size=representation_size,
    patch_size=patch_size,
  )
  # The residual stream is so small that LayerNorm's epsilon matters.
  params = _random_params(model, stream=1e-3)
  actual = jax.jit(model.apply)({'params': params}, IMAGES)
  exact = jax.tree.map(np.float64, params)
  logits, _, features, encoded, (embedded, *_) = naive.vit(
    model, exact, np.float64(IMAGES)
  )
  expected = (
    logits,
    {'embedded': embedded, 'encoded': encoded, 'pre_logits': features},
  )
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  assert actual[0].std() > 0.3
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), actual, expected
  )


def test_attention_pooling_equals_numpy():
  rng = np.random.default_rng(0)
  tokens = rng.normal(size=(2, 5, 8))
  head = vit.MAPHead(model_options.Options(depth=1, heads=2, mlp_dim=12))
  shapes = jax.eval_shape(head.init, jax.random.key(0), jnp.asarray(tokens))
  params = jax.tree.map(
    lambda a: rng.normal(size=a.shape) / 2, shapes['params']
  )
  part = params['MultiHeadDotProductAttention_0']
  dense = naive.dense
  query = dense(params['probe'][0], part['query'], 'ld,dhk->lhk')[0]
  key, value = (
    dense(tokens, part[name], 'bld,dhk->blhk') for name in ('key', 'value')
  )
  scores = np.exp(np.einsum('hk,bthk->bht', query, key) / 2)  # sqrt(4)
  weights = scores / scores.sum(-1, keepdims=True)
  x = np.einsum('bht,bthk->bhk', weights, value)
  x = dense(x, part['out'], 'bhk,hkd->bd')
  y = naive.layer_norm(x, params['LayerNorm_0'])
  y = naive.GELUS['tanh'](dense(y, params['MlpBlock_0']['Dense_0']))
  expected = x + dense(y, params['MlpBlock_0']['Dense_1'])
  actual = jax.jit(head.apply)({'params': params}, np.float32(tokens))
  np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize(
  'blocks, patch_size, grid, channels',
  [((), 8, (2, 3), 64), ((1, 1), 2, (4, 6), 512)],
)
def test_a_hybrid_can_end_after_any_resnet_stage(
  blocks, patch_size, grid, channels
):
  model = _build(resnet_blocks=blocks, patch_size=patch_size, depth=1)
  assert model.token_grid((64, 96)) == grid
  images = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
  (_, out), variables = jax.eval_shape(
    lambda x: model.init_with_output(jax.random.key(0), x), images
  )
  assert out['encoded'].shape == (2, 1 + math.prod(grid), 16)
  assert out['features'].shape == (2, *(patch_size * n for n in grid), channels)
  stages = {f'block{i + 1}' for i in range(len(blocks))}
  others = {'cls', 'embedding', 'Transformer', 'head'}
  assert set(variables['params']) == others | stages | {'conv_root', 'gn_root'}


def test_initial_values():
  model = _build(
    width=64, heads=4, mlp_dim=128, head_bias=-10.0, depth=3, scan=True
  )
  images = np.zeros((1, 64, 64, 3), np.float32)
  params = jax.jit(model.init)(jax.random.key(0), images)['params']
  block = params['Transformer']['encoderblock']
  mha, mlp = block['MultiHeadDotProductAttention_0'], block['MlpBlock_0']
  for kernel, fans in (
    *((mha[n]['kernel'], 128) for n in ('query', 'key', 'value', 'out')),
    *((mlp[n]['kernel'], 192) for n in ('Dense_0', 'Dense_1')),
  ):  # Xavier: uniform within sqrt(6 / (fan in + fan out)).
    bound = np.sqrt(6 / fans)
    assert 0.99 * bound < abs(kernel).max() <= bound
    assert kernel.std() == pytest.approx(bound / np.sqrt(3), rel=0.03)
    assert not np.array_equal(kernel[0], kernel[1])
  for a, std in (
    (mlp['Dense_0']['bias'], 1e-6),
    (mlp['Dense_1']['bias'], 1e-6),
    (params['embedding']['kernel'], np.sqrt(1 / (4 * 4 * 3))),
    (params['Transformer']['posembed_input']['pos_embedding'], 0.02),
  ):
    assert a.std() == pytest.approx(std, rel=0.15)
  for a, value in (
    *((mha[n]['bias'], 0) for n in ('query', 'key', 'value', 'out')),
    (params['cls'], 0),
    (params['embedding']['bias'], 0),
    (params['head']['kernel'], 0),
    (params['head']['bias'], -10),
  ):
    assert (a == value).all()


@functools.partial(jax.jit, static_argnums=0)
def _trained(model, params, key):
  """Returns what the model returns in training."""
  rngs = {'dropout': key}
  return model.apply({'params': params}, IMAGES, train=True, rngs=rngs)


def test_dropout_follows_the_key_at_the_released_codes_sites():
  model = _build(dropout_rate=0.5, depth=1)
  params = _random_params(model)
  one, two = jax.random.split(jax.random.key(0))
  (logits, out), (others, _) = (_trained(model, params, k) for k in (one, two))
  np.testing.assert_array_equal(_trained(model, params, one)[0], logits)
  assert (others != logits).any()
  masks = _equations_of_primitive(
    lambda key: _trained(model, params, key), 'random_bits', one
  )
  # Two rows share their random numbers.
  tokens, hidden = (2, 7, 16), (2, 7, 24)
  assert [e.outvars[0].aval.shape for e in masks] == [
    tokens,  # After adding the position embedding.
    *(tokens, hidden, tokens),  # After attention, after GELU, after the MLP.
  ]
  # Without `train`, no random stream is needed.
  _, plain = jax.jit(model.apply)({'params': params}, IMAGES)
  kept = out['embedded'] != 0
  assert 0.4 < kept.mean() < 0.6
  np.testing.assert_array_equal(out['embedded'], kept * 2 * plain['embedded'])


def test_bfloat16_models_have_float32_parameters_and_logits():
  exact, model = _build(depth=1), _build(depth=1, dtype='bfloat16')
  params = _random_params(exact)
  initial = jax.eval_shape(model.init, jax.random.key(0), IMAGES)
  assert {a.dtype for a in jax.tree.leaves(initial)} == {jnp.dtype('float32')}
  logits, out = jax.jit(model.apply)({'params': params}, IMAGES)
  assert logits.dtype == jnp.float32
  assert {a.dtype for a in out.values()} == {jnp.dtype('bfloat16')}
  expected, _ = jax.jit(exact.apply)({'params': params}, IMAGES)
  np.testing.assert_allclose(logits, expected, atol=0.15)
  assert abs(logits - expected).max() > 1e-4

  for primitive, dtypes in (
    ('exp', ['float32']),  # Softmax.
    ('rsqrt', ['float32'] * 3),  # LayerNorm.
    ('dot_general', ['bfloat16'] * 9 + ['float32']),  # The head's is the last.
  ):
    equations = _equations_of_primitive(
      lambda p: model.apply({'params': p}, IMAGES)[0], primitive, params
    )
    assert [e.invars[0].aval.dtype.name for e in equations] == dtypes
  assert '(Precision.HIGHEST, Precision.HIGHEST)' in str(equations[-1])


@pytest.mark.parametrize(
  'shape, dtype, message',
  [
    ((1, 8, 12, 3), np.uint8, r'uint8\[1, 8, 12, 3\], expected float'),
    ((8, 12, 3), np.float32, r'float32\[8, 12, 3\], expected float'),
    ((1, 8, 3, 3), np.float32, r'8x3 .* is below one patch of 4x4'),
  ],
)
def test_bad_images_are_named(shape, dtype, message):
  with pytest.raises(ValueError, match=message):
    _build().init(jax.random.key(0), np.zeros(shape, dtype))
