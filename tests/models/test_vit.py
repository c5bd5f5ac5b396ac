"""Guards the Vision Transformer: it equals NumPy, and each option works."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive
from vit_jax import models
from vit_jax.accounting import traces
from vit_jax.models import vit

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


def _random_params(model, images=IMAGES, stream=0.5):
  """Returns nonzero parameters; `stream` is the residual stream's scale."""
  rng = np.random.default_rng(1)

  def randomise(path, a):
    name = jax.tree_util.keystr(path)
    writes = ('cls', 'embedding', 'out', 'Dense_1')
    scale = stream if any(w in name for w in writes) else 0.5
    return (scale * rng.normal(size=a.shape)).astype(np.float32)

  shapes = jax.eval_shape(model.init, jax.random.key(0), images)['params']
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


def _forward(model, p, images):
  """Returns the logits and intermediates in NumPy, float64."""
  high, wide = model.patch_size
  tokens = [
    np.tensordot(
      images[:, i : i + high, j : j + wide], p['embedding']['kernel'], 3
    )
    + p['embedding']['bias']
    for i in range(0, images.shape[1], high)
    for j in range(0, images.shape[2], wide)
  ]
  if model.pooling == 'token':
    tokens = [np.tile(p['cls'][0], (len(images), 1)), *tokens]
  transformer = p['Transformer']
  x = np.stack(tokens, 1) + transformer['posembed_input']['pos_embedding']
  out = {'embedded': x}
  for i in range(model.depth):
    x, _ = naive.block(x, transformer[f'encoderblock_{i}'], False, model.gelu)
  out['encoded'] = x = naive.layer_norm(x, transformer['encoder_norm'])
  x = x[:, 0] if model.pooling == 'token' else x.mean(1)
  if model.representation_size:
    x = np.tanh(naive.dense(x, p['pre_logits']))
  out['pre_logits'] = x
  return naive.dense(x, p['head']), out


@pytest.mark.parametrize(
  'pooling, representation_size, patch_size',
  [('token', None, 4), ('token', 9, (2, 6)), ('gap', None, (2, 6))],
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
  expected = _forward(model, exact, np.float64(IMAGES))
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  assert actual[0].std() > 0.3
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), actual, expected
  )


def test_attention_pooling_equals_numpy():
  rng = np.random.default_rng(0)
  tokens = rng.normal(size=(2, 5, 8))
  head = vit.MAPHead(2, 12)
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
  actual = head.apply({'params': params}, jnp.asarray(tokens, jnp.float32))
  np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_patch_embedding_equals_a_valid_convolution():
  images = np.random.default_rng(0).normal(size=(2, 21, 30, 5)).astype('f')
  module = vit.PatchEmbedding(6, (4, 9))
  params = _random_params(module, images)
  expected = jax.lax.conv_general_dilated(
    images,
    params['kernel'],
    window_strides=(4, 9),
    padding='VALID',
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )
  np.testing.assert_allclose(
    module.apply({'params': params}, images),
    expected.reshape(2, -1, 6) + params['bias'],
    atol=1e-4,
  )


def test_parameters_are_named_as_in_the_released_checkpoints():
  model = _build(depth=1, representation_size=9)
  params = jax.eval_shape(model.init, jax.random.key(0), IMAGES)['params']
  flat, _ = jax.tree_util.tree_flatten_with_path(params)
  block = 'Transformer/encoderblock_0'
  mha = f'{block}/MultiHeadDotProductAttention_0'
  assert {a.dtype for _, a in flat} == {jnp.dtype('float32')}
  assert {'/'.join(k.key for k in path): a.shape for path, a in flat} == {
    'cls': (1, 1, 16),
    'embedding/kernel': (4, 4, 3, 16),
    'embedding/bias': (16,),
    'Transformer/posembed_input/pos_embedding': (1, 7, 16),
    f'{block}/LayerNorm_0/scale': (16,),
    f'{block}/LayerNorm_0/bias': (16,),
    **{f'{mha}/{n}/kernel': (16, 2, 8) for n in ('query', 'key', 'value')},
    **{f'{mha}/{n}/bias': (2, 8) for n in ('query', 'key', 'value')},
    f'{mha}/out/kernel': (2, 8, 16),
    f'{mha}/out/bias': (16,),
    f'{block}/LayerNorm_1/scale': (16,),
    f'{block}/LayerNorm_1/bias': (16,),
    f'{block}/MlpBlock_0/Dense_0/kernel': (16, 24),
    f'{block}/MlpBlock_0/Dense_0/bias': (24,),
    f'{block}/MlpBlock_0/Dense_1/kernel': (24, 16),
    f'{block}/MlpBlock_0/Dense_1/bias': (16,),
    'Transformer/encoder_norm/scale': (16,),
    'Transformer/encoder_norm/bias': (16,),
    'pre_logits/kernel': (16, 9),
    'pre_logits/bias': (9,),
    'head/kernel': (9, 5),
    'head/bias': (5,),
  }


