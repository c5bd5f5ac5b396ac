"""Guards: schedules against literal values, optimizers against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import config as config_lib
from vit_jax.training import optimizer as optimizer_lib


def _rates(name, steps, total_steps=110, **others):
  section = dict(name=name, peak=2.0, warmup_steps=10) | others
  schedule = optimizer_lib.build_schedule(section, total_steps)
  return [float(schedule(step)) for step in steps]


def test_schedules():
  steps = [0, 5, 10, 60, 110]
  np.testing.assert_allclose(
    _rates('linear', steps, end=1.0), [0, 1, 2, 1.5, 1], rtol=1e-6
  )
  np.testing.assert_allclose(
    _rates('cosine', steps, end=0.0), [0, 1, 2, 1, 0], rtol=1e-6, atol=1e-7
  )
  np.testing.assert_allclose(
    _rates('cosine', [35], end=0.5), [0.5 + 1.5 * (1 + 0.5**0.5) / 2], rtol=1e-6
  )
  np.testing.assert_allclose(
    _rates('constant', steps), [0, 1, 2, 2, 2], rtol=1e-6
  )
  np.testing.assert_allclose(
    _rates(
      'staircase',
      [0, 5, 10, 49, 50, 74, 75, 100],
      total_steps=100,
      boundaries=(0.5, 0.75),
      factor=0.1,
    ),
    [0, 1, 2, 2, 0.2, 0.2, 0.02, 0.02],
    rtol=1e-5,
  )


def test_no_warmup_starts_at_the_peak():
  assert _rates('constant', [0], warmup_steps=0) == [2.0]


def test_a_warm_up_must_end():
  with pytest.raises(ValueError, match=r'warmup_steps=10 .*total_steps=10'):
    _rates('constant', [0], total_steps=10)


def _params():
  rng = np.random.default_rng(0)
  return {
    'kernel': rng.normal(size=(3, 4)).astype(np.float32),
    'bias': rng.normal(size=4).astype(np.float32),
  }


def _run(section, grads, rate=0.1):
  """Returns the parameters after one step for each gradient."""
  optimizer = optimizer_lib.build_optimizer(section, lambda step: rate)
  params = jax.tree.map(jnp.asarray, _params())
  state = optimizer.init(params)
  for grad in grads:
    updates, state = optimizer.update(grad, state, params)
    params = optax.apply_updates(params, updates)
  return params


def _grads(steps, scale=1.0):
  rng = np.random.default_rng(1)
  return [
    jax.tree.map(
      lambda p: (scale * rng.normal(size=p.shape)).astype(np.float32),
      _params(),
    )
    for _ in range(steps)
  ]


def _adam(p, grads, rate, wd, beta1=0.9, beta2=0.999, eps=1e-8):
  m = v = 0.0
  p = np.asarray(p, np.float64)
  for t, g in enumerate(grads, start=1):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    p = p - rate * (m_hat / (np.sqrt(v_hat) + eps) + wd * p)
  return p


@pytest.mark.parametrize('which', ['all', 'kernels'])
def test_adam_is_the_papers(which):
  section = config_lib.adam(weight_decay=0.3).to_dict()
  grads = _grads(5)
  result = _run(section | {'weight_decay_params': which}, grads)
  for name, start in _params().items():
    decay = 0.3 if which == 'all' or name == 'kernel' else 0.0
    expected = _adam(start, [g[name] for g in grads], 0.1, decay)
    np.testing.assert_allclose(result[name], expected, rtol=2e-5, atol=1e-6)


def test_low_rank_additions_decay_as_their_kernels_do():
  section = config_lib.adam(weight_decay=0.3).to_dict()
  section |= {'weight_decay_params': 'kernels'}
  params = {
    'lora': {'out': {'kernel': {'a': jnp.ones(2), 'b': jnp.ones(2)}}},
    'out': {'bias': jnp.ones(2)},
  }
  optimizer = optimizer_lib.build_optimizer(section, lambda _: 0.1)
  zero = jax.tree.map(jnp.zeros_like, params)
  updates, _ = optimizer.update(zero, optimizer.init(params), params)
  assert updates['lora']['out']['kernel']['a'] == pytest.approx(-0.03)
  assert updates['lora']['out']['kernel']['b'] == pytest.approx(-0.03)
  assert not updates['out']['bias'].any()


@pytest.mark.parametrize('which', ['all', 'kernels'])
def test_sgd_couples_weight_decay_and_is_not_nesterov(which):
  section = config_lib.sgd(weight_decay=0.5).to_dict()
  grads = _grads(4)
  result = _run(section | {'weight_decay_params': which}, grads)
  for name, start in _params().items():
    decay = 0.5 if which == 'all' or name == 'kernel' else 0.0
    p, m = np.asarray(start, np.float64), 0.0
    for g in grads:
      m = 0.9 * m + g[name] + decay * p
      p = p - 0.1 * m
    np.testing.assert_allclose(result[name], p, rtol=2e-5, atol=1e-6)


def test_clipping_scales_to_the_global_norm():
  section = config_lib.sgd(clip_norm=1.0).to_dict()
  (grad,) = _grads(1, scale=10.0)
  norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
  result = _run(section, [grad])
  for name, start in _params().items():
    np.testing.assert_allclose(
      result[name], start - 0.1 * grad[name] / norm, rtol=1e-5, atol=1e-6
    )
  # A gradient within the norm stays as it is.
  (grad,) = _grads(1, scale=0.01)
  result = _run(section, [grad])
  np.testing.assert_allclose(
    result['bias'], _params()['bias'] - 0.1 * grad['bias'], rtol=1e-5
  )


def test_moment_dtype():
  for name, section in (
    ('adam', config_lib.adam()),
    ('sgd', config_lib.sgd()),
  ):
    section.moment_dtype = 'bfloat16'
    state = optimizer_lib.build_optimizer(section, lambda step: 0.1).init(
      _params()
    )
    dtypes = {x.dtype for x in jax.tree.leaves(state)}
    assert jnp.dtype('bfloat16') in dtypes, name
