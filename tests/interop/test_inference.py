"""Guards `infer_model` and `describe`: from arrays to a model and its name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import interop, models
from vit_jax.interop import inference, released
from vit_jax.interop.parameter_shapes import placeholder

_LARGE = dict(parallel=True, qk_norm=True, qkv_bias=False, norm_bias=False)


def _file(model, size):
  """Returns placeholders by released names, which take no memory."""
  images = jnp.zeros((1, *size, 3))
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), images))
  return released.to_released(
    {k: placeholder(v.shape) for k, v in tiny.flat(shapes['params']).items()}
  )


@pytest.mark.parametrize(
  'name, size',
  [
    ('ViT-B/16', 384),
    pytest.param('R26+S/32', 384, marks=pytest.mark.gate),
    ('BiT-R50x1', 224),
    pytest.param('Axial-ViT-B/32', 224, marks=pytest.mark.gate),
    pytest.param('AxialResNet50', 224, marks=pytest.mark.gate),
  ],
)
def test_named_models_are_recognized(name, size):
  model = models.build(name, num_classes=1000)
  found, image_size = interop.infer_model(_file(model, (size, size)))
  assert found == model
  assert image_size == (size, size)
  assert inference.describe(found) == (name, {})


@pytest.mark.parametrize(
  'options, size',
  [
    (dict(representation_size=8), (8, 8)),
    (dict(pooling='gap'), (12, 12)),
    (dict(pooling='map', position_embedding='2d'), (8, 12)),
    (dict(position_embedding='relative', patch_size=(4, 2)), (16, 8)),
    (dict(position_embedding='relative_per_head'), (8, 8)),
    (dict(position_site='every_layer'), (8, 8)),
    (dict(norm_position='post'), (8, 8)),
    *((dict([option]), (8, 8)) for option in _LARGE.items()),
    (_LARGE | dict(attention='axial', pooling='gap'), (8, 8)),
    (dict(attention='axial', pooling='gap'), (8, 8)),
    (
      dict(attention='axial', pooling='gap', position_embedding='relative'),
      (8, 20),
    ),
    (dict(resnet_blocks=(1,), patch_size=2, resnet_width=2), (16, 16)),
    (dict(resnet_blocks=(1,), patch_size=2, resnet_width=0.25), (16, 16)),
  ],
)
def test_options_are_recognized(options, size):
  model = tiny.vit(**options)
  assert interop.infer_model(_file(model, size)) == (model, size)
  name, overrides = inference.describe(model)
  assert models.build(name, num_classes=5, **overrides) == model


def test_shapes_that_leave_the_model_open_are_refused():
  with pytest.raises(ValueError, match='8 patches do not form a square grid'):
    interop.infer_model(_file(tiny.vit(), (8, 16)))
  arrays = _file(tiny.vit(), (8, 8))
  arrays[released.POSITION] = np.zeros(
    (1, 1, 16)
  )  # Only the class token's row.
  with pytest.raises(ValueError, match='0 patches do not form a square grid'):
    interop.infer_model(arrays)
  found = interop.infer_model(_file(tiny.vit(), (8, 16)), (8, 16))
  assert found == (tiny.vit(), (8, 16))
  for kind in ('none', 'sincos2d'):
    with pytest.raises(ValueError, match='have no position embedding'):
      interop.infer_model(_file(tiny.vit(position_embedding=kind), (8, 8)))
  arrays = _file(tiny.vit(), (8, 8))
  del arrays['head/bias']
  with pytest.raises(ValueError, match='have no head'):
    interop.infer_model(arrays)
  with pytest.raises(
    ValueError,
    match=r"not the weights of a ViT.*query/kernel' is missing among layer1/w",
  ):
    interop.infer_model({'head/bias': np.zeros(3), 'layer1/weight': np.ones(3)})