@pytest.mark.parametrize(
  'blocks, patch_size, grid, channels',
  [
    ((), 8, (2, 3), 64),
    ((1, 1), 2, (4, 6), 512),
    ((1, 1, 1, 1), 1, (2, 3), 2048),
  ],
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
  params = variables['params']
  assert params['embedding']['kernel'].shape == (
    patch_size, patch_size, channels, 16
  )  # fmt: skip
  assert out['encoded'].shape == (2, 1 + math.prod(grid), 16)
  assert out['features'].shape == (
    2, grid[0] * patch_size, grid[1] * patch_size, channels
  )  # fmt: skip
  stages = {f'block{i + 1}' for i in range(len(blocks))}
  others = {'cls', 'embedding', 'Transformer', 'head'}
  assert set(params) == others | stages | {'conv_root', 'gn_root'}


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


def _loss(model, params, key=None):
  rngs = {} if key is None else {'dropout': key}
  logits, _ = model.apply(
    {'params': params}, IMAGES, train=key is not None, rngs=rngs
  )
  return (logits**2).mean()


_jit_loss = jax.jit(_loss, static_argnums=0)


def test_dropout_depends_on_the_key_alone():
  model = _build(dropout_rate=0.3, depth=1)
  params = _random_params(model)
  one, two = jax.random.split(jax.random.key(0))
  assert _jit_loss(model, params, one) == _jit_loss(model, params, one)
  assert _jit_loss(model, params, one) != _jit_loss(model, params, two)
  assert _jit_loss(model, params) == _jit_loss(_build(depth=1), params)
  # Without `train`, or with rate 0, no random stream is needed.
  variables = {'params': params}
  jax.eval_shape(lambda: model.apply(variables, IMAGES))
  jax.eval_shape(lambda: _build(depth=1).apply(variables, IMAGES, train=True))


def test_dropout_sites_match_the_released_code():
  model = _build(dropout_rate=0.5, depth=1)
  params = _random_params(model)
  masks = _equations_of_primitive(
    lambda key: _loss(model, params, key), 'random_bits', jax.random.key(0)
  )
  # Two rows share their random numbers.
  tokens, hidden = (2, 7, 16), (2, 7, 24)
  assert [e.outvars[0].aval.shape for e in masks] == [
    tokens,  # After adding the position embedding.
    *(tokens, hidden, tokens),  # After attention, after GELU, after the MLP.
  ]
  apply = lambda train: model.apply(  # noqa: E731
    {'params': params},
    IMAGES,
    train=train,
    rngs={'dropout': jax.random.key(0)},
  )[1]['embedded']
  kept = apply(True) != 0
  assert 0.4 < kept.mean() < 0.6
  np.testing.assert_array_equal(apply(True), kept * 2 * apply(False))


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

  def dtypes(primitive):
    equations = _equations_of_primitive(
      lambda p: model.apply({'params': p}, IMAGES)[0], primitive, params
    )
    return [e.invars[0].aval.dtype.name for e in equations], equations

  assert set(dtypes('exp')[0]) == {'float32'}  # Softmax.
  assert set(dtypes('rsqrt')[0]) == {'float32'}  # LayerNorm.
  products, equations = dtypes('dot_general')
  assert products == ['bfloat16'] * 9 + ['float32']  # Head.
  assert '(Precision.HIGHEST, Precision.HIGHEST)' in str(equations[-1])


@pytest.mark.parametrize(
  'images, message',
  [
    (
      np.zeros((1, 8, 12, 3), np.uint8),
      r'uint8\[1, 8, 12, 3\], expected float',
    ),
    (np.zeros((8, 12, 3), np.float32), r'float32\[8, 12, 3\], expected float'),
    (np.zeros((1, 8, 3, 3), np.float32), r'8x3 px is below one patch of 4x4'),
  ],
)
def test_bad_images_are_named(images, message):
  model = _build()
  with pytest.raises(ValueError, match=message):
    model.init(jax.random.key(0), images)
