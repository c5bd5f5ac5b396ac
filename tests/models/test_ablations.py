"""Guards the paper's ablations (appendix D): they equal plain NumPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import stacking
from vit_jax import models
from vit_jax.models import attention, encoder, position, vit

GRID = (2, 3)
PATCH = 2
RNG = np.random.default_rng(0)
# [B, 2 rows of patches, 3 columns, pixels of a patch]
PATCHES = RNG.normal(size=(2, *GRID, PATCH, PATCH, 3)).astype(np.float32)

EMBEDDINGS = [
  ('none', 'stem'),
  ('1d', 'stem'),
  ('1d', 'every_layer'),
  ('1d', 'every_layer_shared'),
  ('2d', 'stem'),
  ('2d', 'every_layer'),
  ('2d', 'every_layer_shared'),
  ('sincos2d', 'stem'),
  ('sincos2d', 'every_layer_shared'),
  ('relative', 'stem'),
  ('relative_per_head', 'stem'),
]


def _images(patches):
  rows, columns = patches.shape[1:3]
  images = patches.transpose(0, 1, 3, 2, 4, 5)
  return images.reshape(-1, rows * PATCH, columns * PATCH, 3)


def _build(**overrides):
  sizes = dict(width=16, depth=2, heads=2, mlp_dim=24)
  return models.build(f'ViT-B/{PATCH}', num_classes=5, **sizes | overrides)


def _options(**overrides):
  return encoder.Options.of(_build(**overrides))


def _random_params(model, images):
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)['params']
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda a: rng.normal(size=a.shape).astype(np.float32) / 2, shapes
  )


# Position embeddings ---------------------------------------------------------


@pytest.mark.parametrize(
  'kind, site, pooling',
  [
    *((kind, site, 'token') for kind, site in EMBEDDINGS),
    *(('none', 'stem', 'gap'), ('none', 'stem', 'map')),
    ('2d', 'every_layer', 'gap'),
  ],
)
def test_patch_order_matters_unless_positions_are_none(kind, site, pooling):
  model = _build(position_embedding=kind, position_site=site, pooling=pooling)
  params = _random_params(model, _images(PATCHES))
  shuffled = PATCHES.reshape(2, 6, PATCH, PATCH, 3)[:, [3, 0, 5, 1, 2, 4]]
  apply = jax.jit(lambda x: model.apply({'params': params}, x)[0])
  before = apply(_images(PATCHES))
  after = apply(_images(shuffled.reshape(PATCHES.shape)))
  if kind == 'none':
    np.testing.assert_allclose(after, before, atol=1e-5)
  else:
    assert np.abs(after - before).max() > 1e-2


@pytest.mark.parametrize('num_prefix_tokens', [0, 1])
def test_2d_embeddings_concatenate_column_and_row_vectors(num_prefix_tokens):
  module = position.LearnedXY()
  arguments = dict(grid=GRID, num_prefix_tokens=num_prefix_tokens, width=4)
  params = {
    'x_embedding': np.array([[10.0, 11], [20, 21], [30, 31]]),
    'y_embedding': np.array([[1.0, 2], [3, 4]]),
  }
  if num_prefix_tokens:
    params['cls_embedding'] = np.array([[5.0, 6, 7, 8]])
  table = module.apply({'params': params}, **arguments)
  patches = [
    [10, 11, 1, 2], [20, 21, 1, 2], [30, 31, 1, 2],
    [10, 11, 3, 4], [20, 21, 3, 4], [30, 31, 3, 4],
  ]  # fmt: skip
  expected = [[5, 6, 7, 8]] * num_prefix_tokens + patches
  assert table.tolist() == [expected]
  shapes = jax.eval_shape(
    functools.partial(module.init, **arguments), jax.random.key(0)
  )['params']
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, shapes)


def test_sincos2d_has_four_waves():
  module = position.SinCosXY()
  table = module.apply({}, grid=GRID, num_prefix_tokens=1, width=12)[0]
  assert not table[0].any()
  for row in range(2):
    for column in range(3):
      # 10,000 ^ -(j / 2) for j = 0, 1, 2.
      expected = [
        wave(coordinate * frequency)
        for coordinate in (column, row)
        for wave in (math.sin, math.cos)
        for frequency in (1, 0.01, 0.0001)
      ]
      np.testing.assert_allclose(
        table[1 + row * 3 + column], expected, atol=1e-6
      )


@pytest.mark.parametrize('table_heads', [1, 2])
def test_relative_attention_equals_loops(table_heads):
  batch, length, heads, width = 2, 5, 2, 3
  query, key, value = RNG.normal(size=(3, batch, length, heads, width))
  table = RNG.normal(size=(2 * length - 1, table_heads, width))
  actual = attention.plain(
    *(jnp.asarray(a, jnp.float32) for a in (query, key, value)),
    jnp.asarray(table, jnp.float32),
  )
  for b in range(batch):
    for h in range(heads):
      for q in range(length):
        scores = [
          query[b, q, h]
          @ (key[b, k, h] + table[q - k + length - 1, h % table_heads])
          / math.sqrt(width)
          for k in range(length)
        ]
        weights = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(
          actual[b, q, h], weights @ value[b, :, h], atol=1e-5
        )


@pytest.mark.parametrize(
  'kind, pooling, scan', [('1d', 'token', False), ('2d', 'gap', True)]
)
def test_every_layer_adds_its_own_position_embedding(kind, pooling, scan):
  """Compares with two blocks whose inputs have the table added already."""
  images = _images(PATCHES)
  make = functools.partial(_build, position_embedding=kind, pooling=pooling)
  own = make(position_site='every_layer')
  params = _random_params(own, images)
  shared = make(position_site='every_layer_shared')
  blocks = params['Transformer']
  tables = [blocks[f'encoderblock_{i}']['posembed_input'] for i in range(2)]
  added = [
    position.ADDED[kind]().apply(
      {'params': table},
      grid=GRID,
      num_prefix_tokens=int(pooling == 'token'),
      width=16,
    )
    for table in tables
  ]
  assert np.abs(added[0] - added[1]).max() > 0.1
  block = encoder.EncoderBlock(_options())

  def run(x, added):
    for i in range(2):
      part = dict(blocks[f'encoderblock_{i}'])
      part.pop('posembed_input', None)
      x = block.apply({'params': part}, x + added[i], grid=GRID, train=False)
    scale = blocks['encoder_norm']
    x -= x.mean(-1, keepdims=True)
    x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
    return x * scale['scale'] + scale['bias']

  def encoded(model, params):
    if scan:
      model = model.clone(scan=True)
      params = stacking.stack_blocks(params)
    out = model.apply({'params': params}, images)[1]
    return out['embedded'], out['encoded']

  embedded, actual = encoded(own, params)
  np.testing.assert_allclose(actual, run(embedded, added), atol=1e-4)

  params = jax.tree.map(lambda a: a, params)  # Copies the nested dictionaries.
  for i in range(2):
    del params['Transformer'][f'encoderblock_{i}']['posembed_input']
  params['Transformer']['posembed_input'] = tables[0]
  embedded, actual = encoded(shared, params)
  np.testing.assert_allclose(
    actual, run(embedded, [added[0], added[0]]), atol=1e-4
  )


@pytest.mark.parametrize('kind', ['none', 'sincos2d'])
def test_what_learns_no_positions_takes_any_size(kind):
  model = _build(position_embedding=kind)
  params = _random_params(model, _images(PATCHES))
  larger = np.zeros((1, 6, 8, 3), np.float32)
  logits, _ = jax.eval_shape(model.apply, {'params': params}, larger)
  assert logits.shape == (1, 5)


# Axial attention -------------------------------------------------------------


@pytest.mark.parametrize('axis', ['row', 'column'])
def test_axial_attention_is_dense_attention_with_a_mask(axis):
  x = RNG.normal(size=(2, 6, 16)).astype(np.float32)
  axial = attention.MultiHeadDotProductAttention(2, axis=axis)
  variables = axial.init(jax.random.key(0), x, grid=GRID)
  params = jax.tree.map(np.asarray, variables['params'])
  query, key, value = (
    np.einsum('bld,dhk->blhk', x, params[n]['kernel'])
    for n in ('query', 'key', 'value')
  )
  place = np.indices(GRID).reshape(2, -1)[['row', 'column'].index(axis)]
  scores = np.einsum('bqhk,bthk->bhqt', query, key) / math.sqrt(8)
  scores = np.where(place[:, None] == place[None], scores, -np.inf)
  weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  expected = np.einsum('bhqt,bthk->bqhk', weights, value)
  expected = np.einsum('bqhk,hkd->bqd', expected, params['out']['kernel'])
  np.testing.assert_allclose(
    axial.apply(variables, x, grid=GRID), expected, atol=1e-5
  )


def test_an_axial_block_attends_within_rows_then_columns():
  x = RNG.normal(size=(2, 6, 16)).astype(np.float32)
  block = encoder.AxialBlock(_options(attention='axial', pooling='gap'))
  variables = block.init(jax.random.key(0), x, grid=GRID, train=False)
  assert set(variables['params']) == {'row', 'column'}
  expected = x
  for axis in ('row', 'column'):
    expected = encoder.EncoderBlock(_options(), axis).apply(
      {'params': variables['params'][axis]}, expected, grid=GRID, train=False
    )
  np.testing.assert_array_equal(
    block.apply(variables, x, grid=GRID, train=False), expected
  )


# Pooling ---------------------------------------------------------------------


def test_attention_pooling_equals_numpy():
  tokens = RNG.normal(size=(2, 5, 8))
  head = vit.MAPHead(2, 12)
  shapes = jax.eval_shape(head.init, jax.random.key(0), jnp.asarray(tokens))
  params = jax.tree.map(
    lambda a: RNG.normal(size=a.shape) / 2, shapes['params']
  )
  part = params['MultiHeadDotProductAttention_0']
  dense = lambda x, p: np.tensordot(x, p['kernel'], 1) + p['bias']  # noqa: E731
  query = dense(params['probe'][0], part['query'])[0]  # [H, K]
  key, value = dense(tokens, part['key']), dense(tokens, part['value'])
  scores = np.exp(np.einsum('hk,bthk->bht', query, key) / 2)  # sqrt(4)
  weights = scores / scores.sum(-1, keepdims=True)
  x = np.einsum('bht,bthk->bhk', weights, value)
  x = np.einsum('bhk,hkd->bd', x, part['out']['kernel']) + part['out']['bias']
  y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  y = y * params['LayerNorm_0']['scale'] + params['LayerNorm_0']['bias']
  y = dense(y, params['MlpBlock_0']['Dense_0'])
  y = y / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
  expected = x + dense(y, params['MlpBlock_0']['Dense_1'])
  actual = head.apply({'params': params}, jnp.asarray(tokens, jnp.float32))
  np.testing.assert_allclose(actual, expected, atol=1e-5)


# Hybrids ---------------------------------------------------------------------


@pytest.mark.parametrize(
  'blocks, patch_size, grid, channels',
  [
    ((), 8, (2, 3), 64),
    ((1,), 4, (4, 6), 256),
    ((1, 1), 1, (8, 12), 512),
    ((1, 1), 2, (4, 6), 512),
    ((1, 1, 1, 1), 1, (2, 3), 2048),
  ],
)
def test_a_hybrid_can_end_after_any_resnet_stage(
  blocks, patch_size, grid, channels
):
  model = _build(resnet_blocks=blocks, patch_size=patch_size)
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
