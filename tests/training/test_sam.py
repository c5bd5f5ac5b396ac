"""Guards: SAM and GSAM against NumPy, and on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import tiny_step
from vit_jax import config as config_lib
from vit_jax import sharding
from vit_jax.training import schedule as schedule_lib
from vit_jax.training import step as step_lib

RNG = np.random.default_rng(0)
PARAMS = {
  'first': {'kernel': RNG.normal(size=(6, 4)).astype('f')},
  'head': {'kernel': RNG.normal(size=(4, 3)).astype('f')},
}
BATCHES = [
  {'x': RNG.normal(size=(8, 6)).astype('f'), 'y': RNG.normal(size=(8, 3))}
  for _ in range(5)
]
SCHEDULE = dict(peak=0.1, warmup_steps=2, end=0.01)


def _objective(params, batch, key):
  hidden = batch['x'] @ params['first']['kernel']
  loss = jnp.square(hidden @ params['head']['kernel'] - batch['y']).mean()
  return loss, {'loss': loss}


def _ours(layout=None, steps=1, **keys):
  """Returns the parameters after all batches, and the metrics of each step."""
  schedule = schedule_lib.build_schedule(
    config_lib.schedule('linear', **SCHEDULE), len(BATCHES)
  )
  optimizer = optax.sgd(schedule, momentum=0.9)
  state = step_lib.init_state(PARAMS, optimizer, polyak=False)
  if layout:
    state = sharding.put_tree(state, layout.state(state))
  step = tiny_step.train_step(
    *(_objective, optimizer, schedule, jax.random.key(0), layout),
    **dict(state=state if layout else None, accumulation_steps=steps),
    changes={
      'schedule': config_lib.schedule('linear', **SCHEDULE),
      **{f'sam.{key}': value for key, value in keys.items()},
    },
  )
  found = []
  for batch in BATCHES:
    batch = jax.tree.map(np.float32, batch)
    if layout:
      batch = sharding.put_batch(batch, layout.mesh)
    state, metrics = step(state, batch)
    found.append(jax.device_get(metrics))
  return jax.device_get(state.params), found


_gradient = jax.jit(jax.grad(lambda w, batch: _objective(w, batch, None)[0]))
_dot, _plus = optax.tree.vdot, optax.tree.add_scale


def _reference(rho, rho_end, alpha):
  w = jax.tree.map(np.float64, PARAMS)
  m = jax.tree.map(np.zeros_like, w)
  for t, batch in enumerate(BATCHES):
    rate = (0.01 + 0.09 * min(1, 1 - (t - 2) / 3)) * min(1, t / 2)
    now = rho_end + (rho - rho_end) * (rate - 0.01) / 0.09
    g = _gradient(w, batch)
    s = _gradient(_plus(w, now / np.sqrt(_dot(g, g)), g), batch)
    across = _plus(g, -_dot(g, s) / _dot(s, s), s)
    m = _plus(_plus(s, -alpha, across), 0.9, m)
    w = _plus(w, -rate, m)
  return w


def _close(found, expected, rtol=1e-5):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6),
    found,
    expected,
  )


@pytest.mark.parametrize(
  'keys, expected',
  [
    (dict(rho=0.6, rho_end=0.1, alpha=0.6), (0.6, 0.1, 0.6)),
    (dict(rho=0.6, rho_end=0.0, alpha=0.3), (0.6, 0.0, 0.3)),
    # SAM without more keys: a constant distance.
    (dict(rho=0.5), (0.5, 0.5, 0.0)),
  ],
)
def test_the_gradient_is_that_of_the_papers(keys, expected):
  found, metrics = _ours(**keys)
  _close(found, _reference(*expected))
  plain, plain_metrics = _ours()
  assert np.abs(found['head']['kernel'] - plain['head']['kernel']).max() > 1e-2
  # The loss is that at the weights, which the first step at rate 0 leaves.
  assert metrics[1]['loss'] == plain_metrics[1]['loss']
  assert metrics[1]['grad_norm'] != plain_metrics[1]['grad_norm']


def test_a_mesh_and_micro_batches_change_nothing():
  expected, _ = _ours(rho=0.6, rho_end=0.1, alpha=0.6)
  layout = sharding.Layout(sharding.make_mesh(2, 2, 1), partition='manual')
  found, _ = _ours(layout, steps=2, rho=0.6, rho_end=0.1, alpha=0.6)
  _close(found, expected)
