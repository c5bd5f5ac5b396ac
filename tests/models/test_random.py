"""Guards dropout and stochastic depth: rates, scales and independence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from tests.models import naive
from vit_jax import models
from vit_jax.models import resnet
from vit_jax.models.shared import Dropout


def _drop(rate, x, rng='threefry2x32'):
  key = jax.random.key(0, impl=rng)
  return jax.jit(Dropout(rate).apply)({}, x, rngs={'dropout': key})


@pytest.mark.parametrize('rate, rng', [(0.001, 'threefry2x32'), (0.75, 'rbg')])
def test_rate_and_scale_of_dropout(rate, rng):
  rows, units = 5, 400_000
  y = np.asarray(_drop(rate, jnp.full((rows, units), 3.0), rng))
  kept = y != 0
  np.testing.assert_allclose(y[kept], 3 / (1 - rate), rtol=2e-5)
  # Six standard deviations.
  np.testing.assert_allclose(
    kept.mean(1), 1 - rate, atol=6 * (rate * (1 - rate) / units) ** 0.5
  )
  # Masks of any two rows are independent, also if they share random numbers.
  correlation = np.corrcoef(kept) - np.eye(rows)
  assert np.abs(correlation).max() < 6 / units**0.5


@pytest.mark.parametrize('shape', [(1,), (3, 4, 2)])
def test_dropout_keeps_shape_dtype_and_gradient(shape):
  x = jnp.ones(shape, jnp.bfloat16)
  y, pull = jax.vjp(lambda x: _drop(0.5, x), x)
  assert (y.shape, y.dtype) == (x.shape, x.dtype)
  np.testing.assert_array_equal(pull(y)[0], y * 2)


def test_dropout_that_is_off_needs_no_key():
  x = jnp.arange(4.0)
  for module in (Dropout(0.5, deterministic=True), Dropout(0)):
    np.testing.assert_array_equal(module.apply({}, x), x)


def test_masks_do_not_depend_on_the_mesh():
  x = jnp.ones((16, 32))
  mesh = jax.make_mesh((8,), ('data',))
  rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))
  split = _drop(0.5, jax.device_put(x, rows))
  assert split.sharding.is_equivalent_to(rows, 2)
  np.testing.assert_array_equal(split, _drop(0.5, x))


# Stochastic depth ------------------------------------------------------------

DEPTH, RATES = 3, (0.0, 0.3, 0.6)


def _known(model, images):
  """Parameters with which `_factors` can read what each branch was times.

  Each branch adds 1 to a channel of its own. Channels 0 and 1 are 0 and 1.
  """
  params = tiny.params(model, images.shape[1:3])
  params = jax.tree.map(np.zeros_like, params)
  params['Transformer']['posembed_input']['pos_embedding'][..., 1] = 1
  params['Transformer']['encoder_norm']['scale'] += 1
  stack = params['Transformer'].get('encoderblock')
  channel = 2
  for i in range(model.depth):
    block = stack or params['Transformer'][f'encoderblock_{i}']
    for bias in (
      block['MultiHeadDotProductAttention_0']['out']['bias'],
      block['MlpBlock_0']['Dense_1']['bias'],
    ):
      bias[(i, channel) if stack else channel] = 1
      channel += 1
  return params


def _factors(model, rows):
  """Returns what the branches were multiplied by: [branches, rows]."""
  branches = 2 * model.depth
  images = np.zeros((rows, 4, 8, 3), np.float32)
  apply = jax.jit(
    lambda params, key: model.apply(
      {'params': params}, images, train=True, rngs={'dropout': key}
    )
  )
  _, out = apply(_known(model, images), jax.random.key(0))
  normed = np.float64(out['encoded'])  # (x - mean) / deviation
  # Every token has the same factors.
  np.testing.assert_allclose(normed, normed[:, :1].repeat(normed.shape[1], 1))
  normed = normed[:, 0].T
  found = (normed - normed[0]) / (normed[1] - normed[0])
  np.testing.assert_allclose(found[2 + branches :], 0, atol=1e-4)
  return found[2 : 2 + branches]


@pytest.mark.parametrize(
  'options',
  [{'remat': 'full', 'parallel': True}, {'scan': True, 'pooling': 'gap'}],
  ids=str,
)
def test_each_branch_is_left_out_at_its_rate_or_scaled(options):
  rows = 3000
  model = tiny.vit(depth=DEPTH, stochastic_depth=0.6, width=32, **options)
  factors = _factors(model, rows)
  rates = np.repeat(RATES, 2)
  left_out = np.abs(factors) < 1e-3
  expected = np.where(left_out, 0, 1 / (1 - rates[:, None]))
  np.testing.assert_allclose(factors, expected, rtol=1e-3, atol=1e-3)
  # Six standard deviations.
  deviations = np.sqrt(rates * (1 - rates) / rows)
  assert (np.abs(left_out.mean(1) - rates) <= 6 * deviations).all()
  assert not left_out[rates == 0].any()
  drawn = left_out[rates > 0]
  correlation = np.corrcoef(drawn) - np.eye(len(drawn))
  if model.parallel:  # Attention and MLP are one branch.
    np.testing.assert_array_equal(drawn[::2], drawn[1::2])
    correlation = np.corrcoef(drawn[::2]) - np.eye(len(drawn) // 2)
  assert np.abs(correlation).max() < 6 / rows**0.5
  # Rows are independent, too.
  assert abs(np.corrcoef(drawn[-1, 1:], drawn[-1, :-1])[0, 1]) < 6 / rows**0.5


def test_units_leave_their_branch_out_or_double_it():
  x = np.random.default_rng(0).uniform(0, 1, (20, 2, 2, 16)).astype('f')
  rngs = {'dropout': jax.random.key(0)}
  for unit in (resnet.PreActivationUnit(4), resnet.PostActivationUnit(4)):
    params = {'params': naive.random_params(unit, x)}
    plain, found = jax.jit(
      lambda params, unit=unit: (
        unit.apply(params, x) - x,
        unit.apply(params, x, 0.5, rngs=rngs) - x,
      )
    )(params)
    out = np.abs(found).max((1, 2, 3)) == 0
    assert 0 < out.sum() < len(out)
    if isinstance(unit, resnet.PreActivationUnit):  # No ReLU after the sum.
      np.testing.assert_allclose(found[~out], 2 * plain[~out], atol=1e-4)


@pytest.mark.parametrize(
  'name, options',
  [
    ('ViT-B/4', tiny.SIZES | {'scan': True}),
    ('BiT-R50x1', {'blocks': (1, 1)}),
    pytest.param(
      *('AxialResNet50', {'blocks': (1, 1)}), marks=pytest.mark.gate
    ),
  ],
)
def test_evaluations_and_a_rate_of_0_change_nothing(name, options):
  plain, none, model = (
    models.build(name, num_classes=3, **options, **rate)
    for rate in ({}, {'stochastic_depth': 0.0}, {'stochastic_depth': 0.5})
  )
  images = np.zeros((2, 8, 12, 3), np.float32)
  params = tiny.params(plain, (8, 12))

  def program(model, train, key=None):
    rngs = None if key is None else {'dropout': key}
    return str(
      jax.make_jaxpr(
        lambda p: model.apply({'params': p}, images, train=train, rngs=rngs)[0]
      )(params)
    )

  evaluated = program(plain, False)
  assert program(model, False) == program(none, True) == evaluated
  assert 'random_bits[' in program(model, True, jax.random.key(0))
