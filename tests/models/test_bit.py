"""Guards BiT: parameter counts and names; unit and root equal plain NumPy."""

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import naive_resnet as naive
from vit_jax import models
from vit_jax.models import position, resnet

BLOCKS = {
  50: (3, 4, 6, 3),
  101: (3, 4, 23, 3),
  152: (3, 8, 36, 3),
  200: (3, 24, 36, 3),
}


def _images(*shape):
  return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def _shapes(model, size=(224, 224)):
  images = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
  out, variables = jax.eval_shape(
    model.init_with_output, jax.random.key(0), images
  )
  return out, flax.traverse_util.flatten_dict(variables['params'], sep='/')


def test_parameters_of_the_released_r50x1():
  _, shapes = _shapes(resnet.BiT(21_843, BLOCKS[50], 1))
  assert len(shapes) == 153
  assert sum(a.size for a in shapes.values()) == 68_256_659
  expected = {'conv_root/kernel', 'head/kernel', 'head/bias'}
  expected |= {'gn_final/scale', 'gn_final/bias'}
  for b, units in enumerate((3, 4, 6, 3), 1):
    expected.add(f'block{b}/unit1/conv_proj/kernel')
    for u in range(1, units + 1):
      for i in (1, 2, 3):
        expected.add(f'block{b}/unit{u}/conv{i}/kernel')
        expected.add(f'block{b}/unit{u}/gn{i}/scale')
        expected.add(f'block{b}/unit{u}/gn{i}/bias')
  assert set(shapes) == expected
  for b, c, f in [(1, 64, 64), (2, 256, 128), (3, 512, 256), (4, 1024, 512)]:
    unit = f'block{b}/unit1'
    assert shapes[f'{unit}/gn1/scale'].shape == (c,)
    assert shapes[f'{unit}/conv1/kernel'].shape == (1, 1, c, f)
    assert shapes[f'{unit}/conv_proj/kernel'].shape == (1, 1, c, 4 * f)
    assert shapes[f'{unit}/gn2/bias'].shape == (f,)
    assert shapes[f'{unit}/conv2/kernel'].shape == (3, 3, f, f)
    assert shapes[f'{unit}/gn3/bias'].shape == (f,)
    assert shapes[f'{unit}/conv3/kernel'].shape == (1, 1, f, 4 * f)
    assert shapes[f'block{b}/unit2/gn1/scale'].shape == (4 * f,)


@pytest.mark.parametrize(
  'size, grid',
  [((224, 224), (7, 7)), ((97, 160), (4, 5)), ((480, 480), (15, 15))],
)
def test_runs_at_any_size(size, grid):
  model = resnet.BiT(10, BLOCKS[50], 3)
  (logits, out), _ = _shapes(model, size)
  assert (logits.shape, logits.dtype) == ((2, 10), jnp.float32)
  assert out['encoded'].shape == (2, *grid, 6144)
  assert out['pre_logits'].shape == (2, 6144)
  assert position.grid_of(model, size) is None


def _standardized(params):
  kernel = params['kernel']
  deviation = np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
  return (kernel - kernel.mean((0, 1, 2))) / deviation


# At scale 1e-5 every epsilon changes the result.
@pytest.mark.parametrize('scale', [0.3, 1e-3, 1e-5])
@pytest.mark.parametrize('strides, channels', [(1, 128), (1, 64), (2, 128)])
def test_unit_equals_numpy(strides, channels, scale):
  x = scale * _images(2, 4, 5, channels)
  unit = resnet.PreActivationUnit(features=32, strides=strides)
  params = naive.random_params(unit, x, scale=scale)
  out = jax.jit(unit.apply)({'params': params}, x)
  p = naive.float64(params)

  def activate(name, x):
    return naive.relu(naive.group_norm(x, p[name], epsilon=1e-5))

  def conv(name, x, *args):
    return naive.conv(x, _standardized(p[name]), *args)

  for image, result in zip(x.astype(np.float64), out, strict=True):
    residual, y = image, activate('gn1', image)
    if strides == 2 or channels == 64:
      residual = conv('conv_proj', y, strides)
    y = activate('gn2', conv('conv1', y))
    y = activate('gn3', conv('conv2', y, strides, ((1, 1), (1, 1))))
    expected = residual + conv('conv3', y)
    np.testing.assert_allclose(
      result, expected, rtol=2e-4, atol=2e-5 * np.abs(expected).max()
    )


def test_model_without_units_equals_numpy():
  images = _images(2, 15, 10, 3)
  model = resnet.BiT(5, (), 1)
  params = naive.random_params(model, images)
  logits, out = model.apply({'params': params}, images)
  p = naive.float64(params)
  for i, image in enumerate(naive.float64(images)):
    root = _standardized(p['conv_root'])
    x = naive.conv(image, root, 2, ((3, 3), (3, 3)))  # 15x10 -> 8x5.
    x = naive.max_pool(x, ((1, 1), (1, 1)))  # -> 4x3.
    x = naive.relu(naive.group_norm(x, p['gn_final'], epsilon=1e-5))
    np.testing.assert_allclose(out['encoded'][i], x, rtol=1e-3, atol=1e-5)
    x = x.mean((0, 1))
    np.testing.assert_allclose(out['pre_logits'][i], x, rtol=1e-4)
    expected = x @ p['head']['kernel'] + p['head']['bias']
    np.testing.assert_allclose(logits[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gate
@pytest.mark.parametrize('name', ['BiT-R50x1', 'AxialResNet50', 'ViT-Ti/16'])
def test_derivatives_of_forward_mode_are_those_of_reverse_mode(name):
  small = {'depth': 1} if name.startswith('ViT') else {'blocks': (1, 1)}
  model = models.build(name, num_classes=2, **small)
  images = jnp.asarray(_images(2, 32, 32, 3))
  params = model.init(jax.random.key(0), images)['params']

  def loss(images):
    return (model.apply({'params': params}, images)[1]['encoded'] ** 3).sum()

  direction = jnp.asarray(_images(2, 32, 32, 3) ** 2)
  _, forward = jax.jvp(loss, (images,), (direction,))
  backward = jnp.vdot(jax.grad(loss)(images), direction)
  np.testing.assert_allclose(forward, backward, rtol=1e-4)
