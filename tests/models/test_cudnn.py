"""Guards: models with cuDNN's attention compute what plain ones do.

JAX's plain attention stands in for the kernel, which needs a GPU. It has the
same arguments and leaves out the same rows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import inspect, sharding
from vit_jax.config import platforms
from vit_jax.models import attention, layers
from vit_jax.models.shared import normalize

# 2 x 3 patches of 4 px: 7 tokens, or 6 without a class token.
PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 12, 3), np.uint8)
IMAGES = normalize(PIXELS)


@pytest.fixture(autouse=True)
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
  'options',
  [
    {'remat': 'full', 'pooling': 'map', 'qk_norm': True},
    {'position_site': 'every_layer_shared', 'scan': True},
    {'attention': 'axial', 'pooling': 'gap'},
  ],
  ids=str,
)
def test_logits_and_gradients(options, lengths):
  options = dict(options)
  plain = tiny.vit(**options)
  images = IMAGES
  params = tiny.params(plain, images.shape[1:3])
  model = plain.clone(attention_implementation='cudnn')
  expected = _value_and_grad(params, plain, images)
  _assert_close(_value_and_grad(params, model, images), expected)
  # Scores of relative positions, and axial attention, need the plain version.
  special = {'relative', 'axial'} & {*map(str, options.values())}
  assert bool(lengths) != bool(special)
  assert all(rows % 8 == 0 and padded for _, rows, padded in lengths)


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
def test_layers_and_attention_have_no_extra_rows():
  plain = tiny.vit(pooling='gap')
  params = tiny.params(plain, (8, 12))
  model = plain.clone(attention_implementation='cudnn')
  for layer in ('block_0', 'encoded'):
    _assert_close(
      layers.represent(model, params, PIXELS, layer),
      layers.represent(plain, params, PIXELS, layer),
    )
  weights = functools.partial(
    inspect.attention_weights, params=params, images=IMAGES[:2]
  )
  _assert_close(weights(model), weights(plain))


def test_the_default_follows_the_heads_and_the_device(monkeypatch, caplog):
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
