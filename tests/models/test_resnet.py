"""Guards ResNet layers and the hybrids' backbone, against plain NumPy."""

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive_resnet as naive
from vit_jax.models import convolution, resnet
from vit_jax.models.images import check_images


class Features(nn.Module):
  blocks: tuple[int, ...]
  width_factor: int = 1
  dtype: jnp.dtype = jnp.float32
  remat: str = 'none'

  @nn.compact
  def __call__(self, images):
    return resnet.backbone(
      images,
      blocks=self.blocks,
      width_factor=self.width_factor,
      dtype=self.dtype,
      remat=self.remat,
    )


def _images(*shape, dtype=np.float32):
  return np.random.default_rng(1).uniform(-1, 1, shape).astype(dtype)


def _standardize(kernel, padding, stride):
  """Returns the hybrids' convolution, in float64."""
  kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
  return lambda x: naive.conv(x, kernel, stride, padding)


# Two output channels: four weights of variance 1 (1e-10 at scale 1e-5), and the
# same weights doubled.
FOUR = np.float32([[1, 2], [1, 2], [3, 6], [3, 6]]).reshape(2, 1, 2, 2)


@pytest.mark.parametrize(
  'standardize, scale, first, second',
  [
    (resnet.bit_standardize, 1, 1, 1),
    (resnet.bit_standardize, 1e-5, 2**-0.5, 2 / 5**0.5),
    (resnet.hybrid_standardize, 1, 1 / 1.00001, 2 / 2.00001),
    (resnet.hybrid_standardize, 1e-5, 1 / 2, 2 / 3),
  ],
)
def test_weight_standardization_by_hand(standardize, scale, first, second):
  kernel = standardize(scale * FOUR)
  assert kernel.shape == FOUR.shape
  np.testing.assert_allclose(
    kernel.reshape(4, 2),
    [[-first, -second], [-first, -second], [first, second], [first, second]],
    rtol=2e-6,
  )


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_weights_are_standardized_in_float32(dtype):
  # In bfloat16 all four weights would be 1000.
  kernel = jnp.float32([1001, 1001, 1003, 1003]).reshape(1, 1, 4, 1)
  out = resnet.StandardizedConv(1, (1, 1), dtype=dtype).apply(
    {'params': {'kernel': kernel}}, jnp.eye(4).reshape(4, 1, 1, 4)
  )
  assert out.dtype == dtype
  np.testing.assert_allclose(out.ravel(), [-1, -1, 1, 1], rtol=2e-5)


class Norm(nn.Module):
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x):
    return resnet.GroupNorm(epsilon=1e-6, dtype=self.dtype, name='norm')(x)


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_group_norm_by_hand(dtype):
  # 64 channels are 32 groups of 2, so two pixels give four numbers per group.
  x = np.zeros((2, 2, 1, 64), np.float32)
  x[0, 0, 0, :2] = 1, 1
  x[0, 1, 0, :2] = 3, 3
  x[0, :, 0, 2:4] = 10_001, 10_003  # Squares lose their last digit.
  x[1, 0, 0, :2] = -0.001, 0.001  # As small as the epsilon.
  x[1, 1, 0, :2] = -0.001, 0.001
  y, _ = Norm(dtype).init_with_output(jax.random.key(0), x)
  y = np.asarray(y, np.float32)
  tolerance = dict(rtol=1e-5 if dtype == jnp.float32 else 4e-3)
  np.testing.assert_allclose(y[0, 0, 0, :4], [-1, -1, -1, 1], **tolerance)
  np.testing.assert_allclose(y[0, 1, 0, :4], [1, 1, -1, 1], **tolerance)
  half = 2**-0.5
  np.testing.assert_allclose(y[1, 1, 0, :2], [-half, half], **tolerance)
  assert not y[:, :, :, 4:].any()


def test_statistics_of_bfloat16_take_one_pass_and_are_exact():
  # The mean is 8 deviations.
  x = 8 + np.random.default_rng(0).normal(size=(1, 9, 9, 64))
  x = jnp.asarray(x, jnp.bfloat16)
  params = {'scale': jnp.ones(64), 'bias': jnp.zeros(64)}

  def norm(x):
    return Norm().apply({'params': {'norm': params}}, x)

  def centrings(x):
    equations = jax.make_jaxpr(norm)(x).eqns
    return sum(
      e.primitive.name == 'sub' and e.outvars[0].aval.size == x.size
      for e in equations
    )

  (expected,) = (
    naive.group_norm(image, params, 1e-6) for image in naive.float64(x)
  )
  np.testing.assert_allclose(norm(x)[0], expected, atol=5e-5)
  # Only in float32 the variance needs an array of its own.
  assert (centrings(x), centrings(x.astype(jnp.float32))) == (1, 2)


