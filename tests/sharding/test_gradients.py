"""Guards: every mesh computes the same gradients and update as one device.

Losses alone prove nothing: a wrong layout once gave the right loss and wrong
gradients.
"""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_step
from tests.models import naive
from vit_jax import config as config_lib
from vit_jax import losses, models, sharding
from vit_jax.losses import classification
from vit_jax.models import lora
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import schedule as schedule_lib
from vit_jax.training import step as step_lib
from vit_jax.training import tuning as tuning_lib

BATCH, CLASSES, SIZE = 16, 24, (8, 8)
IMAGES = tiny_step.batch(BATCH, SIZE, 3, CLASSES)
SIZES = dict(width=16, heads=4, mlp_dim=24)
VIT = dict(name='ViT-Ti/4', depth=1, representation_size=16, **SIZES)
# Kinds of models, in the smallest size that has all of their parts.
KINDS = {
  'plain': VIT,
  'dropout': VIT | {'dropout_rate': 0.1},
  'lanes': VIT | {'attention_implementation': 'lanes'},
  'lora': VIT,
  'recent': dict(
    **VIT | {'norm': 'rms', 'qk_norm': True, 'mlp': 'swiglu'},
    **dict(rotary='mixed', layer_scale=0.5),
  ),
  'axial': dict(
    **dict(name='ViT-Ti/4', depth=2, scan=True, remat='full', **SIZES),
    **dict(attention='axial', pooling='gap', dropout_rate=0.1),
    position_embedding='relative_per_head',
  ),
  'hybrid': dict(
    **dict(name='R50+ViT-B/16', depth=1, pooling='map', **SIZES),
    **dict(resnet_blocks=(1,), resnet_width=0.5, patch_size=1),
  ),
  'bit': dict(name='BiT-R50x1', blocks=(1,), width_factor=0.5),
}
# BiT normalises twice over few values, so any two devices differ by 6e-5.
TOLERANCES = {'bit': 3e-4}  # Relative to the largest entry of each array.


def _build(kind):
  return models.build(num_classes=CLASSES, **KINDS[kind])


@functools.cache
def _tuned(kind):
  """Returns random parameters, with LoRA's additions, and what trains."""
  params = naive.random_params(_build(kind), np.zeros((1, *SIZE, 3), 'f'))
  if kind in ('lora', 'recent'):
    options = dict(rank=4, alpha=2.0, targets=tuple(lora.TARGETS))
    made = lora.init(jax.random.key(4), params, **options)
    # New additions change nothing: B is zero.
    rng = np.random.default_rng(1)
    params[lora.FOLDER] = jax.tree.map(
      lambda x: x + rng.normal(0, 0.1, x.shape).astype('f'), made
    )
  return params, tuning_lib.build({'freeze': '', 'train': ''}, params)


def _one_step(kind, layout, accumulation_steps):
  """Returns the state after one step, and the metrics.

  Adam's moments tell the gradients.
  """
  # In its first step, Adam moves parameters equally far for gradients of any
  # size. A larger epsilon keeps differences due to rounding small.
  section = config_lib.optimizer('adamw', weight_decay=0.1, clip_norm=1.0)
  section.eps = 1e-3
  schedule = schedule_lib.build_schedule(
    config_lib.schedule('constant', peak=0.01, warmup_steps=0), 10
  )
  optimizer = optimizer_lib.build_optimizer(section, schedule)
  model = _build(kind)
  params, tuning = _tuned(kind)
  state = step_lib.init_state(params, optimizer, polyak=True, tuning=tuning)
  state = sharding.put_tree(state, layout.state(state))
  train_step = tiny_step.train_step(
    classification.mean_loss(model, losses.build('softmax')),
    optimizer,
    schedule,
    jax.random.key(2),
    layout,
    state,
    model=model,
    accumulation_steps=accumulation_steps,
    changes={'polyak.decay': 0.9},
    tuning=tuning,
  )
  return jax.device_get(
    train_step(state, sharding.put_batch(IMAGES, layout.mesh))
  )


@functools.cache
def _on_one_device(kind, accumulation_steps):
  layout = tiny_step.one_device(partition='compiler')
  return _one_step(kind, layout, accumulation_steps)


# Each kind of model once, and with them all values of mesh, shard, gather,
# partition and accumulation, beside several values of the others.
# Two layers, below, are enough for each way to split the work.
@pytest.mark.gate
@pytest.mark.parametrize(
  'kind, sizes, shard, options, steps',
  [
    ('dropout', (1, 2, 4), 'all', {'gather': 'micro_batch'}, 2),
    ('lora', (2, 4, 1), 'optimizer', {'partition': 'manual'}, 2),
    ('lanes', (2, 2, 2), 'optimizer', {}, 1),
    ('recent', (2, 2, 2), 'all', {}, 1),
    ('axial', (1, 2, 4), 'none', {}, 1),
    ('hybrid', (2, 2, 2), 'all', {}, 1),
    ('bit', (2, 4, 1), 'all', {'gather': 'micro_batch'}, 1),
  ],
  ids=str,
)
def test_a_mesh_computes_what_one_device_does(
  kind, sizes, shard, options, steps
):
  layout = sharding.Layout(sharding.make_mesh(*sizes), shard, **options)
  # Without dropout, micro-batches have the gradient of the whole batch.
  expected = _on_one_device(
    'plain' if kind == 'lanes' else kind, steps if kind == 'dropout' else 1
  )
  actual = _one_step(kind, layout, steps)
  flat, _ = jax.tree_util.tree_flatten_with_path(expected)
  for (path, one), many in zip(flat, jax.tree.leaves(actual), strict=True):
    name = jax.tree_util.keystr(path)
    error = np.abs(many - one).max()
    # A key's bias shifts all logits of a softmax equally, so its gradient is
    # zero except for rounding.
    zero = "'key']['bias']" in name
    scale = np.abs(one).max()
    # A metric may be zero.
    assert scale > 0 or name.startswith('[1]'), name
    tolerance = TOLERANCES.get(kind, 1e-5) * scale
    assert error <= (1e-6 if zero else tolerance), (name, error)


