"""Guards faster convolutions: the values and gradients of XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import convolution


def _normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def _xla(x, kernel, padding):
  return jax.lax.conv_general_dilated(
    x, kernel, (2, 2), padding, dimension_numbers=('NHWC', 'HWIO', 'NHWC')
  )


def _same(ours, padding, x, kernel):
  """Compares values and gradients in float64."""
  with jax.enable_x64(True):
    x, kernel = x.astype(np.float64), kernel.astype(np.float64)
    found, ours_transposed = jax.vjp(jax.jit(ours), x, kernel)
    expected, transposed = jax.vjp(lambda *a: _xla(*a, padding), x, kernel)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    grad = _normal(2, *found.shape)
    for a, b in zip(ours_transposed(grad), transposed(grad), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize('size', [(32, 20), (30, 33), (7, 9)])
@pytest.mark.parametrize('batch', [1, 8, 50])
def test_strips_of_images_give_the_same(monkeypatch, size, batch):
  calls = []
  plain = convolution._plain
  monkeypatch.setattr(
    convolution, '_plain', lambda *a: (calls.append(len(a[0])), plain(*a))[1]
  )
  padding = ((3, 3), (3, 3))
  _same(
    lambda x, kernel: convolution._in_strips(x, kernel, padding),
    *(padding, _normal(0, batch, *size, 3), _normal(1, 7, 7, 3, 5)),
  )
  strips, rows = calls[0] // batch, (size[0] - 1) // 2 + 1
  assert rows % strips == 0
  assert (strips == 1) == (batch == 50 and rows % 2 == 1)


@pytest.mark.parametrize('size', [(8, 8), (7, 9), (6, 5)])
@pytest.mark.parametrize('padding', [((1, 1), (1, 1)), ((0, 1), (0, 1))])
def test_gradients_in_blocks_are_the_same(size, padding):
  if padding[0][0] == 0 and any(n % 2 for n in size):
    padding = ((1, 1), (1, 1))  # That of SAME for odd sizes.

  @jax.custom_vjp
  def ours(x, kernel):
    return _xla(x, kernel, padding)

  def backward(kept, grad):
    x, kernel = kept
    _, transposed = jax.vjp(lambda kernel: _xla(x, kernel, padding), kernel)
    return convolution._blocks(x, kernel, grad, padding), *transposed(grad)

  ours.defvjp(lambda x, kernel: (ours(x, kernel), (x, kernel)), backward)
  _same(ours, padding, _normal(0, 2, *size, 4), _normal(1, 3, 3, 4, 6))


@pytest.mark.parametrize(
  'shape, window, padding',
  [
    ((2, 9, 8, 3), 7, ((3, 3), (3, 3))),
    ((2, 9, 8, 3), 7, 'SAME'),
    ((2, 9, 8, 6), 3, ((1, 1), (1, 1))),
    ((2, 9, 8, 6), 3, 'SAME'),
    ((2, 9, 8, 6), 1, 'SAME'),
    ((2, 9, 8, 6), 1, 'VALID'),
    ((40, 9, 8, 6), 3, 'SAME'),
    ((2, 9, 8, 6), 5, 'VALID'),
  ],
)
def test_all_ways_are_the_same_convolution(shape, window, padding):
  _same(
    lambda x, kernel: convolution.convolve(
      x, kernel, strides=2, padding=padding
    ),
    *(padding, _normal(0, *shape)),
    _normal(1, window, window, shape[-1], 5),
  )