# At scale 1e-3 every epsilon changes the result.
@pytest.mark.parametrize('scale', [0.3, 1e-3])
@pytest.mark.parametrize(
  'strides, channels, padding',
  [
    (1, 128, ((1, 1), (1, 1))),
    (1, 64, ((1, 1), (1, 1))),
    (2, 128, ((0, 1), (1, 1))),  # SAME for 4 rows and 5 columns.
  ],
)
def test_unit_equals_numpy(strides, channels, padding, scale):
  x = _images(2, 4, 5, channels)
  unit = resnet.PostActivationUnit(features=32, strides=strides)
  params = naive.random_params(unit, x, scale=scale)
  out = jax.jit(unit.apply)({'params': params}, x)
  p = naive.float64(params)

  def conv(name, x, stride=1, padding=((0, 0), (0, 0))):
    return _standardize(p[name]['kernel'], padding, stride)(x)

  def norm(name, x):
    return naive.group_norm(x, p[name], epsilon=1e-6)

  for image, result in zip(x.astype(np.float64), out, strict=True):
    residual = image
    if strides == 2 or channels == 64:
      residual = norm('gn_proj', conv('conv_proj', image, strides))
    y = naive.relu(norm('gn1', conv('conv1', image)))
    y = naive.relu(norm('gn2', conv('conv2', y, strides, padding)))
    y = norm('gn3', conv('conv3', y))
    expected = naive.relu(residual + y)
    np.testing.assert_allclose(
      result, expected, rtol=2e-4, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.parametrize('size', [(4, 4), (5, 8), (1, 3)])
def test_a_strided_projection_has_the_gradient_of_a_convolution(size):
  x = jnp.asarray(_images(2, *size, 3))
  kernel = jnp.asarray(np.random.default_rng(1).normal(size=(1, 1, 3, 5)))

  def plain(x, kernel):
    return jax.lax.conv_general_dilated(
      x, kernel, (2, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
    )

  def ours(x, kernel):
    return convolution.convolve(x, kernel, strides=2, padding='SAME')

  expected, transposed = jax.vjp(plain, x, kernel)
  found, ours_transposed = jax.vjp(ours, x, kernel)
  np.testing.assert_array_equal(found, expected)
  for a, b in zip(ours_transposed(found), transposed(expected), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  # No convolution has zeros between the pixels.
  text = str(
    jax.make_jaxpr(lambda x, k: jax.vjp(ours, x, k)[1](found))(x, kernel)
  )
  assert 'lhs_dilation=(1, 1)' in text
  assert 'lhs_dilation=(2, 2)' not in text


def test_a_unit_without_projection_starts_as_the_identity():
  x = _images(1, 3, 3, 128)
  unit = resnet.PostActivationUnit(features=32)
  out, _ = jax.jit(unit.init_with_output)(jax.random.key(0), x)
  np.testing.assert_array_equal(out, np.maximum(x, 0))


# The paddings are those of SAME: convolution and pooling map 8 -> 4 -> 2 and
# 7 -> 4 -> 2 pixels, or 10 -> 5 -> 3 and 9 -> 5 -> 3.
@pytest.mark.parametrize(
  'size, conv_padding, pool_padding',
  [
    ((8, 7), ((2, 3), (3, 3)), ((0, 1), (0, 1))),
    ((9, 10), ((3, 3), (2, 3)), ((1, 1), (1, 1))),
  ],
)
def test_root_equals_numpy_with_explicit_padding(
  size, conv_padding, pool_padding
):
  images = 1e-4 * _images(1, *size, 3)  # So small that the epsilon matters.
  params = naive.random_params(Features(()), images, scale=1e-3)
  assert set(params) == {'conv_root', 'gn_root'}
  out = Features(()).apply({'params': params}, images)
  p = naive.float64(params)
  conv = _standardize(p['conv_root']['kernel'], conv_padding, 2)
  x = naive.group_norm(conv(naive.float64(images[0])), p['gn_root'], 1e-6)
  expected = naive.max_pool(naive.relu(x), pool_padding)
  np.testing.assert_allclose(out[0], expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
  'blocks, grid_224, grid_97_160, channels',
  [
    ((), (56, 56), (25, 40), 64),
    ((1,), (56, 56), (25, 40), 256),
    ((1, 1), (28, 28), (13, 20), 512),
    ((3, 4, 9), (14, 14), (7, 10), 1024),
    ((3, 4, 6, 3), (7, 7), (4, 5), 2048),
  ],
)
def test_feature_maps_of_each_stage(blocks, grid_224, grid_97_160, channels):
  for size, grid in [((224, 224), grid_224), ((97, 160), grid_97_160)]:
    assert resnet.feature_grid(size, blocks) == grid
    images = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
    model = Features(blocks, width_factor=2)
    out, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
    assert out.shape == (2, *grid, 2 * channels)
  assert resnet.feature_channels(blocks) == channels
  assert resnet.feature_channels(blocks, 2) == 2 * channels


def test_parameters_have_the_released_names():
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  shapes = jax.eval_shape(Features((2, 1)).init, jax.random.key(0), images)
  shapes = flax.traverse_util.flatten_dict(shapes['params'], sep='/')
  expected = {'conv_root/kernel': (7, 7, 3, 64)}
  expected |= {f'gn_root/{name}': (64,) for name in ('scale', 'bias')}
  for path, channels, features, projected in [
    ('block1/unit1', 64, 64, True),
    ('block1/unit2', 256, 64, False),
    ('block2/unit1', 256, 128, True),
  ]:
    layers = [
      ('1', (1, 1, channels, features)),
      ('2', (3, 3, features, features)),
      ('3', (1, 1, features, 4 * features)),
    ]
    if projected:
      layers.append(('_proj', (1, 1, channels, 4 * features)))
    for layer, shape in layers:
      expected[f'{path}/conv{layer}/kernel'] = shape
      expected[f'{path}/gn{layer}/scale'] = shape[-1:]
      expected[f'{path}/gn{layer}/bias'] = shape[-1:]
  assert {name: a.shape for name, a in shapes.items()} == expected
  assert {a.dtype for a in shapes.values()} == {jnp.dtype('float32')}


def test_all_layers_output_bfloat16():
  images = _images(1, 16, 16, 3)
  model = Features((1, 1), dtype=jnp.bfloat16)
  params = naive.random_params(model, images)
  kept = []

  def keep(call, args, kwargs, context):
    kept.append(call(*args, **kwargs))
    return kept[-1]

  with nn.intercept_methods(keep):
    out = jax.jit(model.apply)({'params': params}, images)
  assert {a.dtype for a in kept} == {jnp.dtype('bfloat16')}
  exact = jax.jit(Features((1, 1)).apply)({'params': params}, images)
  error = np.abs(np.asarray(out, np.float32) - exact)
  assert 0 < error.max() < 0.05 * np.abs(exact).max()


def test_remat_recomputes_more_and_keeps_the_gradient():
  images = _images(1, 8, 8, 3)
  params = naive.random_params(Features((1,)), images)

  def gradient(remat):
    model = Features((1,), remat=remat)
    return jax.grad(lambda p: jnp.sum(model.apply({'params': p}, images) ** 2))

  def convolutions(remat):
    return str(jax.make_jaxpr(gradient(remat))(params)).count('conv_general')

  # The unit has 4 convolutions, and 8 in the backward pass. The root stands
  # there once for TPUs and once for others: 2, and 6 in the backward pass.
  assert convolutions('none') == convolutions('dots') == 20
  assert convolutions('full') == 20 + 4  # The root is not in a checkpoint.
  expected = jax.jit(gradient('none'))(params)
  for remat in ('full', 'dots'):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(
        a, b, atol=1e-5 * np.abs(b).max()
      ),
      jax.jit(gradient(remat))(params),
      expected,
    )


def test_images_without_pixels_are_refused():
  with pytest.raises(ValueError, match='0x8 px has no pixels, expected at lea'):
    resnet.feature_grid((0, 8), (3, 4, 6, 3))
  with pytest.raises(ValueError, match='8x0 px has no pixels'):
    Features(()).init(jax.random.key(0), jnp.zeros((1, 8, 0, 3)))


@pytest.mark.parametrize(
  'shape, dtype', [((8, 8, 3), 'float32'), ((1, 8, 8, 3), 'uint8')]
)
def test_check_images(shape, dtype):
  check_images(np.zeros((1, 8, 8, 3), np.float32))
  with pytest.raises(ValueError, match=rf'images are {dtype}\[.*, expected fl'):
    check_images(np.zeros(shape, dtype))


@pytest.mark.parametrize('mean, outlier', [(0, 0), (100, 0), (0, 30)])
def test_moments_of_one_pass_are_exact(mean, outlier):
  kernel = np.random.default_rng(0).normal(mean, 1, (3, 3, 128, 8))
  kernel[0, 0, 0] += outlier
  kernel = kernel.astype(np.float32)
  centred, variance = resnet._moments(kernel)
  exact = kernel - kernel.astype(np.float64).mean((0, 1, 2))
  np.testing.assert_allclose(centred, exact, atol=5e-6)
  expected = np.square(exact).mean((0, 1, 2), keepdims=True)
  np.testing.assert_allclose(variance, expected, rtol=2e-6)
