"""Guards: each implementation of attention equals formulas in float64.

JAX's plain attention stands in for cuDNN's kernel, which needs a GPU. It has
the same arguments and leaves out the same rows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import inspect, sharding
from vit_jax.config import platforms
from vit_jax.models import attention, lanes, layers
from vit_jax.models.shared import normalize

RNG = np.random.default_rng(0)
# 2 x 3 patches of 4 px: 7 tokens, or 6 without a class token.
PIXELS = RNG.integers(0, 256, (8, 8, 12, 3), np.uint8)
IMAGES = normalize(PIXELS)


def _exact(query, key, value, grad):
  """Computes attention and its gradients by their formulas, in float64.

  Args:
    query, key, value, grad: [B, L or T, H, K].

  Returns:
    (out, query_grad, key_grad, value_grad).
  """
  q, k, v, g = (x.swapaxes(1, 2) for x in (query, key, value, grad))
  scale = q.shape[-1] ** -0.5
  scores = q @ k.swapaxes(2, 3) * scale
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  weight_grads = g @ v.swapaxes(2, 3)
  mean = (weights * weight_grads).sum(-1, keepdims=True)
  score_grads = weights * (weight_grads - mean) * scale
  found = (
    weights @ v,
    score_grads @ k,
    score_grads.swapaxes(2, 3) @ q,
    weights.swapaxes(2, 3) @ g,
  )
  return [x.swapaxes(1, 2) for x in found]


def _blockwise(name):
  """Returns an implementation; `lanes` in blocks, as the model runs it."""
  if name == 'plain':
    return attention.plain

  def run(*arrays):
    ends = np.cumsum(lanes.block_sizes(arrays[0].shape[1]))[:-1]
    blocks = [jnp.split(x, ends, axis=1) for x in arrays]
    return jnp.concatenate(lanes.lane_blocks(*blocks), axis=1)

  return run


@functools.partial(jax.jit, static_argnums=0)
def _run(name, query, key, value, grad):
  """Returns the result and the three gradients."""
  out, backward = jax.vjp(_blockwise(name), query, key, value)
  return out, *backward(grad)


def _errors(name, dtype, length, spread):
  """Returns the result's and gradients' largest errors over largest entries."""
  query, key, value, grad = RNG.normal(size=(4, 2, length, 3, 8))
  query, key = query * spread**0.5, key * spread**0.5
  arrays = [jnp.asarray(x, dtype) for x in (query, key, value, grad)]
  exact = _exact(*(np.asarray(x, np.float64) for x in arrays))
  actual = _run(name, *arrays)
  assert {x.dtype for x in actual} == {jnp.dtype(dtype)}
  return [
    # A single token's query and key have no gradient.
    np.abs(np.asarray(a, np.float64) - e).max() / (np.abs(e).max() or 1)
    for a, e in zip(actual, exact, strict=True)
  ]


@pytest.mark.parametrize('name', ['plain', 'lanes'])
def test_results_and_gradients_are_those_of_formulas(name):
  for length in (1, 133):
    for spread in (1, 30):  # Usual scores, and scores of hundreds.
      assert max(_errors(name, jnp.float32, length, spread)) < 2e-5
  # The relative rounding error of bfloat16 is up to 2^-9 = 0.002.
  assert max(_errors(name, jnp.bfloat16, 133, spread=1)) < 0.02


def test_means_of_keys_and_values_cancel_in_gradients():
  # A query's gradient depends only on differences of keys, and its scores'
  # gradient only on differences of values. So their means must cancel out.
  query, key, value, grad = RNG.normal(size=(4, 1, 197, 1, 64))
  key += 3 * RNG.normal(size=(1, 1, 1, 64))
  value += 5 * RNG.normal(size=(1, 1, 1, 64))
  arrays = [jnp.asarray(x, jnp.bfloat16) for x in (query, key, value, grad)]
  exact = _exact(*(np.asarray(x, np.float64) for x in arrays))[1]

  def error(name):
    actual = np.asarray(_run(name, *arrays)[1], np.float64)
    return np.linalg.norm(actual - exact) / np.linalg.norm(exact)

  assert error('lanes') < max(0.02, 1.5 * error('plain'))


@pytest.mark.parametrize('name', ['plain', 'lanes'])
def test_huge_scores_do_not_overflow(name):
  query = jnp.full((1, 3, 1, 4), 1e15, jnp.bfloat16)
  value = jnp.arange(12, dtype=jnp.bfloat16).reshape(1, 3, 1, 4)
  out, *gradients = _run(name, query, query, value, value)
  # All keys are equal, so the result is the mean of the values.
  np.testing.assert_array_equal(out[0, :, 0], [[4, 5, 6, 7]] * 3)
  assert all(jnp.isfinite(x).all() for x in gradients)


# Models ----------------------------------------------------------------------


@pytest.fixture
def lengths(monkeypatch):
  """Replaces the kernel; returns batch, rows and use of a mask of each call."""
  plain, found = jax.nn.dot_product_attention, []

  def kernel(query, key, value, *, implementation, **options):
    assert implementation == 'cudnn'
    tokens = options['key_value_seq_lengths']
    found.append((*query.shape[:2], tokens is not None))
    return plain(query, key, value, implementation='xla', **options)

  monkeypatch.setattr(jax.nn, 'dot_product_attention', kernel)
  return found


@functools.partial(jax.jit, static_argnums=1)
@jax.value_and_grad
def _value_and_grad(params, model, images):
  logits, out = model.apply({'params': params}, images, train=True)
  return jnp.sum(logits**2) + jnp.sum(out['encoded'] ** 2)


def _assert_close(actual, expected):
  # The true gradient of the keys' biases is 0: only rounding remains, which is
  # small beside the largest gradient.
  top = max(float(np.abs(e).max()) for e in jax.tree.leaves(expected))
  jax.tree.map(
    lambda a, e: np.testing.assert_allclose(
      a, e, rtol=1e-4, atol=1e-4 * float(np.abs(e).max()) + 1e-6 * top
    ),
    actual,
    expected,
  )


@pytest.mark.gate
@pytest.mark.parametrize(
  'implementation, options',
  [
    ('lanes', {'scan': True, 'remat': 'full'}),
    ('cudnn', {'position_site': 'every_layer_shared', 'scan': True}),
    ('cudnn', {'attention': 'axial', 'pooling': 'gap'}),
  ],
  ids=str,
)
def test_models_agree_across_implementations(implementation, options, lengths):
  plain = tiny.vit(**options)
  images = IMAGES
  if implementation == 'lanes':  # 133 tokens are two blocks.
    images = jnp.tile(IMAGES[:2, :4], (1, 11, 4, 1))
  params = tiny.params(plain, images.shape[1:3])
  model = plain.clone(attention_implementation=implementation)
  expected = _value_and_grad(params, plain, images)
  _assert_close(_value_and_grad(params, model, images), expected)
  # Axial attention needs the plain version.
  fused = implementation == 'cudnn' and 'attention' not in options
  assert bool(lengths) == fused
  assert all(rows % 8 == 0 and padded for _, rows, padded in lengths)


# Of three axes, the last splits the heads; without it, layouts are held.
@pytest.mark.gate
@pytest.mark.parametrize('axes', [(8,), (2, 2, 2)])
def test_several_devices(axes, lengths):
  model = tiny.vit(attention_implementation='cudnn', depth=1)
  params = tiny.params(model, (8, 12))
  expected = _value_and_grad(params, model, IMAGES)
  mesh = sharding.make_mesh(*axes)
  lengths.clear()

  @jax.jit
  def run(params, images):
    with sharding.use_mesh(mesh):
      return _value_and_grad(params, model, images)

  images = jax.device_put(IMAGES, sharding.batch_sharding(mesh))
  _assert_close(run(params, images), expected)
  # The kernel gets a device's own images.
  assert {batch for batch, *_ in lengths} == {
    images.sharding.shard_shape(images.shape)[0]
  }


@pytest.mark.gate
def test_layers_and_attention_have_no_extra_rows(lengths):
  plain = tiny.vit(pooling='gap', depth=1)
  params = tiny.params(plain, (8, 12))
  model = plain.clone(attention_implementation='cudnn')
  for layer in ('block_0', 'block_0/norm/patches'):
    _assert_close(
      layers.represent(model, params, PIXELS, layer),
      layers.represent(plain, params, PIXELS, layer),
    )
  weights = functools.partial(
    inspect.attention_weights, params=params, images=IMAGES[:2]
  )
  _assert_close(weights(model), weights(plain))


def test_the_default_follows_the_heads_and_the_device(
  monkeypatch, caplog, lengths
):
  def chosen(platform=None, dtype='auto', **sizes):
    model = tiny.vit(width=128, **sizes)
    return platforms.defaults(model, platform, dtype)

  assert chosen('gpu') == {
    'dtype': 'bfloat16',
    'attention_implementation': 'cudnn',
  }
  plain = {'attention_implementation': 'plain'}
  assert chosen('gpu', 'float32') == {'dtype': 'float32'} | plain
  assert chosen('gpu', heads=32) == {'dtype': 'bfloat16'} | plain
  assert chosen('gpu', heads=16) != {'dtype': 'bfloat16'} | plain
  # Here the kernel fails, as it does on GPUs before Ampere.
  monkeypatch.undo()
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  attention.why_not_cudnn.cache_clear()
  with caplog.at_level('WARNING', 'absl'):
    assert chosen() == {'dtype': 'bfloat16'} | plain
  assert 'cuDNN' in caplog.text


@pytest.mark.parametrize(
  'platform, dtype, width, named',
  [
    ('tpu', 'bfloat16', 64, "this is 'tpu'"),
    ('gpu', 'float32', 64, 'float32'),
    ('gpu', 'bfloat16', 60, 'head width 60'),
  ],
)
def test_cudnn_is_refused_where_it_does_not_run(platform, dtype, width, named):
  with pytest.raises(ValueError, match=f"'cudnn' needs .*{named}.*Use 'plain'"):
    attention.check('cudnn', platform, dtype, width)
