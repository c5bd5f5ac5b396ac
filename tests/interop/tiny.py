"""Small models with random parameters."""

import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from tests.checkpoint import states
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.workdir import files

SIZES = dict(width=16, depth=2, heads=2, mlp_dim=24)
BIT = dict(blocks=(1, 2), width_factor=1)


def vit(num_classes=5, **overrides):
  return models.build('ViT-B/4', num_classes=num_classes, **(SIZES | overrides))


def bit(num_classes=5):
  return models.build('BiT-R50x1', num_classes=num_classes, **BIT)


def axial_resnet(num_classes=5):
  return models.build('AxialResNet50', num_classes=num_classes, blocks=(1,))


@functools.cache
def _shapes(model, size, channels):
  images = jnp.zeros((1, *size, channels))
  return jax.eval_shape(lambda: model.init(jax.random.key(0), images))['params']


def params(model, size=(8, 8), channels=3, seed=0):
  """Returns random parameters, float32 NumPy arrays."""
  shapes = _shapes(model, tuple(size), channels)
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(x.dtype), shapes
  )


def run(
  workdir,
  class_names='13589',
  channels=1,
  dataset='digits:13589',
  preprocess='resize_small(9)',
  **sizes,
):
  """Writes the files of a run of 9 steps; returns its averaged parameters."""
  model = vit(len(class_names), **sizes)
  averaged, last = (
    params(model, channels=channels, seed=seed) for seed in range(2)
  )
  states.save(workdir, {'params': last, 'ema_params': averaged}, [9])
  config = config_lib.default()
  config.data.dataset = dataset
  config.model.name = 'ViT-B/4'
  config.model.update(SIZES | sizes)
  config.image_size, config.channels = (8, 8), channels
  config.num_classes = len(class_names)
  config.evals.test = config_lib.evaluation('test', preprocess=preprocess)
  config_lib.save(config, workdir)
  files.write_class_names(workdir, class_names)
  return averaged


def params_of_4_pixels(seed, size=(8, 8), classes=3, **overrides):
  """Returns random parameters of a ViT with patches of 4x4 grey pixels."""
  sizes = dict(width=8, depth=2, heads=2, mlp_dim=16) | overrides
  model = models.build('ViT-Ti/4', num_classes=classes, **sizes)
  return params(model, size, channels=1, seed=seed)


def unstacked(params):
  """Returns parameters by names such as `head/kernel`, without stacks."""
  if 'encoderblock' in params['Transformer']:
    params = models.unstack_blocks(params)
  return flat(params)


def flat(tree):
  return flax.traverse_util.flatten_dict(tree, sep='/')


def assert_equal(tree, expected):
  """Asserts that names, dtypes and values are equal."""
  tree, expected = flat(tree), flat(expected)
  assert tree.keys() == expected.keys()
  for name in tree:
    assert tree[name].dtype == expected[name].dtype, name
    np.testing.assert_array_equal(tree[name], expected[name], err_msg=name)


def unflat(tree):
  return flax.traverse_util.unflatten_dict(tree, sep='/')
