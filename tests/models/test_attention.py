"""Guards: each implementation of attention equals loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import attention, lanes

RNG = np.random.default_rng(0)


def _exact(query, key, value, grad):
  """Computes attention and its gradients by their formulas, in float64.

  Args:
    query, key, value, grad: [B, L or T, H, K].

  Returns:
    (out, query_grad, key_grad, value_grad).
  """
  out, grads = np.zeros(query.shape), [np.zeros(key.shape) for _ in range(3)]
  grads[0] = np.zeros(query.shape)
  scale = query.shape[-1] ** -0.5
  for b in range(query.shape[0]):
    for h in range(query.shape[2]):
      q, k, v, g = (x[b, :, h] for x in (query, key, value, grad))
      scores = q @ k.T * scale
      weights = np.exp(scores - scores.max(axis=1, keepdims=True))
      weights /= weights.sum(axis=1, keepdims=True)
      out[b, :, h] = weights @ v
      weight_grads = g @ v.T
      mean = (weights * weight_grads).sum(axis=1, keepdims=True)
      score_grads = weights * (weight_grads - mean) * scale
      grads[0][b, :, h] = score_grads @ k
      grads[1][b, :, h] = score_grads.T @ q
      grads[2][b, :, h] = weights.T @ g
  return out, *grads


def _errors(name, dtype, length, spread, batch=2, heads=3):
  """Returns the result's and gradients' largest errors over largest entries."""
  shape = (batch, length, heads, 8)
  query, key = RNG.normal(size=(2, *shape)) * spread**0.5
  value, grad = RNG.normal(size=(2, *shape))
  arrays = [jnp.asarray(x, dtype) for x in (query, key, value, grad)]
  exact = _exact(*(np.asarray(x, np.float64) for x in arrays))

  @jax.jit
  def run(query, key, value, grad):
    out, backward = jax.vjp(_blockwise(name), query, key, value)
    return out, *backward(grad)

  actual = run(*arrays)
  assert {x.dtype for x in actual} == {jnp.dtype(dtype)}
  return [
    # A single token's query and key have no gradient.
    np.abs(np.asarray(a, np.float64) - e).max() / (np.abs(e).max() or 1)
    for a, e in zip(actual, exact, strict=True)
  ]


def _blockwise(name):
  """Returns an implementation; `lanes` in blocks, as the model runs it."""
  if name == 'plain':
    return attention.plain

  def run(*arrays):
    ends = np.cumsum(lanes.block_sizes(arrays[0].shape[1]))[:-1]
    blocks = [jnp.split(x, ends, axis=1) for x in arrays]
    return jnp.concatenate(lanes.lane_blocks(*blocks), axis=1)

  return run


@pytest.mark.parametrize('length', [1, 50, 257])
@pytest.mark.parametrize('name', ['plain', 'lanes'])
@pytest.mark.parametrize(
  'spread', [1, 30], ids=['usual scores', 'scores of hundreds']
)
def test_float32(name, length, spread):
  assert max(_errors(name, jnp.float32, length, spread)) < 2e-5


@pytest.mark.parametrize('length', [50, 257])
@pytest.mark.parametrize('name', ['plain', 'lanes'])
def test_bfloat16(name, length):
  # The relative rounding error of bfloat16 is up to 2^-9 = 0.002.
  assert max(_errors(name, jnp.bfloat16, length, spread=1)) < 0.02


def test_means_of_keys_and_values_cancel_in_gradients():
  # A query's gradient depends only on differences of keys, and its scores'
  # gradient only on differences of values. So their means must cancel out.
  shape = (1, 197, 2, 64)
  query, key, value, grad = RNG.normal(size=(4, *shape))
  key += 3 * RNG.normal(size=(1, 1, 2, 64))
  value += 5 * RNG.normal(size=(1, 1, 2, 64))
  arrays = [jnp.asarray(x, jnp.bfloat16) for x in (query, key, value, grad)]
  exact = _exact(*(np.asarray(x, np.float64) for x in arrays))[1]

  def error(name):
    _, backward = jax.vjp(_blockwise(name), *arrays[:3])
    actual = np.asarray(backward(arrays[3])[0], np.float64)
    return np.linalg.norm(actual - exact) / np.linalg.norm(exact)

  assert error('lanes') < max(0.02, 1.5 * error('plain'))


@pytest.mark.parametrize('name', ['plain', 'lanes'])
def test_huge_scores_do_not_overflow(name):
  query = jnp.full((1, 3, 1, 4), 1e15, jnp.bfloat16)
  value = jnp.arange(12, dtype=jnp.bfloat16).reshape(1, 3, 1, 4)
  out, backward = jax.vjp(_blockwise(name), query, query, value)
  # All keys are equal, so the result is the mean of the values.
  np.testing.assert_array_equal(out[0, :, 0], [[4, 5, 6, 7]] * 3)
  assert all(jnp.isfinite(x).all() for x in backward(value))


@pytest.mark.gate
@pytest.mark.parametrize('options', [{}, {'scan': True, 'remat': 'full'}])
def test_models_agree_across_attention_implementations(options):
  images = RNG.uniform(-1, 1, (2, 64, 64, 3)).astype(np.float32)

  def run(implementation, params=None):
    model = models.build(
      'ViT-Ti/4',
      num_classes=3,
      depth=2,
      width=32,
      mlp_dim=32,
      heads=2,
      attention_implementation=implementation,
      **options,
    )
    if params is None:
      params = model.init(jax.random.key(0), images)['params']
      params['head']['kernel'] = RNG.normal(size=(32, 3)).astype(np.float32)

    def loss(params):
      logits, out = model.apply({'params': params}, images)
      return (logits * jnp.arange(3)).sum(), out['encoded']

    return params, jax.value_and_grad(loss, has_aux=True)(params)

  params, expected = run('plain')
  _, actual = run('lanes', params)
  jax.tree.map(
    lambda a, e: np.testing.assert_allclose(
      # The true gradient of the keys' biases is 0: only rounding remains.
      a,
      e,
      atol=2e-5 * max(np.abs(e).max(), 1),
      rtol=0,
    ),
    actual,
    expected,
  )


@pytest.mark.parametrize(
  'platform, dtype, width, named',
  [
    ('tpu', 'bfloat16', 64, "this is 'tpu'"),
    ('gpu', 'float32', 64, 'float32'),
    ('gpu', 'bfloat16', 60, 'head width 60'),
  ],
)
def test_cudnn_is_refused_where_it_does_not_run(platform, dtype, width, named):
  with pytest.raises(ValueError, match=f"'cudnn' needs .*{named}.*Use 'plain'"):
    attention.check('cudnn', platform, dtype, width)
  attention.check('cudnn', 'gpu', 'bfloat16', 80)
  attention.check('lanes', 'cpu', 'float32', 64)
