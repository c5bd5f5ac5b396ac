"""Guards: a model of the user's works as docs/extend.md says, or is refused."""

import flax.linen as nn
import jax
import pytest

from vit_jax import models
from vit_jax.interop import inference
from vit_jax.models import layers, position, variants
from vit_jax.training import step as step_lib


class Own(nn.Module):
  num_classes: int
  features: int = 4
  dtype: str = 'float32'
  remat: str = 'none'
  head_bias: float = 0.0
  fault: str = ''

  @nn.compact
  def __call__(self, images, *, train):
    x = nn.Dense(self.features)(images).mean((1, 2))
    if self.fault == 'batch_stats':
      x = nn.BatchNorm(use_running_average=not train)(x)
    name = 'classes' if self.fault == 'head' else 'head'
    logits = nn.Dense(self.num_classes, name=name)(x)
    return logits if self.fault == 'logits, out' else (logits, {})


class Unbuilt(Own):
  """The module of a family whose models cannot be built."""


def _family(module=Own, names=('Own-4',), fields=None):
  fields = fields or (lambda features: {'features': int(features)})
  return variants.Family('Own-N', r'Own-(\d+)', module, fields, names)


@pytest.fixture
def added(monkeypatch):
  def unrelated(features):
    raise AttributeError(f'{features} is no size of this model.')

  others = (_family(Own), _family(Unbuilt, fields=unrelated))
  monkeypatch.setattr(variants, 'FAMILIES', variants.FAMILIES + others)


@pytest.mark.parametrize(
  'name, overrides',
  [('ViT-B/16', {}), ('BiT-R50x1', {}), ('Own-4', {'features': 8})],
)
def test_a_model_is_described_without_those_of_other_families(
  added, name, overrides
):
  model = models.build(name, num_classes=2, **overrides)
  assert inference.describe(model) == (name, overrides)


def test_what_a_model_lacks_is_not_asked_of_it(added):
  model = models.build('Own-8', num_classes=2)
  assert layers.names(model) == ['pre_logits', 'logits']
  assert position.grid_of(model, (8, 8)) is None
  params = step_lib.init_params(model, jax.random.key(0), (8, 8, 1))
  images = jax.numpy.zeros((2, 8, 8, 1), 'uint8')
  assert layers.represent(model, params, images, 'logits').shape == (2, 2)
  with pytest.raises(ValueError, match='expected pre_logits'):
    layers.represent(model, params, images)


@pytest.mark.parametrize('fault', ['batch_stats', 'head', 'logits, out'])
def test_a_module_that_cannot_be_trained_is_refused(fault):
  with pytest.raises(ValueError, match=fault):
    step_lib.init_params(Own(2, fault=fault), jax.random.key(0), (8, 8, 1))
