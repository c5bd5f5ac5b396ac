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
from jax.experimental.pallas.ops.tpu import splash_attention

from vit_jax import config as config_lib
from vit_jax import models, sharding
from vit_jax.models import images as images_lib
from vit_jax.models import lora
from vit_jax.runtime import jax_internals
from vit_jax.training import losses
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib
from vit_jax.training import tuning as tuning_lib

BATCH, CLASSES, SIZE = 32, 24, (8, 8)
MESHES = [
  (data, fsdp, 8 // data // fsdp)
  for data in (8, 4, 2, 1)
  for fsdp in (8, 4, 2, 1)
  if data * fsdp <= 8
]
assert len(MESHES) == 10
# Without an axis `fsdp` all choices are the same (see test_layout.py).
CASES = [
  (mesh, shard, gather)
  for mesh in MESHES
  for shard, gather in (
    ('none', 'step'),
    ('optimizer', 'step'),
    ('all', 'step'),
    ('all', 'micro_batch'),
  )
  if mesh[1] > 1 or shard == 'none'
]


def _accumulated(cases):
  """Adds 1 and 4 micro-batches to each case; one of the two is marked slow.

  The two differ only in the loop over micro-batches, so one of them is enough.
  """
  return [
    pytest.param(
      *(*case, steps),
      id='-'.join(map(str, (*case, steps))).replace(' ', ''),
      # The full product takes minutes.
      marks=[pytest.mark.slow] * (steps != (4, 1)[index % 2]),
    )
    for index, case in enumerate(cases)
    for steps in (1, 4)
  ]


@dataclasses.dataclass(frozen=True)
class Model:
  """A kind of model, in the smallest size that has all of its parts."""

  name: str
  overrides: tuple[tuple[str, Any], ...]
  tolerance: float = 1e-5  # Relative to the largest entry of each array.
  lora_rank: int = 0
  freeze: str = ''

  def build(self):
    return models.build(self.name, num_classes=CLASSES, **dict(self.overrides))


SIZES = (('width', 32), ('heads', 8), ('mlp_dim', 48), ('dropout_rate', 0.1))
VIT = Model('ViT-Ti/4', (*SIZES, ('depth', 1), ('representation_size', 16)))
NO_DROPOUT = Model(VIT.name, (*VIT.overrides, ('dropout_rate', 0.0)))
DEEPER = Model('ViT-Ti/4', (*SIZES, ('depth', 2)))
OTHERS = {
  'scan': Model(
    'ViT-Ti/4', (*SIZES, ('depth', 3), ('scan', True), ('pooling', 'map'))
  ),
  'remat, axial, relative per head': Model(
    'ViT-Ti/4',
    (*SIZES, ('depth', 1), ('remat', 'full'), ('attention', 'axial'))
    + (('position_embedding', 'relative_per_head'), ('pooling', 'gap')),
  ),
  'hybrid': Model(
    'R50+ViT-B/16',
    (*SIZES, ('depth', 1), ('resnet_blocks', (1,)), ('patch_size', (1, 1))),
  ),
  # BiT normalises twice over few values, so any two devices differ by 6e-5.
  'BiT': Model('BiT-R50x1', (('blocks', (1, 1)),), tolerance=3e-4),
}


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
  section = {'freeze': kind.freeze, 'train': ''}
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
  train_step = step_lib.make_train_step(
    model,
    losses.mean_loss(model, losses.build('softmax')),
    optimizer,
    schedule,
    jax.random.key(2),
    accumulation_steps=accumulation_steps,
    polyak_decay=0.9,
    layout=layout,
    tuning=tuning,
  )
  state = step_lib.init_state(params, optimizer, polyak=True, tuning=tuning)
  if layout is None:
    return jax.device_get(jax.jit(train_step)(state, _batch()))
  state = sharding.put_tree(state, layout.state(state))
  train_step = step_lib.jit_train_step(train_step, layout, state)
  return jax.device_get(
    train_step(state, sharding.put_batch(_batch(), layout.mesh))
  )


@functools.cache
def on_one_device(kind, accumulation_steps):
  return one_step(kind, None, accumulation_steps)


def assert_equal_on(layout, kind, accumulation_steps, expected=None):
  actual = one_step(kind, layout, accumulation_steps)
  expected = expected or on_one_device(kind, accumulation_steps)
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


@pytest.mark.parametrize(
  'sizes, shard, gather, accumulation_steps', _accumulated(CASES)
)
def test_every_gradient_and_update_equals_that_of_one_device(
  sizes, shard, gather, accumulation_steps
):
  layout = sharding.build(
    **dict(zip(('data', 'fsdp', 'tensor'), sizes, strict=True)),
    shard=shard,
    gather=gather,
  )
  # Deeper models take longer to compile.
  kind = DEEPER if sizes == (2, 2, 2) else VIT
  assert_equal_on(layout, kind, accumulation_steps)


@pytest.mark.parametrize(
  'sizes, shard, accumulation_steps',
  _accumulated(
    (sizes, shard)
    for sizes, shard, gather in CASES
    if sizes[2] == 1 and gather == 'step'
  ),
)
def test_manual_partitioning_equals_one_device(
  sizes, shard, accumulation_steps
):
  mesh = sharding.make_mesh(*sizes)
  layout = sharding.Layout(mesh, shard, partition='manual')
  assert_equal_on(layout, NO_DROPOUT, accumulation_steps)


@pytest.mark.parametrize(
  'gather', ['step', pytest.param('micro_batch', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('name', OTHERS)
def test_other_models_on_a_mixed_mesh(name, gather):
  tensor = 1 if name == 'BiT' else 2
  layout = sharding.build(
    data=2, fsdp=-1, tensor=tensor, shard='all', gather=gather
  )
  assert_equal_on(layout, OTHERS[name], 2)


LORA = dataclasses.replace(NO_DROPOUT, lora_rank=4)
STACKED_LORA = dataclasses.replace(OTHERS['scan'], lora_rank=4)
FROZEN = dataclasses.replace(
  NO_DROPOUT, freeze='embedding|Transformer/.*/(query|out|Dense_0)'
)


def _slow(*values):
  return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  'kind, sizes, options, steps',
  [
    (LORA, (2, 2, 2), {}, 4),
    (LORA, (2, 4, 1), {'partition': 'manual'}, 4),
    # Each of these takes seconds, and is a mixture of the two above.
    _slow(LORA, (1, 1, 8), {}, 1),
    _slow(LORA, (2, 4, 1), {'gather': 'micro_batch'}, 4),
    _slow(STACKED_LORA, (2, 2, 2), {}, 2),
    _slow(STACKED_LORA, (1, 4, 2), {'gather': 'micro_batch'}, 2),
    _slow(FROZEN, (2, 2, 2), {}, 4),
    _slow(FROZEN, (2, 4, 1), {'partition': 'manual'}, 1),
  ],
)
def test_training_less_of_a_model(kind, sizes, options, steps):
  layout = sharding.Layout(sharding.make_mesh(*sizes), **options)
  trained, frozen = _tuned(kind)[1].split(_tuned(kind)[0])
  assert trained
  assert frozen
  assert_equal_on(layout, kind, steps)


@pytest.mark.parametrize('sizes', [(2, 2, 2), (2, 4, 1)])
def test_lanes_attention_on_a_mesh_equals_one_device(sizes):
  layout = sharding.Layout(sharding.make_mesh(*sizes))
  option = ('attention_implementation', 'lanes')
  lanes = Model(NO_DROPOUT.name, (*NO_DROPOUT.overrides, option))
  assert_equal_on(layout, lanes, 2, expected=on_one_device(NO_DROPOUT, 2))


def test_splash_attention_on_a_mesh_equals_one_device(monkeypatch):
  make = functools.partial(
    splash_attention.make_splash_mha_single_device, interpret=True
  )
  monkeypatch.setattr(splash_attention, 'make_splash_mha_single_device', make)
  layout = sharding.Layout(sharding.make_mesh(2, 2, 2))
  option = ('attention_implementation', 'splash')
  splash = Model(NO_DROPOUT.name, (*NO_DROPOUT.overrides, option))
  assert_equal_on(layout, splash, 1, expected=on_one_device(NO_DROPOUT, 1))


@pytest.mark.parametrize('sizes', [(2, 4, 1), (2, 2, 2)])
def test_no_device_holds_scores_of_other_rows_or_heads(sizes):
  mesh = sharding.make_mesh(*sizes)
  option = ('attention_implementation', 'lanes')
  model = Model(VIT.name, (*NO_DROPOUT.overrides, option)).build()

  def encode(params, images):
    with sharding.use_mesh(mesh):
      return model.apply({'params': params}, images)[0]

  rows = sharding.batch_sharding(mesh)
  params = _params(VIT)
  images = jax.ShapeDtypeStruct((BATCH, *SIZE, 3), np.float32, sharding=rows)
  text = jax.jit(encode).lower(params, images).compile().as_text()
  # Tokens and scores have at least three dimensions; parameters are not split.
  assert not re.findall(r'f32\[\d+,\d+,\d+[^ ]* all-gather', text)


def test_each_device_draws_its_own_dropout():
  layout = sharding.Layout(sharding.make_mesh(8, 1, 1), partition='manual')
  model = VIT.build()
  key = jax.random.key(3, impl='rbg')
  one = {name: rows[:1] for name, rows in _batch().items()}
  alike = {name: np.repeat(rows, 8, axis=0) for name, rows in one.items()}

  def loss(layout, batch):
    function = step_lib.make_loss_and_grad(
      model, losses.mean_loss(model, losses.build('softmax')), 1, layout
    )
    (value, _), _ = jax.jit(function)(_params(VIT), batch, key)
    return float(value)

  # With equal masks, the mean over equal rows would be one device's loss.
  first = jax.random.fold_in(jax.random.fold_in(key, 0), 0)
  logits, _ = model.apply(
    {'params': _params(VIT)},
    images_lib.normalize(one['image']),
    train=True,
    rngs={'dropout': first},
  )
  alone = losses.build('softmax')(logits, one['label'])[0]
  assert abs(loss(layout, alike) - float(alone)) > 1e-3


def _summed_in_bfloat16():
  return sharding.build(
    data=2,
    fsdp=4,
    tensor=1,
    shard='all',
    gather='step',
    reduce_dtype='bfloat16',
  )


def test_gradients_summed_in_bfloat16_are_close_to_one_device():
  layout = _summed_in_bfloat16()
  exact = one_step(NO_DROPOUT, None, 1)[0].opt_state[0]['gradient']
  rounded = one_step(NO_DROPOUT, layout, 1)[0].opt_state[0]['gradient']

  def error(*names):
    one, other = (
      functools.reduce(lambda tree, name: tree[name], names, tree)
      for tree in (exact, rounded)
    )
    assert other.dtype == np.float32
    return np.abs(other - one).max() / np.abs(one).max()

  assert 1e-4 < error('pre_logits', 'kernel') < 2**-7
  # The class head's gradients are computed and summed in float32.
  assert error('head', 'kernel') < 1e-5
  assert error('pre_logits', 'bias') < 1e-5


@pytest.mark.parametrize(
  'platform, devices, dtype',
  [
    ('tpu', 8, 'bfloat16'),
    ('tpu', 128, 'bfloat16'),
    ('tpu', 256, 'float32'),
    ('gpu', 8, 'float32'),
    ('cpu', 8, 'float32'),
  ],
)
def test_default_dtype_of_gradient_sums(platform, devices, dtype):
  device = types.SimpleNamespace(platform=platform)
  mesh = types.SimpleNamespace(
    devices=np.array([device] * devices), size=devices
  )
  assert sharding.default_reduce_dtype(mesh) == dtype


def test_parameters_that_are_cast_anyway_are_gathered_in_bfloat16():
  layout = _summed_in_bfloat16()
  kind = Model(NO_DROPOUT.name, (*NO_DROPOUT.overrides, ('dtype', 'bfloat16')))
  model = kind.build()
  function = step_lib.make_loss_and_grad(
    model, losses.mean_loss(model, losses.build('softmax')), 2, layout
  )
  traced = jax.make_jaxpr(function)(_params(kind), _batch(), jax.random.key(0))
  (alone,) = (e for e in traced.eqns if e.primitive.name == 'shard_map')
  shapes = [v.aval for v in alone.invars if v.aval.dtype == jnp.bfloat16]
  # Embedding, query, key, value, out, the MLP's two, and the tanh layer.
  assert len(shapes) == 8
  # The parameters are rounded before they are sent.
  (barrier,) = (
    e for e in traced.eqns if e.primitive.name == 'optimization_barrier'
  )
  sent = [v.aval.shape for v in barrier.outvars if v.aval.dtype == jnp.bfloat16]
  assert sorted(sent) == sorted(aval.shape for aval in shapes)
  # Gradients in bfloat16 are accumulated and returned in float32.
  (inner,) = jax_internals.called(alone)
  (loop,) = (e for e in inner.eqns if e.primitive.name == 'scan')
  sums = {v.aval.dtype for v in loop.outvars}
  assert sums == {jnp.dtype('float32')}
  expected = on_one_device(kind, 2)[0].opt_state[0]['gradient']
  actual = one_step(kind, layout, 2)[0].opt_state[0]['gradient']

  def assert_near(actual, expected):
    assert actual.dtype == np.float32
    error = np.abs(actual - expected).max()
    # The gradients of the keys' biases are only rounding.
    assert error < 0.02 * max(np.abs(expected).max(), 0.01)

  jax.tree.map(assert_near, actual, expected)


def test_kernels_with_additions_are_not_rounded_before_they_are_sent():
  kind = dataclasses.replace(
    LORA, overrides=(*LORA.overrides, ('dtype', 'bfloat16'))
  )
  model, (params, tuning) = kind.build(), _tuned(kind)
  function = step_lib.make_loss_and_grad(
    model,
    losses.mean_loss(model, losses.build('softmax')),
    1,
    _summed_in_bfloat16(),
    tuning,
  )
  traced = jax.make_jaxpr(function)(params, _batch(), jax.random.key(0))
  (barrier,) = (
    e for e in traced.eqns if e.primitive.name == 'optimization_barrier'
  )
  sent = [v.aval.shape for v in barrier.outvars if v.aval.dtype == jnp.bfloat16]
  # Only the embedding and the tanh layer.
  assert sorted(sent) == [(4, 4, 3, 32), (32, 16)]


def _count_in_the_loop(operation, kind=VIT, **layout):
  """Counts an operation in the loop over micro-batches, and in the program."""
  layout = sharding.build(data=2, fsdp=4, tensor=1, shard='all', **layout)
  model = kind.build()
  function = step_lib.make_loss_and_grad(
    model, losses.mean_loss(model, losses.build('softmax')), 4, layout
  )
  params = sharding.put_tree(_params(VIT), layout.params(_params(VIT)))
  batch = sharding.put_batch(_batch(), layout.mesh)
  text = jax.jit(function).lower(params, batch, jax.random.key(0))
  text = text.compile().as_text()
  # Finds the module's computations that a loop's body calls.
  computations = dict(
    re.findall(r'^%?([\w.\-]+) [^\n]*\{\n(.*?)^\}', text, re.M | re.S)
  )
  bodies = re.findall(r'body=%?([\w.\-]+)', text)
  assert bodies
  reached = set()
  while bodies:
    name = bodies.pop()
    if name in reached or name not in computations:
      continue
    reached.add(name)
    bodies += re.findall(
      r'(?:calls|to_apply|body)=%?([\w.\-]+)', computations[name]
    )
  inside = sum(computations[n].count(f' {operation}(') for n in reached)
  return inside, text.count(f' {operation}(')


def test_parameters_are_gathered_once_a_step_or_in_every_micro_batch():
  inside, everywhere = _count_in_the_loop('all-gather', gather='step')
  assert everywhere > 20
  assert inside == 0
  inside, everywhere = _count_in_the_loop('all-gather', gather='micro_batch')
  assert inside == everywhere > 20


def test_gradients_are_summed_once_a_step_or_in_every_micro_batch():
  count = functools.partial(
    _count_in_the_loop, 'all-reduce', NO_DROPOUT, gather='step'
  )
  inside, everywhere = count(partition='manual')
  assert everywhere > 0
  assert inside == 0
  inside, everywhere = count(partition='compiler')
  assert inside == everywhere > 0
