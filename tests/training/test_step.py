"""Guards: gradients, metrics, averages and skipped steps of one step."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import tiny_step
from tests.models import naive
from vit_jax import config as config_lib
from vit_jax import losses
from vit_jax.losses import classification
from vit_jax.models.shared import Dropout
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import schedule as schedule_lib
from vit_jax.training import step as step_lib

CLASSES, SIZE = 5, (8, 12)
BATCH = tiny_step.batch(8, SIZE, 3, CLASSES)


class Classifier(nn.Module):
  """Two layers with dropout between them, which are quick to compile."""

  dropout_rate: float = 0.0

  @nn.compact
  def __call__(self, images, *, train):
    hidden = nn.gelu(nn.Dense(16)(images.reshape(len(images), -1)))
    dropped = Dropout(self.dropout_rate, deterministic=not train)(hidden)
    return nn.Dense(CLASSES)(dropped), {}


def _params(model):
  """Returns random parameters, so that gradients reach all of them."""
  images = np.zeros((1, *SIZE, 3), np.float32)
  return naive.random_params(model, images, train=False)


MOMENTUM = {'adamw': {}, 'sgd': {'momentum': 0.9}}


def _optimizer(name='adamw'):
  section = config_lib.optimizer(
    name, weight_decay=0.1, clip_norm=1.0, **MOMENTUM[name]
  )
  schedule = schedule_lib.build_schedule(
    config_lib.schedule('cosine', peak=1e-2, warmup_steps=2), 10
  )
  return optimizer_lib.build_optimizer(section, schedule), schedule


def test_accumulated_gradient_is_the_whole_batchs():
  model = Classifier()
  objective = classification.mean_loss(model, losses.build('softmax'))
  results = []
  for steps in (1, 4):
    function = tiny_step.loss_and_grad(
      objective, tiny_step.one_device(), jax.random.key(0), steps=steps
    )
    results.append(jax.jit(function)(_params(model), BATCH, jax.random.key(0)))
  for one, four in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(four, one, rtol=1e-4, atol=1e-6)


def test_micro_batches_have_keys_of_their_own():
  def objective(params, batch, key):
    loss = params['scale'] * jax.random.uniform(key)
    return loss, {'loss': loss, 'square': loss**2}

  function = tiny_step.loss_and_grad(
    objective, tiny_step.one_device(), jax.random.key(0), steps=4
  )
  params = {'scale': jnp.ones(())}
  (loss, metrics), grads = jax.jit(function)(params, BATCH, jax.random.key(0))
  assert grads['scale'] == pytest.approx(loss)
  # With the same key, all micro-batches would have the same loss.
  assert metrics['square'] - loss**2 > 1e-3


def test_dropout_differs_from_step_to_step_and_repeats_with_the_seed():
  model = Classifier(dropout_rate=0.5)
  optimizer, schedule = _optimizer()
  state = step_lib.init_state(_params(model), optimizer, polyak=False)
  step = tiny_step.train_step(
    classification.mean_loss(model, losses.build('softmax')),
    optimizer,
    schedule,
    jax.random.key(0),
    model=model,
  )
  _, at_0 = step(state, BATCH)
  _, again = step(state, BATCH)
  _, at_1 = step(state.replace(step=state.step + 1), BATCH)
  assert at_0['loss'] == again['loss']
  assert abs(at_0['loss'] - at_1['loss']) > 1e-3


def test_metrics_are_what_they_say():
  model, batch = Classifier(), BATCH
  optimizer, schedule = _optimizer('sgd')
  params = _params(model)
  state = step_lib.init_state(params, optimizer, polyak=False)
  state = state.replace(step=state.step + 1)
  batch['unreadable'][:3] = True
  loss = losses.build('softmax')
  step = tiny_step.train_step(
    classification.mean_loss(model, loss),
    optimizer,
    schedule,
    jax.random.key(0),
  )
  new, metrics = step(state, batch)

  @jax.jit
  def reference(p):
    images = batch['image'] / 127.5 - 1.0
    logits, _ = model.apply({'params': p}, jnp.float32(images), train=False)
    return loss(logits, batch['label']).mean(), logits

  expected, logits = reference(params)
  grads = jax.jit(jax.grad(lambda p: reference(p)[0]))(params)
  norm = lambda tree: np.sqrt(  # noqa: E731
    sum(np.sum(np.square(x)) for x in jax.tree.leaves(tree))
  )
  update = jax.tree.map(np.subtract, new.params, params)
  np.testing.assert_allclose(metrics['loss'], expected, rtol=1e-5)
  np.testing.assert_allclose(
    metrics['accuracy'], np.mean(logits.argmax(-1) == batch['label'])
  )
  np.testing.assert_allclose(metrics['grad_norm'], norm(grads), rtol=1e-4)
  np.testing.assert_allclose(metrics['param_norm'], norm(new.params), rtol=1e-5)
  np.testing.assert_allclose(
    metrics['update_norm'], norm(update), rtol=1e-2, atol=1e-6
  )
  assert metrics['unreadable'] == 3
  np.testing.assert_allclose(metrics['learning_rate'], 0.5e-2)  # Step 1 of 2.


# Averages and skipped steps --------------------------------------------------


def _follow(optimizer, schedule, gradients, **changes):
  """Returns the states after steps with given gradients, and the metrics."""

  def objective(params, batch, key):
    loss = (params['kernel'] * batch['gradient']).sum()
    return loss, {'loss': loss}

  step = tiny_step.train_step(
    objective,
    optimizer,
    schedule,
    jax.random.key(0),
    changes={'guard.nonfinite': 'skip', 'polyak.decay': 0.5} | changes,
  )
  state = step_lib.init_state({'kernel': jnp.ones(2)}, optimizer, polyak=True)
  states, metrics = [], {}
  for gradient in gradients:
    state, metrics = step(state, {'gradient': jnp.float32(gradient)})
    states.append(jax.device_get(state))
  return states, metrics


GOOD = [[3.0, -1.0], [0.5, 2.0], [1.0, 1.0]]
NAN, INF = [float('nan'), 1.0], [float('inf'), 1.0]


def test_polyak_average_is_the_recursion():
  decay, start = 0.9, 2
  states, _ = _follow(
    *(*_optimizer(), GOOD + GOOD),
    **{'polyak.decay': decay, 'polyak.start_step': start},
  )
  averages = [s.ema_params['kernel'] for s in states]
  params = [s.params['kernel'] for s in states]
  expected = params[1]
  # The average has not started yet.
  np.testing.assert_array_equal(averages[1], expected)
  for average, value in zip(averages[2:], params[2:], strict=True):
    expected = decay * expected + (1 - decay) * value
    np.testing.assert_allclose(average, expected, rtol=1e-5)
    assert not np.array_equal(average, value)


@pytest.mark.parametrize(
  'name, changes, gradients',
  [
    ('adamw', {}, [NAN] * 10 + GOOD),
    ('adamw', dict(clip_norm=1.0), [GOOD[0], NAN, INF, *GOOD[1:]]),
    ('adamw', dict(mu_dtype='bfloat16'), [GOOD[0], NAN, INF, *GOOD[1:]]),
    ('sgd', dict(clip_norm=1.0), [NAN] * 10 + GOOD),
  ],
)
def test_skipped_steps_neither_weaken_nor_strengthen_later_ones(
  name, changes, gradients
):
  schedule = optax.constant_schedule(1e-3)
  section = config_lib.optimizer(
    name, weight_decay=0.1, **MOMENTUM[name], **changes
  )
  optimizer = optimizer_lib.build_optimizer(section, schedule)
  (*_, state), _ = _follow(optimizer, schedule, gradients)
  # Optax's own way to skip steps.
  reference = optax.apply_if_finite(optimizer, 100)
  update = jax.jit(reference.update)
  params = average = {'kernel': jnp.ones(2)}
  inner = reference.init(params)
  for gradient in gradients:
    updates, inner = update({'kernel': jnp.float32(gradient)}, inner, params)
    params = optax.apply_updates(params, updates)
    if inner.last_finite:
      average = jax.tree.map(lambda a, p: (a + p) / 2, average, params)
  for got, expected in ((state.params, params), (state.ema_params, average)):
    np.testing.assert_allclose(got['kernel'], expected['kernel'], rtol=1e-6)


@pytest.mark.parametrize('bad', [NAN, INF])
def test_a_skipped_step_changes_only_its_number_and_the_schedules(bad):
  (*_, before, after), metrics = _follow(*_optimizer(), [*GOOD, bad])
  assert metrics['skipped'] == 1
  changed = [
    (n.dtype, int(n - o))
    for n, o in zip(*map(jax.tree.leaves, (after, before)), strict=True)
    if not np.array_equal(n, o)
  ]
  assert changed == [(jnp.int32, 1)] * 2


def test_the_schedule_goes_on_in_skipped_steps():
  schedule = optax.linear_schedule(2e-3, 0.0, 20)
  optimizer = optimizer_lib.build_optimizer(
    config_lib.optimizer('adamw', weight_decay=0.0), schedule
  )
  (*_, state), metrics = _follow(optimizer, schedule, [NAN] * 10 + GOOD[:1])
  assert metrics['skipped'] == 0
  # Adam's first update is the sign of the gradient, times 1e-3 in step 10.
  np.testing.assert_allclose(
    state.params['kernel'] - 1, [-1e-3, 1e-3], rtol=1e-4
  )
