"""Guards: schedules, and a hundred steps of each recipe, against NumPy.

The reference of a recipe is in NumPy. The model is linear in the pixels, so its
gradients are written by hand. Data, initial weights and settings are the same
in both. The reference computes in float64, our steps in float32.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_step
from vit_jax import config as config_lib
from vit_jax import losses
from vit_jax.configs import finetune, pretrain
from vit_jax.losses import classification
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import schedule as schedule_lib
from vit_jax.training import step as step_lib


def _rates(name, steps, total_steps=110, **others):
  section = config_lib.schedule(
    name, **dict(peak=2.0, warmup_steps=10) | others
  )
  schedule = schedule_lib.build_schedule(section, total_steps)
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


def test_a_reciprocal_square_root():
  steps = [0, 5, 10, 40, 85, 90, 100, 110]
  np.testing.assert_allclose(
    _rates('rsqrt', steps, timescale=10, cooldown_steps=20),
    # 2 / sqrt(1 + (t - 10) / 10), and in the end (110 - t) / 20 of it.
    [0, 1, 2, 1, 2 / 8.5**0.5, 2 / 3, 0.5 * 2 / 10**0.5, 0],
    rtol=1e-6,
    atol=1e-7,
  )


def test_a_warm_up_from_a_rate_and_a_cool_down_to_one():
  for name in ('linear', 'cosine', 'constant', 'rsqrt'):
    found = _rates(name, [0, 5, 10], warmup_start=0.5)
    np.testing.assert_allclose(found, [0.5, 1.25, 2], rtol=1e-6)
  np.testing.assert_allclose(
    _rates('constant', [50, 90, 100, 110], cooldown_steps=20, end=0.5),
    [2, 2, 1.25, 0.5],
    rtol=1e-6,
  )
  with pytest.raises(ValueError, match=r'cooldown_steps=101 .*total_steps=110'):
    _rates('constant', [0], cooldown_steps=101)
  with pytest.raises(ValueError, match=r'warmup_epochs=2.0 .*num_examples'):
    _rates('constant', [0], warmup_steps=0, warmup_epochs=2.0)


def test_no_warmup_starts_at_the_peak():
  assert _rates('constant', [0], warmup_steps=0) == [2.0]


def test_a_warm_up_must_end():
  with pytest.raises(ValueError, match=r'warmup_steps=10 .*total_steps=10'):
    _rates('constant', [0], total_steps=10)


@pytest.mark.parametrize('name', ['adamw', 'sgd'])
def test_low_rank_additions_decay_as_their_kernels_do(name):
  section = config_lib.optimizer(
    name, weight_decay=0.3, weight_decay_params='kernels'
  )
  ones = jnp.ones(2)
  params = {
    'lora': {'out': {'kernel': {'a': ones, 'b': ones}}},
    'out': {'kernel': ones, 'bias': ones},
  }
  optimizer = optimizer_lib.build_optimizer(section, lambda _: 0.1)
  zero = jax.tree.map(jnp.zeros_like, params)
  updates, _ = optimizer.update(zero, optimizer.init(params), params)
  for part in 'ab':
    assert updates['lora']['out']['kernel'][part] == pytest.approx(-0.03)
  assert updates['out']['kernel'] == pytest.approx(-0.03)
  assert not updates['out']['bias'].any()


def test_a_gradient_within_the_norm_is_not_clipped():
  optimizer = optimizer_lib.build_optimizer(
    config_lib.optimizer('sgd', momentum=0.9, clip_norm=1.0), lambda _: 0.1
  )
  for size, factor in ((0.5, 1.0), (4.0, 0.25)):
    grads = {'a': jnp.array([0.6 * size]), 'b': jnp.array([0.8 * size])}
    updates, _ = optimizer.update(grads, optimizer.init(grads), grads)
    assert updates['a'] == pytest.approx(-0.06 * size * factor)


@pytest.mark.parametrize(
  'name, key',
  [
    ('adamw', 'mu_dtype'),
    ('lion', 'mu_dtype'),
    ('sgd', 'accumulator_dtype'),
    ('adafactor', 'dtype_momentum'),
  ],
)
def test_moment_dtype(name, key):
  momentum = {} if key == 'mu_dtype' else {'momentum': 0.9}
  section = config_lib.optimizer(name, **{key: 'bfloat16'}, **momentum)
  optimizer = optimizer_lib.build_optimizer(section, lambda _: 0.1)
  state = optimizer.init({'kernel': jnp.ones(2)})
  assert 'bfloat16' in {x.dtype.name for x in jax.tree.leaves(state)}


# A hundred steps -------------------------------------------------------------

STEPS, WARMUP, ROWS, CLASSES, PIXELS = 100, 10, 16, 5, 12


class Linear(nn.Module):
  """Logits are a linear function of the pixels."""

  @nn.compact
  def __call__(self, images, *, train):
    return nn.Dense(CLASSES, name='head')(images.reshape(len(images), -1)), {}


def _batches():
  rng = np.random.default_rng(0)
  truth = rng.normal(size=(PIXELS, CLASSES))
  for _ in range(STEPS):
    batch = tiny_step.batch(ROWS, (2, 2), 3, rng=rng)
    best = (batch['image'].reshape(ROWS, -1) @ truth).argmax(axis=1)
    yield batch | {'label': best.astype(np.int32)}


def _first_params():
  rng = np.random.default_rng(1)
  return {
    'kernel': rng.normal(size=(PIXELS, CLASSES)) / 4,
    'bias': rng.normal(size=CLASSES) / 4,
  }


def _ours(config):
  """Returns the loss and learning rate of each step of this config."""
  model = Linear()
  objective = classification.mean_loss(model, losses.build(**config.loss))
  schedule = schedule_lib.build_schedule(config.schedule, STEPS)
  optimizer = optimizer_lib.build_optimizer(config.optimizer, schedule)
  step = tiny_step.train_step(objective, optimizer, schedule, jax.random.key(0))
  params = jax.tree.map(jnp.float32, {'head': _first_params()})
  state = step_lib.init_state(params, optimizer, polyak=False)
  found = []
  for batch in _batches():
    state, metrics = step(state, batch)
    found.append((float(metrics['loss']), float(metrics['learning_rate'])))
  return np.array(found)


def _rate(decay, peak, end, t):
  """Returns min(1, t / w) * decay, as in the authors' public code."""
  progress = min(1, max(0, (t - WARMUP) / (STEPS - WARMUP)))
  rate = {
    'linear': end + (peak - end) * (1 - progress),
    'cosine': peak * 0.5 * (1 + math.cos(math.pi * progress)),
    'staircase': peak * 0.1 ** sum(t >= f * STEPS / 90 for f in (30, 60, 80)),
  }[decay]
  return rate * min(1, t / WARMUP)


