"""Convolutions of feature maps, faster than XLA's where the stride is not 1.

All compute the same function. The times are those of the TPU v3 compiler.

Axes: B batch, h and w the rows and columns of a feature map, C channels.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import layout as layout_lib

Padding = str | tuple[tuple[int, int], tuple[int, int]]

# Images have at most this number of channels.
_FEW_CHANNELS = 4
# Width of a TPU's registers.
_LANES = 128
_MOST_STRIPS = 16
# With as many images XLA's gradient of a 3x3 kernel with stride 2 is fast.
_MANY_IMAGES = 32


def convolve(
  x: jax.Array, kernel: jax.Array, *, strides: int, padding: Padding
) -> jax.Array:
  """Convolves a feature map.

  Args:
    x: [B, h, w, C in].
    kernel: [kernel height, kernel width, C in, C out], same dtype.
    strides: stride along both axes.
    padding: 'SAME', 'VALID' or ((top, bottom), (left, right)).

  Returns:
    [B, h', w', C out].
  """
  window = kernel.shape[:2]
  if strides == 1 or not all(isinstance(size, int) for size in x.shape):
    # Sizes are symbolic in an exported model that takes images of any size.
    return _plain(x, kernel, strides, padding)
  if isinstance(padding, str):
    padding = tuple(
      jax.lax.padtype_to_pads(x.shape[1:3], window, (strides,) * 2, padding)
    )
  if window == (1, 1) and padding == ((0, 0), (0, 0)):
    return _sampled(x, kernel, strides)
  if strides == 2 and x.shape[-1] <= _FEW_CHANNELS:
    return _of_images(x, kernel, padding)
  if strides == 2 and window == (3, 3) and len(x) < _MANY_IMAGES:
    return _halving(x, kernel, padding)
  return _plain(x, kernel, strides, padding)


def _plain(x, kernel, strides, padding='VALID'):
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    window_strides=(strides, strides),
    padding=padding,
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


# ---- Every second pixel ------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _sampled(x: jax.Array, kernel: jax.Array, strides: int) -> jax.Array:
  """Applies a 1x1 kernel to every `strides`-th pixel of both axes.

  For its gradient by the pixels, XLA convolves a feature map with zeros between
  the pixels: four times the work at stride 2, and seven times the time. Here
  the zeros come after the product.
  """
  return _plain(x, kernel, strides)


def _sampled_backward(strides, kept, grad):
  x, kernel = kept
  pixels = _plain(grad, kernel.swapaxes(2, 3), 1)  # [B, h', w', C in]
  zeros = [
    (0, size - strides * (few - 1) - 1, strides - 1)
    for size, few in zip(x.shape[1:3], grad.shape[1:3], strict=True)
  ]
  zero = jnp.zeros((), grad.dtype)
  x_grad = jax.lax.pad(pixels, zero, [(0, 0, 0), *zeros, (0, 0, 0)])
  _, transposed = jax.vjp(lambda k: _plain(x, k, strides), kernel)
  return x_grad, *transposed(grad)


_sampled.defvjp(
  lambda x, kernel, strides: (_plain(x, kernel, strides), (x, kernel)),
  _sampled_backward,
)


# ---- Images ------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _of_images(x: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
  """Convolves images with stride 2.

  The three channels of a pixel do not fill a register. So the TPU compiler puts
  the batch along the lanes, of which 8 images fill 8 of 128. Strips of the
  images fill all of them: 0.7 instead of 1.8 ms, both directions.
  """
  return jax.lax.platform_dependent(
    x,
    kernel,
    tpu=lambda x, kernel: _in_strips(x, kernel, padding),
    default=lambda x, kernel: _plain(x, kernel, 2, padding),
  )


def _of_images_backward(padding, kept, grad):
  def backward(convolution):
    return lambda x, kernel, grad: jax.vjp(
      lambda x, kernel: convolution(x, kernel, padding), x, kernel
    )[1](grad)

  return jax.lax.platform_dependent(
    *kept,
    grad,
    tpu=backward(_in_strips),
    default=backward(lambda x, kernel, padding: _plain(x, kernel, 2, padding)),
  )


_of_images.defvjp(
  lambda x, kernel, padding: (_of_images(x, kernel, padding), (x, kernel)),
  _of_images_backward,
)


def _in_strips(x, kernel, padding):
  batch, window = len(x), kernel.shape[0]
  rows = (x.shape[1] + sum(padding[0]) - window) // 2 + 1
  most = min(_MOST_STRIPS, max(1, _LANES // batch))
  strips = max(n for n in range(1, most + 1) if rows % n == 0)
  if strips == 1:
    return _plain(x, kernel, 2, padding)
  each = rows // strips
  x = jnp.pad(x, ((0, 0), padding[0], (0, 0), (0, 0)))
  x = jnp.concatenate(
    [
      x[:, 2 * each * i : 2 * (each * (i + 1) - 1) + window]
      for i in range(strips)
    ]
  )  # [strips * B, 2 * each - 2 + window, w, C in]
  x = _plain(x, kernel, 2, ((0, 0), padding[1]))
  # All orders have the images and C out last, as the layers that follow.
  x = _in_order(x, (1, 2, 0, 3))
  x = x.reshape(strips, batch, each, *x.shape[2:])
  x = _in_order(x, (0, 2, 3, 1, 4))
  x = _in_order(x.swapaxes(0, 1), (1, 2, 3, 0, 4))
  return _in_order(x.reshape(batch, rows, *x.shape[3:]), (1, 2, 0, 3))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _in_order(x: jax.Array, order: tuple[int, ...]) -> jax.Array:
  """Fixes an array's order in memory, and its gradient's, major axis first."""
  return layout_lib.with_layout_constraint(x, layout_lib.Layout(order))


_in_order.defvjp(
  lambda x, order: (_in_order(x, order), None),
  lambda order, _, grad: (_in_order(grad, order),),
)


# ---- Half of the rows and columns --------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _halving(x: jax.Array, kernel: jax.Array, padding: Padding) -> jax.Array:
  """Applies a 3x3 kernel with stride 2 to a few images.

  For its gradient by the pixels, XLA convolves a feature map with zeros between
  the pixels. On a TPU, 8 images then take as long as 32: 2.3 times as long as
  a convolution whose channels are the pixels of 2x2 blocks.
  """
  return _plain(x, kernel, 2, padding)


def _halving_backward(padding, kept, grad):
  x, kernel = kept

  def convolution(x, kernel):
    return _plain(x, kernel, 2, padding)

  x_grad = jax.lax.platform_dependent(
    x,
    kernel,
    grad,
    tpu=lambda x, kernel, grad: _blocks(x, kernel, grad, padding),
    default=lambda x, kernel, grad: jax.vjp(
      lambda x: convolution(x, kernel), x
    )[1](grad)[0],
  )
  _, transposed = jax.vjp(lambda kernel: convolution(x, kernel), kernel)
  return x_grad, *transposed(grad)


_halving.defvjp(
  lambda x, kernel, padding: (_plain(x, kernel, 2, padding), (x, kernel)),
  _halving_backward,
)


def _blocks(x, kernel, grad, padding):
  """Returns the gradient by the pixels, computed for 2x2 blocks of them.

  Along one axis, pixel 2m + r of padded rows comes from rows m and m - 1 of
  `grad`, by the kernel's rows r and r + 2, of which there is no fourth one.
  """
  batch, _, _, channels = x.shape
  before = [low for low, _ in padding]
  kernel = jnp.pad(kernel, [(low, 1 - low) for low in before] + [(0, 0)] * 2)
  kernel = kernel.reshape(2, 2, 2, 2, *kernel.shape[2:])[::-1, :, ::-1]
  # [2 rows, 2 columns, C out, 2 x 2 pixels of a block, C in]
  kernel = kernel.transpose(0, 2, 5, 1, 3, 4)
  kernel = kernel.reshape(2, 2, kernel.shape[2], 4 * channels)
  blocks = [-(-size // 2) for size in x.shape[1:3]]
  edges = [
    (1 - low, many - few + low)
    for low, many, few in zip(before, blocks, grad.shape[1:3], strict=True)
  ]
  pixels = _plain(grad, kernel, 1, edges)  # [B, blocks, blocks, 4 * C in]
  pixels = pixels.reshape(batch, *blocks, 2, 2, channels)
  pixels = pixels.transpose(0, 1, 3, 2, 4, 5)
  pixels = pixels.reshape(batch, 2 * blocks[0], 2 * blocks[1], channels)
  return pixels[:, : x.shape[1], : x.shape[2]]
