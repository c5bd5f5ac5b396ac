"""Guards: 8-bit products in the blocks, with the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import stacking
from tests.tiny_run import SIZES
from vit_jax import models

pytest.importorskip('qwix')
IMAGES = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))


def _model(quantization, **options):
  options = SIZES | {'depth': 2, 'quantization': quantization} | options
  return models.build('ViT-Ti/4', num_classes=3, **options)


def _loss(model):
  def loss(params):
    logits, _ = model.apply({'params': params}, IMAGES, train=True)
    return (logits**2).sum(), logits

  return loss


@pytest.fixture(scope='module')
def params():
  found = _model('none').init(jax.random.key(0), IMAGES)['params']
  head = found['head']['kernel']
  found['head']['kernel'] = jax.random.normal(jax.random.key(2), head.shape)
  return found


@pytest.mark.gate
@pytest.mark.parametrize(
  'name, products',
  # Six dense layers in a block; a gradient has two products for each.
  [('none', 0), ('int8', 12), ('int8_all', 36)],
)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_dense_layers_of_blocks_multiply_integers(
  params, name, products, dtype
):
  model = _model(name, dtype=dtype)
  text = jax.jit(jax.grad(_loss(model), has_aux=True)).lower(params).as_text()
  found = [line for line in text.splitlines() if 'dot_general' in line]
  assert sum('xi8>' in line for line in found) == products


@pytest.mark.gate
@pytest.mark.parametrize('scan', [False, True])
def test_logits_and_gradients_stay_close(params, scan):
  if scan:
    params = {**params, **stacking.stack_blocks(params)}
  results = [
    jax.jit(jax.grad(_loss(_model(name, scan=scan)), has_aux=True))(params)
    for name in ('none', 'int8', 'int8_all')
  ]
  plain, (gradients, logits) = results[0][1], results[1]
  assert _distance(logits, plain) == pytest.approx(0.01, abs=0.009)
  kernels = [
    jnp.concatenate([x.ravel() for x in jax.tree.leaves(one[0])])
    for one in results
  ]
  for one in kernels[1:]:
    assert 0 < _distance(one, kernels[0]) < 0.05
  assert jax.tree.structure(gradients) == jax.tree.structure(results[0][0])


def _distance(found, expected):
  return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
