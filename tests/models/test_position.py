"""Guards position embeddings: by hand, in blocks, resized as by SciPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from tests.interop import tiny
from tests.models import naive, stacking
from vit_jax.models import attention, encoder, model_options, position

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
    ('sincos2d', 'every_layer_shared'),
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
  module = position.Table('2d')
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
  assert table.tolist() == [[[5, 6, 7, 8]] * num_prefix_tokens + patches]


@pytest.mark.parametrize(
  'kind, frequencies',
  [
    # 10,000 ^ -(j / 2) for j = 0, 1, 2.
    ('sincos2d', (1, 0.01, 0.0001)),
    # 10,000 ^ -(j / 3), as masked autoencoders have them.
    ('sincos2d_mae', (1, 0.0464159, 0.00215443)),
  ],
)
def test_sincos2d_has_four_waves(kind, frequencies):
  module = position.Table(kind)
  table = module.apply({}, grid=GRID, num_prefix_tokens=1, width=12)[0]
  assert not table[0].any()
  for row in range(2):
    for column in range(3):
      expected = [
        wave(coordinate * frequency)
        for coordinate in (column, row)
        for wave in (math.sin, math.cos)
        for frequency in frequencies
      ]
      np.testing.assert_allclose(
        table[1 + row * 3 + column], expected, atol=1e-6
      )


@pytest.mark.parametrize('table_heads', [1, 2])
def test_relative_attention_equals_gathered_embeddings(table_heads):
  length, width = 5, 3
  query, key, value = RNG.normal(size=(3, 2, length, 2, width)).astype('f')
  table = RNG.normal(size=(2 * length - 1, table_heads, width)).astype('f')
  offsets = np.subtract.outer(np.arange(length), np.arange(length))
  relative = np.repeat(table[offsets + length - 1], 2 // table_heads, axis=2)
  scores = np.einsum('bqhd,bkhd->bhqk', query, key)
  scores += np.einsum('bqhd,qkhd->bhqk', query, relative)
  weights = np.exp(scores / math.sqrt(width))
  weights /= weights.sum(-1, keepdims=True)
  np.testing.assert_allclose(
    attention.plain(*map(jnp.asarray, (query, key, value, table))),
    np.einsum('bhqk,bkhd->bqhd', weights, value),
    atol=1e-5,
  )


def test_every_layer_adds_its_own_position_embedding():
  """Compares with two blocks whose inputs have the table added already."""
  make = functools.partial(tiny.vit, position_embedding='2d')
  own = make(position_site='every_layer')
  params = _random_params(own)
  blocks = params['Transformer']
  tables = [blocks[f'encoderblock_{i}']['posembed_input'] for i in range(2)]
  added = [
    position.Table('2d').apply(
      {'params': table}, grid=GRID, num_prefix_tokens=1, width=16
    )
    for table in tables
  ]
  assert np.abs(added[0] - added[1]).max() > 0.1
  block = encoder.EncoderBlock(model_options.options_of(tiny.vit()))
  run_block = jax.jit(
    lambda part, x: block.apply({'params': part}, x, grid=GRID, train=False)
  )

  def run(x, added):
    for i in range(2):
      part = dict(blocks[f'encoderblock_{i}'])
      part.pop('posembed_input', None)
      x = run_block(part, x + added[i])
    return naive.layer_norm(x, blocks['encoder_norm'])

  def encoded(model, params):
    params = stacking.stack_blocks(params)
    out = jax.jit(model.clone(scan=True).apply)({'params': params}, IMAGES)[1]
    return out['embedded'], out['encoded']

  embedded, actual = encoded(own, params)
  np.testing.assert_allclose(actual, run(embedded, added), atol=1e-4)

  params = jax.tree.map(lambda a: a, params)  # Copies the nested dictionaries.
  for i in range(2):
    del params['Transformer'][f'encoderblock_{i}']['posembed_input']
  params['Transformer']['posembed_input'] = tables[0]
  shared = make(position_site='every_layer_shared')
  embedded, actual = encoded(shared, params)
  np.testing.assert_allclose(actual, run(embedded, added[:1] * 2), atol=1e-4)


# Resizing --------------------------------------------------------------------


def _table(tokens, width=2, dtype=np.float64):
  return np.random.default_rng(0).normal(size=(1, tokens, width)).astype(dtype)


def _zoomed(grid, new_grid, **kwargs):
  factors = (new_grid[0] / grid.shape[0], new_grid[1] / grid.shape[1], 1)
  return ndimage.zoom(grid, factors, order=1, **kwargs)


@pytest.mark.parametrize('old', (7, 24))
def test_resize_equals_scipy_on_the_papers_grids(old):
  table = _table(old * old + 1)
  for new in (side for side in SIDES if side >= old):
    resized = position.resize(table, new_grid=(new, new), num_prefix_tokens=1)
    expected = _zoomed(table[0, 1:].reshape(old, old, 2), (new, new))
    np.testing.assert_array_equal(resized[:, 0], table[:, 0])
    np.testing.assert_allclose(
      resized[0, 1:].reshape(new, new, 2), expected, atol=1e-12
    )


def _interpolated(row, size, antialias):
  """Returns [size, D] of [n, D], by the loops of PyTorch's bicubic formulas."""
  scale = len(row) / size
  wide, a = (max(scale, 1), -0.5) if antialias else (1, -0.75)
  out = []
  for i in range(size):
    centre = (i + 0.5) * scale - 0.5
    first, last = math.floor(centre) - 1, math.floor(centre) + 2
    if antialias:  # Only samples that exist count.
      first = max(0, math.floor(centre - 2 * wide))
      last = min(len(row) - 1, math.ceil(centre + 2 * wide))
    total = whole = 0
    for j in range(first, last + 1):
      x = abs(j - centre) / wide
      weight = ((a + 2) * x - (a + 3)) * x * x + 1
      if x >= 1:
        weight = (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0
      whole += weight
      total += weight * row[min(max(j, 0), len(row) - 1)]  # Borders repeat.
    out.append(total / whole)
  return np.stack(out)


@pytest.mark.parametrize('method', ['bicubic', 'bicubic_antialias'])
@pytest.mark.parametrize(
  'old, new', [((4, 6), (9, 6)), ((5, 7), (2, 3)), ((3, 2), (1, 8))]
)
def test_other_methods_are_pytorchs(method, old, new):
  table = _table(2 + math.prod(old))
  resized = position.resize(
    table, old_grid=old, new_grid=new, num_prefix_tokens=2, method=method
  )
  patches = table[0, 2:].reshape(*old, 2)
  for n in new:  # Rows, then columns.
    patches = _interpolated(patches, n, 'antialias' in method).swapaxes(0, 1)
  np.testing.assert_array_equal(resized[:, :2], table[:, :2])
  np.testing.assert_allclose(
    resized[0, 2:].reshape(*new, 2), patches, atol=1e-12
  )
  same = position.resize(
    table, old_grid=old, new_grid=old, num_prefix_tokens=2, method=method
  )
  assert same is table


def test_resize_rejects():
  for shape, old_grid, message in (
    (
      *((1, 7, 2), None),
      r'^6 patch tokens \(7 minus 1 .* not a square.* num_prefix_tokens',
    ),
    ((1, 1, 2), None, '^0 patch tokens .* not a square'),
    ((1, 7, 2), (2, 4), r'2x4 has 8 tokens, but .* has 6'),
    ((2, 5, 2), None, r'the shape \(2, 5, 2\), expected \(1, tokens, width'),
    ((5, 2), None, r'the shape \(5, 2\), expected'),
  ):
    with pytest.raises(ValueError, match=message):
      position.resize(
        np.zeros(shape),
        old_grid=old_grid,
        new_grid=(2, 2),
        num_prefix_tokens=1,
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
