"""Guards ResNet layers and the hybrids' backbone, against plain NumPy."""

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive_resnet as naive
from vit_jax.models import resnet


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


# At scale 1e-3 every epsilon changes the result.
@pytest.mark.parametrize(
  'strides, channels, padding, scale',
  [
    (1, 128, ((1, 1), (1, 1)), 1e-3),
    (1, 64, ((1, 1), (1, 1)), 0.3),
    (2, 128, ((0, 1), (1, 1)), 1e-3),  # SAME for 4 rows and 5 columns.
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


def test_remat_recomputes_more_and_keeps_the_gradient():
  images = _images(1, 8, 8, 3)
  params = naive.random_params(Features((1,)), images)

  def gradient(remat):
    model = Features((1,), remat=remat)
    return jax.grad(lambda p: jnp.sum(model.apply({'params': p}, images) ** 2))

  def convolutions(remat):
    return str(jax.make_jaxpr(gradient(remat))(params)).count('conv_general')

  # The unit has 4 convolutions, and 8 in the backward pass. The root has 1, and
  # 1 for its kernel's gradient.
  assert convolutions('none') == convolutions('dots') == 14
  assert convolutions('full') == 14 + 4  # The root is not in a checkpoint.
  expected = jax.jit(gradient('none'))(params)
  for remat in ('full', 'dots'):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(
        a, b, atol=1e-5 * np.abs(b).max()
      ),
      jax.jit(gradient(remat))(params),
      expected,
    )
