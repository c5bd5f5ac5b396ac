"""Guards position embeddings: by hand, in blocks, resized as by SciPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from tests.interop import tiny
from tests.models import stacking
from vit_jax.models import attention, encoder, position

RNG = np.random.default_rng(0)
GRID, PATCH = (2, 3), 4
# [B, 2 rows of patches, 3 columns, pixels of a patch]
PATCHES = RNG.normal(size=(2, *GRID, PATCH, PATCH, 3)).astype(np.float32)
# Sides of the paper's token grids at 224, 384, 512 and 518 px.
SIDES = (7, 12, 14, 16, 24, 27, 32, 37)


def _images(patches):
  rows, columns = patches.shape[1:3]
  images = patches.transpose(0, 1, 3, 2, 4, 5)
  return images.reshape(-1, rows * PATCH, columns * PATCH, 3)


IMAGES = _images(PATCHES)


def _random_params(model):
  return jax.tree.map(lambda a: a / 2, tiny.params(model, IMAGES.shape[1:3]))


@pytest.mark.parametrize(
  'kind, site',
  [
    ('none', 'stem'),
    ('2d', 'stem'),
    ('sincos2d', 'stem'),
    ('sincos2d', 'every_layer_shared'),
    ('relative', 'stem'),
    ('relative_per_head', 'stem'),
  ],
)
def test_patch_order_matters_unless_positions_are_none(kind, site):
  model = tiny.vit(position_embedding=kind, position_site=site, depth=1)
  params = _random_params(model)
  shuffled = PATCHES.reshape(2, 6, PATCH, PATCH, 3)[:, [3, 0, 5, 1, 2, 4]]
  apply = jax.jit(lambda x: model.apply({'params': params}, x)[0])
  before = apply(IMAGES)
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
  images = IMAGES
  make = functools.partial(tiny.vit, position_embedding=kind, pooling=pooling)
  own = make(position_site='every_layer')
  params = _random_params(own)
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
  block = encoder.EncoderBlock(encoder.Options.of(tiny.vit()))

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
    out = jax.jit(model.apply)({'params': params}, images)[1]
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
  model = tiny.vit(position_embedding=kind)
  params = _random_params(model)
  larger = np.zeros((1, 16, 20, 3), np.float32)
  logits, _ = jax.eval_shape(model.apply, {'params': params}, larger)
  assert logits.shape == (1, 5)


# Resizing --------------------------------------------------------------------


def _table(tokens, width=2, dtype=np.float64):
  return np.random.default_rng(0).normal(size=(1, tokens, width)).astype(dtype)


def _zoomed(grid, new_grid, **kwargs):
  factors = (new_grid[0] / grid.shape[0], new_grid[1] / grid.shape[1], 1)
  return ndimage.zoom(grid, factors, order=1, **kwargs)


def test_resize_aligns_the_end_samples():
  table = np.arange(4.0).reshape(1, 4, 1)
  resized = position.resize(
    table, old_grid=(1, 4), new_grid=(1, 7), num_prefix_tokens=0
  )
  assert resized.ravel().tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3]


@pytest.mark.parametrize('old', (7, 16, 24))
def test_resize_equals_scipy_on_the_papers_grids(old):
  table = _table(old * old + 1)
  for new in (side for side in SIDES if side >= old):
    resized = position.resize(table, new_grid=(new, new), num_prefix_tokens=1)
    expected = _zoomed(table[0, 1:].reshape(old, old, 2), (new, new))
    np.testing.assert_array_equal(resized[:, 0], table[:, 0])
    np.testing.assert_allclose(
      resized[0, 1:].reshape(new, new, 2), expected, atol=1e-12
    )


@pytest.mark.parametrize(
  'shape, kwargs, message',
  [
    (
      (1, 7, 2),
      {},
      r'6 patch tokens \(7 minus 1 prefix\) are not a square grid: give old_g',
    ),
    ((2, 5, 2), {}, r'the shape \(2, 5, 2\), expected \(1, tokens, width\)'),
    ((1, 1, 2), {}, r'0 patch tokens \(1 minus 1 prefix\) are not a square'),
    (
      (1, 7, 2),
      {'old_grid': (2, 4)},
      r'old_grid 2x4 has 8 tokens, but .* has 6 \(7 minus 1 prefix\)',
    ),
  ],
)
def test_resize_rejects(shape, kwargs, message):
  with pytest.raises(ValueError, match=message):
    position.resize(
      np.zeros(shape), new_grid=(2, 2), num_prefix_tokens=1, **kwargs
    )


@pytest.mark.parametrize(
  'offsets, expected',
  [
    (1, [2]),
    (3, [0, 2, 8]),
    (5, [0, 1, 2, 5, 8]),
    (9, [0, 0.5, 1, 1.5, 2, 3.5, 5, 6.5, 8]),
  ],
)
def test_resize_relative_keeps_offset_0_in_the_middle(offsets, expected):
  table = np.array([[0, 0], [1, 10], [2, 20], [5, 50], [8, 80]], np.float32)
  resized = position.resize_relative(table, offsets)
  assert resized.dtype == np.float32
  assert resized.tolist() == [[x, 10 * x] for x in expected]
  assert position.resize_relative(table[:1] + 7, offsets).tolist() == (
    [[7, 7]] * offsets
  )
