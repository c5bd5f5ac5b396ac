"""Guards: every mesh computes the same gradients and update as one device.

Losses alone prove nothing: a wrong layout once gave the right loss and wrong
gradients.
"""

import dataclasses
import functools
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import tiny_step
from vit_jax import config as config_lib
from vit_jax import losses, models, sharding
from vit_jax.losses import classification
from vit_jax.models import lora, shared
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib
from vit_jax.training import tuning as tuning_lib

BATCH, CLASSES, SIZE = 16, 24, (8, 8)


@dataclasses.dataclass(frozen=True)
class Model:
  """A kind of model, in the smallest size that has all of its parts."""

  name: str
  overrides: tuple[tuple[str, Any], ...]
  tolerance: float = 1e-5  # Relative to the largest entry of each array.
  lora_rank: int = 0

  def build(self):
    return models.build(self.name, num_classes=CLASSES, **dict(self.overrides))


SIZES = (('width', 32), ('heads', 4), ('mlp_dim', 48), ('dropout_rate', 0.1))
VIT = Model('ViT-Ti/4', (*SIZES, ('depth', 1), ('representation_size', 16)))
NO_DROPOUT = Model(VIT.name, (*VIT.overrides, ('dropout_rate', 0.0)))
OTHERS = [
  Model(
    'ViT-Ti/4',
    (*SIZES, ('depth', 2), ('scan', True), ('remat', 'full'))
    + (('attention', 'axial'), ('pooling', 'gap'))
    + (('position_embedding', 'relative_per_head'),),
  ),
  Model(
    'R50+ViT-B/16',
    (*SIZES, ('depth', 1), ('resnet_blocks', (1,)), ('patch_size', (1, 1)))
    + (('pooling', 'map'), ('resnet_width', 0.5)),
  ),
]
# BiT normalises twice over few values, so any two devices differ by 6e-5.
BIT = Model(
  'BiT-R50x1', (('blocks', (1, 1)), ('width_factor', 0.5)), tolerance=3e-4
)


@functools.cache
def _params(kind):
  """Returns noisy initial parameters: a zero head would block gradients."""
  model = kind.build()
  return _noisy(step_lib.init_params(model, jax.random.key(0), (*SIZE, 3)))


def _noisy(params):
  def noisy(path, x):
    key = jax.random.fold_in(jax.random.key(1), hash_of(path))
    return x + 0.1 * jax.random.normal(key, x.shape, x.dtype)

  return jax.tree_util.tree_map_with_path(noisy, params)


@functools.cache
def _tuned(kind):
  """Returns a model's parameters, with noisy additions, and what trains."""
  params = _params(kind)
  if kind.lora_rank:
    made = lora.init(
      jax.random.key(4),
      params,
      rank=kind.lora_rank,
      alpha=2.0,
      targets=tuple(lora.TARGETS),
    )
    params = params | {lora.FOLDER: _noisy(made)}
  section = {'freeze': '', 'train': ''}
  return params, tuning_lib.build(section, params)


def hash_of(path):
  return sum(map(ord, jax.tree_util.keystr(path)))


def _batch():
  rng = np.random.default_rng(0)
  return {
    'image': rng.integers(0, 256, (BATCH, *SIZE, 3), dtype=np.uint8),
    'label': rng.integers(0, CLASSES, BATCH, dtype=np.int32),
    'mask': np.ones(BATCH, bool),
    'unreadable': np.zeros(BATCH, bool),
  }


def _keep_gradients():
  """Returns a transformation that keeps the last gradient in its state."""
  return optax.GradientTransformation(
    init=lambda params: {'gradient': jax.tree.map(jnp.zeros_like, params)},
    update=lambda grads, state, params: (grads, {'gradient': grads}),
  )


def one_step(kind, layout, accumulation_steps):
  """Returns the state after one step (with the gradients), and the metrics."""
  # In its first step, Adam moves parameters equally far for gradients of any
  # size. A larger epsilon keeps differences due to rounding small.
  section = config_lib.adam(weight_decay=0.1, clip_norm=1.0)
  section.eps = 1e-3
  schedule = optimizer_lib.build_schedule(
    config_lib.schedule('constant', peak=0.01, warmup_steps=0), 10
  )
  optimizer = optax.chain(
    _keep_gradients(), optimizer_lib.build_optimizer(section, schedule)
  )
  model = kind.build()
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
    polyak_decay=0.9,
    tuning=tuning,
  )
  return jax.device_get(
    train_step(state, sharding.put_batch(_batch(), layout.mesh))
  )


@functools.cache
def on_one_device(kind, accumulation_steps):
  layout = tiny_step.one_device(partition='compiler')
  return one_step(kind, layout, accumulation_steps)


def assert_equal_on(layout, kind, accumulation_steps, expected):
  actual = one_step(kind, layout, accumulation_steps)
  flat, _ = jax.tree_util.tree_flatten_with_path(expected)
  assert len(flat) > 50
  for (path, one), many in zip(flat, jax.tree.leaves(actual), strict=True):
    name = jax.tree_util.keystr(path)
    error = np.abs(many - one).max()
    # A key's bias shifts all logits of a softmax equally, so its gradient is
    # zero except for rounding.
    zero = "'key']['bias']" in name
    scale = np.abs(one).max()
    # A metric may be zero.
    assert scale > 0 or name.startswith('[1]'), name
    assert error <= (1e-6 if zero else kind.tolerance * scale), (name, error)


