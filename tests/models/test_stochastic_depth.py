"""Guards: stochastic depth is as defined, on all code paths."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import models
from vit_jax.models import shared
from vit_jax.models.shared import depth_rates

DEPTH, LAST = 3, 0.6
RATES = (0.0, 0.3, 0.6)
SIZE = (8, 12)
# Ways to compute a model.
OPTIONS = [
  {'scan': True},
  {'remat': 'full', 'parallel': True},
  {'attention_implementation': 'lanes'},
  {'pooling': 'gap', 'attention': 'axial'},
]


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
  """Replaces cuDNN's kernel, which needs a GPU."""
  plain = jax.nn.dot_product_attention

  def kernel(query, key, value, *, implementation, **options):
    del implementation
    return plain(query, key, value, implementation='xla', **options)

  monkeypatch.setattr(jax.nn, 'dot_product_attention', kernel)


def _model(**options):
  options = {'depth': DEPTH, 'stochastic_depth': LAST} | options
  return tiny.vit(**options)


def _images(rows, model, seed=0):
  height, width = SIZE
  if getattr(model, 'resnet_blocks', None) is not None:
    height, width = 4 * height, 4 * width
  shape = (rows, height, width, 3)
  return np.random.default_rng(seed).uniform(-1, 1, shape).astype('f')


def _train(model, params, images, key=0, **options):
  @jax.jit
  def apply(params, images, key):
    return model.apply(
      {'params': params}, images, train=True, rngs={'dropout': key}, **options
    )

  return apply(params, images, jax.random.key(key))


def _known(model):
  """Parameters with which `_factors` can read what each branch was times.

  Each branch adds 1 to a channel of its own. Channels 0 and 1 are 0 and 1.
  """
  params = tiny.params(model, _images(1, model).shape[1:3])
  params = jax.tree.map(np.zeros_like, params)
  params['Transformer']['posembed_input']['pos_embedding'][..., 1] = 1
  norm = params['Transformer']['encoder_norm']
  norm['scale'] += 1
  stack = params['Transformer'].get('encoderblock')
  channel = 2
  for i in range(model.depth):
    blocks = [stack or params['Transformer'][f'encoderblock_{i}']]
    if model.attention == 'axial':
      blocks = [blocks[0]['row'], blocks[0]['column']]
    for block in blocks:
      for bias in (
        block['MultiHeadDotProductAttention_0']['out']['bias'],
        block['MlpBlock_0']['Dense_1']['bias'],
      ):
        bias[(i, channel) if stack else channel] = 1
        channel += 1
  return params


def _factors(model, rows, key=0):
  """Returns what the branches were multiplied by: [branches, rows]."""
  branches = 2 * model.depth * (2 if model.attention == 'axial' else 1)
  images = _images(rows, model)
  _, out = _train(model, _known(model), images, key)
  normed = np.float64(out['encoded'])  # (x - mean) / deviation
  # Every token has the same factors.
  np.testing.assert_allclose(normed, normed[:, :1].repeat(normed.shape[1], 1))
  normed = normed[:, 0].T
  found = (normed - normed[0]) / (normed[1] - normed[0])
  if model.position_site == 'every_layer_shared':
    found *= model.depth  # Channel 1 has it once for each layer.
  np.testing.assert_allclose(found[2 + branches :], 0, atol=1e-4)
  return found[2 : 2 + branches]


def _rates(model):
  repeats = 4 if model.attention == 'axial' else 2
  return np.repeat(RATES, repeats)


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_each_branch_is_left_out_at_its_rate_or_scaled(options):
  model, rows = _model(width=32, **options), 3000
  factors = _factors(model, rows)
  rates = _rates(model)
  left_out = np.abs(factors) < 1e-3
  expected = np.where(left_out, 0, 1 / (1 - rates[:, None]))
  np.testing.assert_allclose(factors, expected, rtol=1e-3, atol=1e-3)
  # Six standard deviations.
  deviations = np.sqrt(rates * (1 - rates) / rows)
  assert (np.abs(left_out.mean(1) - rates) <= 6 * deviations).all()
  assert not left_out[rates == 0].any()
  # So the mean is 1, which evaluations use.
  np.testing.assert_allclose(factors.mean(1), 1, atol=0.2)
  drawn = left_out[rates > 0]
  correlation = np.corrcoef(drawn) - np.eye(len(drawn))
  if model.parallel:  # Attention and MLP are one branch.
    np.testing.assert_array_equal(drawn[::2], drawn[1::2])
    correlation = np.corrcoef(drawn[::2]) - np.eye(len(drawn) // 2)
  assert np.abs(correlation).max() < 6 / rows**0.5
  # Rows are independent, too.
  assert abs(np.corrcoef(drawn[-1, 1:], drawn[-1, :-1])[0, 1]) < 6 / rows**0.5


@pytest.mark.parametrize(
  'name, options',
  [
    ('ViT-B/4', tiny.SIZES),
    ('ViT-B/4', tiny.SIZES | {'scan': True}),
    ('BiT-R50x1', tiny.BIT),
    ('AxialResNet50', {'blocks': (1, 1), 'width_factor': 0.5}),
  ],
)
def test_evaluations_and_a_rate_of_0_change_nothing(name, options):
  plain = models.build(name, num_classes=3, **options)
  model = models.build(name, num_classes=3, stochastic_depth=0.5, **options)
  none = models.build(name, num_classes=3, stochastic_depth=0.0, **options)
  images = _images(2, model)

  def init(model):
    return jax.make_jaxpr(model.init)(jax.random.key(0), images)

  assert str(init(model)) == str(init(none)) == str(init(plain))
  params = tiny.params(plain, SIZE)

  def program(model, train):
    return str(
      jax.make_jaxpr(
        lambda p: model.apply({'params': p}, images, train=train)[0]
      )(params)
    )

  evaluated = program(plain, False)
  assert program(model, False) == program(none, False) == evaluated
  # No random key is needed.
  assert program(none, True) == program(plain, True) == evaluated
  logits, _ = _train(model, params, images, key=1)
  assert (np.abs(logits - _train(plain, params, images)[0]).max(1) > 0).any()


def test_rates_grow_linearly_from_0():
  assert depth_rates(0.0, 3) == [None, None, None]
  assert depth_rates(0.5, 1) == [None]
  first, *others = depth_rates(0.1, 5)
  assert first is None
  np.testing.assert_allclose(others, [0.025, 0.05, 0.075, 0.1])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_values_and_dtype_of_a_branch(dtype):
  class Twice(nn.Module):
    @nn.compact
    def __call__(self, y):
      first = shared.stochastic_depth(self, 0.25, len(y))
      second = shared.stochastic_depth(self, 0.25, len(y))
      return first(y), first(y + 1), second(y)

  y = jnp.full((5000, 2, 3), 3, dtype)
  ones, twos, others = Twice().apply({}, y, rngs={'dropout': jax.random.key(0)})
  assert (ones.shape, ones.dtype) == (y.shape, dtype)
  kept = np.asarray(ones[:, 0, 0] > 0)
  np.testing.assert_allclose(
    np.float32(ones), np.where(kept, 4, 0)[:, None, None] + np.zeros(y.shape)
  )
  np.testing.assert_array_equal(twos > 0, ones > 0)
  assert abs(kept.mean() - 0.75) < 6 * (0.75 * 0.25 / 5000) ** 0.5
  assert (np.asarray(others[:, 0, 0] > 0) != kept).any()