@pytest.mark.gate
def test_no_device_holds_scores_of_other_rows_or_heads():
  layout = sharding.Layout(
    sharding.make_mesh(2, 2, 2), 'none', partition='compiler'
  )
  model, (params, _) = _build('lanes'), _tuned('lanes')
  function = tiny_step.loss_and_grad(
    classification.mean_loss(model, losses.build('softmax')), layout, None
  )
  batch = sharding.put_batch(IMAGES, layout.mesh)
  text = jax.jit(function).lower(params, batch, jax.random.key(0)).compile()
  # The whole batch and its tokens are never gathered.
  assert not re.findall(rf'f32\[{BATCH},[^ ]* all-gather', text.as_text())


# Two layers in place of a model ----------------------------------------------

RNG = np.random.default_rng(0)
LAYERS = {
  'first': {'kernel': RNG.normal(size=(32, 64)).astype('f')},
  'head': {'kernel': RNG.normal(size=(64, 8)).astype('f')},
}
ROWS = {'x': RNG.normal(size=(64, 32)).astype('f')}


def _objective(params, batch, key):
  hidden = jnp.tanh(batch['x'] @ params['first']['kernel'])
  loss = jnp.square(hidden @ params['head']['kernel']).mean()
  return loss, {'drawn': jax.random.uniform(key)}


def _two_layers(layout, steps=1):
  """Returns the jitted loss and gradient, and its arguments on the mesh."""
  key = jax.random.key(3, impl='rbg')
  function = tiny_step.loss_and_grad(_objective, layout, key, steps=steps)
  params = sharding.put_tree(LAYERS, layout.params(LAYERS))
  return jax.jit(function), (params, sharding.put_batch(ROWS, layout.mesh), key)


def test_each_device_draws_its_own_numbers():
  layout = sharding.Layout(sharding.make_mesh(8, 1, 1), partition='manual')
  function, arguments = _two_layers(layout)
  (_, metrics), _ = function(*arguments)
  expected = np.mean(
    [
      jax.random.uniform(
        jax.random.fold_in(jax.random.fold_in(arguments[-1], device), 0)
      )
      for device in range(8)
    ]
  )
  np.testing.assert_allclose(metrics['drawn'], expected, rtol=1e-6)


def test_only_kernels_before_the_head_are_summed_in_bfloat16():
  mesh, one_device = sharding.make_mesh(2, 4, 1), tiny_step.one_device()
  alone, exact, split, rounded = (
    function(*arguments)[1]
    for function, arguments in (
      _two_layers(layout)
      for layout in (
        one_device,
        sharding.Layout(mesh, partition='manual', reduce_dtype='float32'),
        sharding.Layout(mesh, partition='compiler'),
        sharding.Layout(mesh, partition='manual', reduce_dtype='bfloat16'),
      )
    )
  )
  for found, layer, least, most in (
    *((exact, 'first', 0, 1e-5), (exact, 'head', 0, 1e-5)),
    *((split, 'first', 0, 1e-5), (split, 'head', 0, 1e-5)),
    *((rounded, 'first', 1e-4, 2**-7), (rounded, 'head', 0, 1e-5)),
  ):
    one, other = (np.asarray(x[layer]['kernel']) for x in (alone, found))
    assert other.dtype == np.float32
    assert least <= np.abs(other - one).max() / np.abs(one).max() < most


def test_default_dtype_of_gradient_sums():
  for platform, size, dtype in (
    *(('tpu', 128, 'bfloat16'), ('tpu', 256, 'float32')),
    ('gpu', 8, 'float32'),
  ):
    device = types.SimpleNamespace(platform=platform)
    mesh = types.SimpleNamespace(devices=np.array([device] * size), size=size)
    assert sharding.default_reduce_dtype(mesh) == dtype


@pytest.mark.parametrize(
  'operation, options, in_the_loop',
  [
    ('all-gather', {'partition': 'compiler', 'gather': 'step'}, False),
    ('all-gather', {'partition': 'compiler', 'gather': 'micro_batch'}, True),
    ('all-reduce', {'partition': 'manual'}, False),
  ],
)
def test_what_happens_in_every_micro_batch(operation, options, in_the_loop):
  layout = sharding.Layout(sharding.make_mesh(2, 4, 1), **options)
  function, arguments = _two_layers(layout, steps=2)
  text = function.lower(*arguments).compile().as_text()
  # The computations that a loop's body calls.
  computations = dict(
    re.findall(r'^%?([\w.\-]+) [^\n]*\{\n(.*?)^\}', text, re.M | re.S)
  )
  bodies, reached = re.findall(r'body=%?([\w.\-]+)', text), set()
  while bodies:
    name = bodies.pop()
    if name not in reached and name in computations:
      reached.add(name)
      bodies += re.findall(
        r'(?:calls|to_apply|body)=%?([\w.\-]+)', computations[name]
      )
  inside = sum(computations[n].count(f' {operation}(') for n in reached)
  everywhere = text.count(f' {operation}(')
  assert everywhere > 0
  assert inside == (everywhere if in_the_loop else 0)