LORA = dataclasses.replace(NO_DROPOUT, lora_rank=4)
LANES = dataclasses.replace(
  NO_DROPOUT,
  overrides=(*NO_DROPOUT.overrides, ('attention_implementation', 'lanes')),
)
MICRO_BATCH = {'shard': 'all', 'gather': 'micro_batch'}
_gate = functools.partial(pytest.param, marks=pytest.mark.gate)


@pytest.mark.parametrize(
  'kind, sizes, options, steps',
  [
    (VIT, (2, 4, 1), {'shard': 'optimizer'}, 1),
    (VIT, (1, 2, 4), {'shard': 'all'}, 1),
    (NO_DROPOUT, (2, 4, 1), {'shard': 'all', 'partition': 'manual'}, 1),
    _gate(VIT, (2, 2, 2), MICRO_BATCH, 2),
    _gate(
      NO_DROPOUT, (2, 4, 1), {'shard': 'optimizer', 'partition': 'manual'}, 2
    ),
    *(_gate(kind, (2, 2, 2), {}, 1) for kind in OTHERS),
    _gate(BIT, (2, 4, 1), {}, 1),
    _gate(LANES, (2, 2, 2), {}, 1),
    _gate(LORA, (2, 4, 1), {'partition': 'manual'}, 2),
  ],
  ids=str,
)
def test_a_mesh_computes_what_one_device_does(kind, sizes, options, steps):
  layout = sharding.Layout(sharding.make_mesh(*sizes), **options)
  plain = NO_DROPOUT if kind is LANES else kind
  assert_equal_on(layout, kind, steps, on_one_device(plain, steps))


def _compiled(layout, kind=NO_DROPOUT, steps=1):
  model = kind.build()
  function = tiny_step.loss_and_grad(
    classification.mean_loss(model, losses.build('softmax')),
    layout,
    jax.random.key(0),
    model=model,
    steps=steps,
  )
  params = sharding.put_tree(_params(VIT), layout.params(_params(VIT)))
  batch = sharding.put_batch(_batch(), layout.mesh)
  return jax.jit(function).lower(params, batch, jax.random.key(0)).compile()


@pytest.mark.parametrize('sizes', [(2, 4, 1), (2, 2, 2)])
def test_no_device_holds_scores_of_other_rows_or_heads(sizes):
  layout = sharding.Layout(
    sharding.make_mesh(*sizes), 'none', partition='compiler'
  )
  text = _compiled(layout, LANES).as_text()
  # The whole batch and its tokens are never gathered.
  assert not re.findall(rf'f32\[{BATCH},[^ ]* all-gather', text)


@pytest.mark.gate
def test_each_device_draws_its_own_dropout():
  layout = sharding.Layout(sharding.make_mesh(8, 1, 1), partition='manual')
  key = jax.random.key(3, impl='rbg')
  alike = {
    name: np.repeat(rows[:1], 8, axis=0) for name, rows in _batch().items()
  }

  def loss(layout, batch):
    model = VIT.build()
    function = tiny_step.loss_and_grad(
      classification.mean_loss(model, losses.build('softmax')),
      layout,
      key,
      model=model,
    )
    return float(jax.jit(function)(_params(VIT), batch, key)[0][0])

  # With the mask of the first device on all of them, the losses would be equal.
  first = jax.random.fold_in(jax.random.fold_in(key, 0), 0)
  logits, _ = VIT.build().apply(
    {'params': _params(VIT)},
    shared.normalize(alike['image'][:1]),
    train=True,
    rngs={'dropout': first},
  )
  alone = losses.build('softmax')(logits, alike['label'][:1])[0]
  assert abs(loss(layout, alike) - float(alone)) > 1e-3


@pytest.mark.gate
def test_gradients_summed_in_bfloat16_are_close_to_one_device():
  layout = sharding.Layout(
    sharding.make_mesh(2, 4, 1), partition='manual', reduce_dtype='bfloat16'
  )
  exact = on_one_device(NO_DROPOUT, 1)[0].opt_state[0]['gradient']
  rounded = one_step(NO_DROPOUT, layout, 1)[0].opt_state[0]['gradient']
  for layer, least, most in (
    ('pre_logits', 1e-4, 2**-7),
    # The class head's gradients are computed and summed in float32.
    ('head', 0, 1e-5),
  ):
    one, other = exact[layer]['kernel'], rounded[layer]['kernel']
    assert other.dtype == np.float32
    assert least <= np.abs(other - one).max() / np.abs(one).max() < most


@pytest.mark.parametrize(
  'platform, devices, dtype',
  [
    ('tpu', 128, 'bfloat16'),
    ('tpu', 256, 'float32'),
    ('gpu', 8, 'float32'),
  ],
)
def test_default_dtype_of_gradient_sums(platform, devices, dtype):
  device = types.SimpleNamespace(platform=platform)
  mesh = types.SimpleNamespace(
    devices=np.array([device] * devices), size=devices
  )
  assert sharding.default_reduce_dtype(mesh) == dtype


@pytest.mark.gate
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
  text = _compiled(layout, steps=2).as_text()
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