def _loss_and_grads(kind, smoothing, params, batch):
  x = batch['image'].reshape(ROWS, -1).astype(np.float64) / 127.5 - 1
  logits = x @ params['kernel'] + params['bias']
  targets = np.eye(CLASSES)[batch['label']]
  if kind == 'softmax':
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    loss = -(targets * np.log(shares)).sum(axis=1).mean()
  else:
    targets = np.where(targets > 0, 1 - smoothing, smoothing)
    shares = 1 / (1 + np.exp(-logits))
    terms = targets * np.log(shares) + (1 - targets) * np.log(1 - shares)
    loss = -terms.sum(axis=1).mean()
  error = (shares - targets) / ROWS
  return loss, {'kernel': x.T @ error, 'bias': error.sum(axis=0)}


def _clipped(grads, norm):
  size = math.sqrt(sum((g**2).sum() for g in grads.values()))
  return {k: g * min(1, norm / size) for k, g in grads.items()}


def _reference(
  update, *, decay, peak, end=0.0, loss='sigmoid', smoothing=0.0, clip=0.0,
  weight_decay=0.0,
):  # fmt: skip
  params = _first_params()
  memory = {k: [np.zeros_like(p), np.zeros_like(p)] for k, p in params.items()}
  found = []
  for t, batch in enumerate(_batches()):
    value, grads = _loss_and_grads(loss, smoothing, params, batch)
    if clip:
      grads = _clipped(grads, clip)
    rate = _rate(decay, peak, end, t)
    found.append((value, rate))
    for k, p in params.items():
      m, v = memory[k]
      if update == 'momentum':
        m[:] = 0.9 * m + grads[k] + weight_decay * p
        p -= rate * m
      else:
        m[:] = 0.9 * m + 0.1 * grads[k]
        v[:] = 0.999 * v + 0.001 * grads[k] ** 2
        m_hat, v_hat = m / (1 - 0.9 ** (t + 1)), v / (1 - 0.999 ** (t + 1))
        p -= rate * (m_hat / (np.sqrt(v_hat) + 1e-8) + weight_decay * p)
  return np.array(found)


RECIPES = {
  'fine-tuning': (
    lambda: finetune.get_config('ViT-B/16,pets'),
    ('momentum', dict(decay='cosine', peak=0.03, loss='softmax', clip=1.0)),
  ),
  "BiT's on ImageNet": (
    lambda: pretrain.get_config('BiT-R50x1,imagenet2012'),
    (
      'momentum',
      dict(decay='staircase', peak=0.48, weight_decay=1e-4, loss='softmax'),
    ),
  ),
  'JFT': (
    lambda: pretrain.get_config('ViT-B/16,jft300m'),
    ('adam', dict(decay='linear', peak=8e-4, weight_decay=0.1)),
  ),
  'ImageNet-21k': (
    lambda: pretrain.get_config('ViT-B/16,imagenet21k'),
    ('adam', dict(decay='linear', peak=1e-3, end=1e-5, weight_decay=0.03)),
  ),
  'ImageNet': (
    lambda: pretrain.get_config('ViT-B/16,imagenet2012'),
    (
      'adam',
      dict(
        decay='cosine', peak=3e-3, weight_decay=0.3, clip=1.0, smoothing=1e-4
      ),
    ),
  ),
}


@pytest.mark.parametrize('recipe', RECIPES)
def test_a_hundred_steps_are_the_published_updates(recipe):
  config, (update, settings) = RECIPES[recipe]
  config = config()
  config.schedule.warmup_steps = WARMUP
  found, expected = _ours(config), _reference(update, **settings)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
  losses_, rates = found.T
  # The model learns, and the learning rate rises from 0 and falls again.
  assert losses_[-10:].mean() < losses_[:10].mean()
  assert rates[0] == 0
  assert rates[WARMUP] == pytest.approx(settings['peak'])
  assert 0 < rates[-1] < settings['peak'] / 40
