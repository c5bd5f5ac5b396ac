"""Guards: a hundred steps of optimizers, against their formulas in NumPy.

The reference computes in float64, and each block by itself. `test_optimizer.py`
has those of Adam and of SGD.
"""

import math

import numpy as np
import optax
import pytest

from tests.training import made_optimizers as made
from vit_jax import config as config_lib
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import schedule as schedule_lib


def _adam_moments(memory, g, t, b1=0.9, b2=0.999):
  m, v = memory.setdefault('m', 0 * g), memory.setdefault('v', 0 * g)
  m[:] = b1 * m + (1 - b1) * g
  v[:] = b2 * v + (1 - b2) * g**2
  return m / (1 - b1**t), v / (1 - b2**t)


def _momentum(memory, u, decay=0.9):
  m = memory.setdefault('momentum', 0 * u)
  m[:] = decay * m + u
  return m


# Each takes a memory, the gradient, the weight, the step from 1, the weight
# decay, and the parameter's name. It returns what is subtracted at rate 1.


def lamb(memory, g, p, t, decay, name):
  m, v = _adam_moments(memory, g, t)
  u = m / (np.sqrt(v) + 1e-6) + decay * p
  return u * np.linalg.norm(p) / np.linalg.norm(u) if decay else u


def lars(memory, g, p, t, decay, name):
  u = g + decay * p
  if decay:
    u *= 0.1 * np.linalg.norm(p) / np.linalg.norm(u)
  return _momentum(memory, u)


def lion(memory, g, p, t, decay, name):
  m = memory.setdefault('m', 0 * g)
  u = np.sign(0.9 * m + 0.1 * g) + decay * p
  m[:] = 0.99 * m + 0.01 * g
  return u


def adafactor(memory, g, p, t, decay, name):
  b2 = min(0.999, 1 - t**-2.0)
  square = g**2 + 1e-30
  *_, second, first = (
    np.argsort(g.shape, kind='stable') if g.ndim > 1 else (0, 0)
  )
  if g.ndim > 1 and g.shape[second] >= 6:
    rows, columns = (
      memory.setdefault(axis, 0) * b2
      + (1 - b2) * square.mean(axis, keepdims=True)
      for axis in (first, second)
    )
    memory |= {first: rows, second: columns}
    v = rows * columns / rows.mean(second, keepdims=True)
  else:
    v = memory['v'] = b2 * memory.get('v', 0) + (1 - b2) * square
  m = memory.setdefault('m', 0 * g)
  m[:] = 0.9 * m + 0.1 * g / np.sqrt(v)
  return m + decay * p


def muon(memory, g, p, t, decay, name):
  if 'Dense' not in name and not ('Attention' in name and 'kernel' in name):
    m, v = _adam_moments(memory, g, t)
    m = 0.9 * (1 - 0.9**t) / (1 - 0.9 ** (t + 1)) * m + 0.1 * g / (1 - 0.9**t)
    return m / (np.sqrt(v) + 1e-8) + decay * p
  m = memory.setdefault('m', 0 * g)
  m[:] = 0.95 * m + 0.05 * g
  m = 0.95 * m / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
  inputs = math.prod(p.shape[:2]) if '/out/' in name else p.shape[0]
  x = m.reshape(inputs, -1)
  x = x / (np.linalg.norm(x) + 1e-8)
  for _ in range(5):
    a = x @ x.T
    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
  x *= math.sqrt(max(1, x.shape[1] / x.shape[0]))
  return x.reshape(p.shape) + 0.1 * p


REFERENCES = adafactor, lamb, lars, lion, muon


def _rate(t):
  if t < 10:
    return 1e-3 + (0.01 - 1e-3) * t / 10
  return 0.01 * 0.5 * (1 + math.cos(math.pi * (t - 10) / 90))


def reference(update):
  """Returns the parameters after all steps, with a name for each block."""
  params = {
    n: np.float64(p) for n, p in made.by_block(made.first_params()).items()
  }
  memories = {n: {} for n in params}
  for t in range(made.STEPS):
    slopes = made.by_block({n: s[t] for n, s in made.slopes().items()})
    for n, p in params.items():
      decay = 0.1 * n.endswith('kernel')
      g = 0.3 * p + slopes[n]
      params[n] = p - _rate(t) * update(memories[n], g, p, t + 1, decay, n)
  return params


@pytest.mark.parametrize('update', REFERENCES, ids=lambda f: f.__name__)
def test_a_hundred_steps_are_the_formulas(update):
  found = made.trajectory(made.build(update.__name__))
  made.assert_steps(found, reference(update), 3e-5)


def test_adafactor_as_it_is_by_default_is_optaxs():
  """With optax, a stack of blocks has one scale and is clipped as one."""
  schedule = schedule_lib.build_schedule(made.SCHEDULE, made.STEPS)
  ours = config_lib.optimizer('adafactor', min_dim_size_to_factor=6)
  found, expected = (
    made.trajectory(optimizer)
    for optimizer in (
      optimizer_lib.build_optimizer(ours, schedule),
      optax.adafactor(schedule, min_dim_size_to_factor=6),
    )
  )
  for name, x in expected.items():
    differs = np.abs(found[name] - x).max()
    assert differs > 1e-4 if 'encoderblock' in name else differs < 1e-5
