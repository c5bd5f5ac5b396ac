"""Guards: one training step computes the same on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import tiny_step
from vit_jax import config as config_lib
from vit_jax import losses, models, sharding
from vit_jax.losses import classification
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib

BATCH, CLASSES, SIZE = 32, 5, (8, 12)


def _model(**overrides):
  sizes = dict(width=16, depth=1, heads=2, mlp_dim=32)
  return models.build('ViT-Ti/4', num_classes=CLASSES, **(sizes | overrides))


def _batches(count):
  rng = np.random.default_rng(0)
  return [
    {
      'image': rng.integers(0, 256, (BATCH, *SIZE, 3), dtype=np.uint8),
      'label': rng.integers(0, CLASSES, BATCH, dtype=np.int32),
      'mask': np.ones(BATCH, bool),
      'unreadable': np.zeros(BATCH, bool),
    }
    for _ in range(count)
  ]


def _params(model):
  """Returns initial parameters; a nonzero head lets gradients reach all."""
  params_key, _ = step_lib.root_keys(0, 'threefry')
  params = step_lib.init_params(model, params_key, (*SIZE, 3))
  kernel = params['head']['kernel']
  params['head']['kernel'] = 0.3 * jax.random.normal(
    params_key, kernel.shape, kernel.dtype
  )
  return params


def _optimizer(name='adam'):
  section = {'adam': config_lib.adam, 'sgd': config_lib.sgd}[name](
    weight_decay=0.1, clip_norm=1.0
  )
  schedule = optimizer_lib.build_schedule(
    config_lib.schedule('cosine', peak=1e-2, warmup_steps=2), 10
  )
  return optimizer_lib.build_optimizer(section, schedule), schedule


def _run(
  devices,
  steps,
  *,
  model=None,
  rng='threefry',
  optimizer='adam',
  watch=lambda state: None,
  prepare_batch=lambda layout: None,
  **kw,
):
  """Returns the metrics of each step and the final state."""
  model = model or _model(dropout_rate=0.1)
  optimizer, schedule = _optimizer(optimizer)
  state = step_lib.init_state(
    _params(model), optimizer, polyak=bool(kw.get('polyak_decay'))
  )
  _, dropout_key = step_lib.root_keys(0, rng)
  layout = sharding.Layout(sharding.make_mesh(devices))
  train_step = tiny_step.train_step(
    classification.mean_loss(model, losses.build('softmax')),
    optimizer,
    schedule,
    dropout_key,
    layout,
    state,
    model=model,
    prepare_batch=prepare_batch(layout),
    **kw,
  )
  history = []
  for batch in _batches(steps):
    state, metrics = train_step(state, sharding.put_batch(batch, layout.mesh))
    history.append(jax.device_get(metrics))
    watch(jax.device_get(state))
  return history, jax.device_get(state)


@pytest.mark.gate
def test_five_steps_on_8_devices_give_the_losses_of_one():
  one, one_state = _run(1, 5)
  eight, eight_state = _run(8, 5)
  for a, b in zip(one, eight, strict=True):
    np.testing.assert_allclose(b['loss'], a['loss'], rtol=1e-5)
    np.testing.assert_allclose(b['grad_norm'], a['grad_norm'], rtol=1e-4)
  flat, _ = jax.tree_util.tree_flatten_with_path(one_state.params)
  for (path, a), b in zip(
    flat, jax.tree.leaves(eight_state.params), strict=True
  ):
    name = jax.tree_util.keystr(path)
    # The gradient of the key's bias is only rounding noise, which Adam scales
    # up to whole steps.
    if "'key']['bias']" not in name:
      np.testing.assert_allclose(b, a, atol=1e-4, err_msg=name)


def test_accumulated_gradient_is_the_whole_batchs():
  model = _model()
  params, (batch,) = _params(model), _batches(1)
  results = []
  for accumulation_steps in (1, 4):
    function = tiny_step.loss_and_grad(
      classification.mean_loss(model, losses.build('softmax')),
      tiny_step.one_device(),
      jax.random.key(0),
      steps=accumulation_steps,
    )
    results.append(jax.jit(function)(params, batch, jax.random.key(0)))
  for one, four in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(four, one, rtol=1e-4, atol=1e-6)


def test_micro_batches_have_dropout_keys_of_their_own():
  # Four equal micro-batches: if they shared a dropout key, the accumulated loss
  # would be exactly that of the first micro-batch.
  model = _model(dropout_rate=0.5)
  params, (batch,) = _params(model), _batches(1)
  batch = {k: np.repeat(v[: BATCH // 4], 4, axis=0) for k, v in batch.items()}
  quarter = {k: v[::4] for k, v in batch.items()}
  key = jax.random.key(0)
  build = functools.partial(
    tiny_step.loss_and_grad,
    classification.mean_loss(model, losses.build('softmax')),
    tiny_step.one_device(),
    key,
    model=model,
  )
  (first, _), _ = jax.jit(build(steps=1))(params, quarter, key)
  (mean, _), _ = jax.jit(build(steps=4))(params, batch, key)
  assert abs(first - mean) > 1e-3


def test_dropout_differs_from_step_to_step_and_repeats_with_the_seed():
  model = _model(dropout_rate=0.5)
  optimizer, schedule = _optimizer()
  state = step_lib.init_state(_params(model), optimizer, polyak=False)
  (batch,) = _batches(1)
  step = tiny_step.train_step(
    classification.mean_loss(model, losses.build('softmax')),
    optimizer,
    schedule,
    jax.random.key(0),
    model=model,
  )
  _, at_0 = step(state, batch)
  _, again = step(state, batch)
  _, at_1 = step(state.replace(step=state.step + 1), batch)
  assert at_0['loss'] == again['loss']
  assert abs(at_0['loss'] - at_1['loss']) > 1e-3


def test_polyak_average_is_the_recursion():
  decay, start = 0.9, 2
  states = []
  _run(1, 5, polyak_decay=decay, polyak_start_step=start, watch=states.append)
  averages = [s.ema_params['head']['kernel'] for s in states]
  params = [s.params['head']['kernel'] for s in states]
  expected = params[1]
  # The average has not started yet.
  np.testing.assert_array_equal(averages[1], expected)
  for average, value in zip(averages[2:], params[2:], strict=True):
    expected = decay * expected + (1 - decay) * value
    np.testing.assert_allclose(average, expected, rtol=1e-5)


def test_metrics_are_what_they_say():
  model = _model()
  optimizer, schedule = _optimizer('sgd')
  params = _params(model)
  state = step_lib.init_state(params, optimizer, polyak=False)
  state = state.replace(step=state.step + 1)
  (batch,) = _batches(1)
  batch['unreadable'][:3] = True
  loss = losses.build('softmax')
  step = tiny_step.train_step(
    classification.mean_loss(model, loss),
    optimizer,
    schedule,
    jax.random.key(0),
  )
  new, metrics = step(state, batch)

  def mean_loss(p):
    images = batch['image'] / 127.5 - 1.0
    logits, _ = model.apply({'params': p}, jnp.float32(images), train=False)
    return loss(logits, batch['label']).mean(), logits

  (expected, logits), grads = jax.value_and_grad(mean_loss, has_aux=True)(
    params
  )
  norm = lambda tree: np.sqrt(  # noqa: E731
    sum(np.sum(np.square(x)) for x in jax.tree.leaves(tree))
  )
  update = jax.tree.map(jnp.subtract, new.params, params)
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


def _follow(optimizer, schedule, gradients):
  """Returns the state and metrics after steps with given gradients."""

  def objective(params, batch, key):
    loss = (params['kernel'] * batch['gradient']).sum()
    return loss, {'loss': loss}

  step = tiny_step.train_step(
    objective,
    optimizer,
    schedule,
    jax.random.key(0),
    polyak_decay=0.5,
    skip_nonfinite=True,
  )
  state = step_lib.init_state({'kernel': jnp.ones(2)}, optimizer, polyak=True)
  metrics = {}
  for gradient in gradients:
    state, metrics = step(state, {'gradient': jnp.float32(gradient)})
  return state, metrics


GOOD = [[3.0, -1.0], [0.5, 2.0], [1.0, 1.0]]
NAN, INF = [float('nan'), 1.0], [float('inf'), 1.0]


@pytest.mark.parametrize(
  'gradients', [[NAN] * 10 + GOOD, [GOOD[0], NAN, INF, *GOOD[1:]]]
)
@pytest.mark.parametrize(
  'name, changes',
  [
    ('adam', {}),
    ('adam', dict(clip_norm=1.0)),
    ('adam', dict(moment_dtype='bfloat16')),
    ('sgd', dict(clip_norm=1.0)),
  ],
)
def test_skipped_steps_neither_weaken_nor_strengthen_later_ones(
  name, changes, gradients
):
  schedule = optax.constant_schedule(1e-3)
  section = getattr(config_lib, name)(weight_decay=0.1)
  optimizer = optimizer_lib.build_optimizer({**section, **changes}, schedule)
  state, _ = _follow(optimizer, schedule, gradients)
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


def test_a_skipped_step_changes_only_its_number_and_the_schedules():
  optimizer, schedule = _optimizer()
  before, _ = _follow(optimizer, schedule, GOOD)
  for bad in (NAN, INF):
    after, metrics = _follow(optimizer, schedule, [*GOOD, bad])
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
    config_lib.adam(weight_decay=0.0), schedule
  )
  state, metrics = _follow(optimizer, schedule, [NAN] * 10 + GOOD[:1])
  assert metrics['skipped'] == 0
  # Adam's first update is the sign of the gradient, times 1e-3 in step 10.
  np.testing.assert_allclose(
    state.params['kernel'] - 1, [-1e-3, 1e-3], rtol=1e-4
  )


def test_optimizer_state_is_not_shared_with_the_average():
  optimizer, params = optax.sgd(0.1), {'w': jnp.ones(3)}
  state = step_lib.init_state(params, optimizer, polyak=False)
  assert state.ema_params == {}
  # Donation fails if two leaves share a buffer.
  state = step_lib.init_state(params, optimizer, polyak=True)
  assert (
    state.params['w'].unsafe_buffer_pointer()
    != state.ema_params['w'].unsafe_buffer_pointer()
  )
