"""Guards: 8-bit products in the blocks, with the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny_run import SIZES, tiny_config
from vit_jax import models
from vit_jax.interop import sources
from vit_jax.models import quantized
from vit_jax.training import train

needs_qwix = pytest.mark.skipif(
  not quantized.is_installed(), reason='qwix is not installed'
)
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


@needs_qwix
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


@needs_qwix
@pytest.mark.parametrize('scan', [False, True])
def test_logits_and_gradients_stay_close(params, scan):
  if scan:
    params = {**params, **models.stack_blocks(params)}
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


@needs_qwix
def test_a_run_trains_and_its_weights_are_those_of_any_model(tmp_path):
  config = tiny_config({'total_steps': 30, 'model.quantization': 'int8'})
  train.train_and_evaluate(config, tmp_path)
  # How the run computed does not matter for its weights.
  assert (
    sources.model_of_run(
      {'num_classes': 2, 'model': config.model.to_dict()}
    ).quantization
    == 'none'
  )


def test_without_qwix_an_error_says_what_to_install(monkeypatch):
  monkeypatch.setattr(quantized, 'is_installed', lambda: False)
  with pytest.raises(ValueError, match=r"'int8' needs pip install .*quantized"):
    _model('int8')
  assert _model('none').quantization == 'none'
  with pytest.raises(ValueError, match="quantization is 'int4', expected one"):
    _model('int4')
