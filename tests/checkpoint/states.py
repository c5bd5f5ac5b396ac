"""Small training states, and helpers to place, save and compare them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib


def _random(shape, seed):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), 'float32')


def train_state(*, polyak=True, seed=0):
  """Returns a state without zero leaves, with bfloat16 first moments."""
  section = config_lib.optimizer('adamw', weight_decay=0.1, clip_norm=1.0)
  section.mu_dtype = 'bfloat16'
  optimizer = optimizer_lib.build_optimizer(section, lambda step: 0.1)
  params = {
    'embedding': {'kernel': _random((4, 4, 1, 8), seed)},
    'Transformer': {'encoderblock_0': {'bias': _random((8,), seed + 1)}},
  }
  state = step_lib.init_state(params, optimizer, polyak=polyak)
  _, opt_state = optimizer.update(params, state.opt_state, params)
  ema_params = jax.tree.map(lambda x: x / 3, state.ema_params)
  return state.replace(
    step=jnp.int32(7), opt_state=opt_state, ema_params=ema_params
  )


def plain_state(**params):
  """Returns a state whose parameters are ones; `plain_state(a=(2,))`."""
  params = {k: jnp.ones(shape) for k, shape in params.items()}
  return step_lib.init_state(params, optax.sgd(0.1), polyak=False)


def mesh(size):
  return jax.make_mesh(
    (size,),
    ('data',),
    devices=jax.devices()[:size],
    axis_types=(AxisType.Auto,),
  )


def shardings(state, devices, *, split=False):
  """Replicates over the devices, or splits the last axis where it can."""

  def sharding(x):
    parts = [None] * x.ndim
    if split and x.ndim and x.shape[-1] % devices == 0:
      parts[-1] = 'data'
    return NamedSharding(on, P(*parts))

  on = mesh(devices)
  return jax.tree.map(sharding, state)


def put(state, devices, *, split=False):
  return jax.device_put(state, shardings(state, devices, split=split))


def abstract(state, devices=1, *, split=False):
  return jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding
    ),
    state,
    shardings(state, devices, split=split),
  )


def save(workdir, state, steps=(7,), *, keep=2, keep_every=0, **options):
  """Saves the state under each of the steps, and waits."""
  checkpoints = checkpoint.Checkpoints(
    workdir, keep=keep, keep_every=keep_every, **options
  )
  for step in steps:
    checkpoints.save(step, state)
  checkpoints.close()


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def assert_bitwise(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  flat, _ = jax.tree_util.tree_flatten_with_path(expected)
  for (path, b), a in zip(flat, jax.tree.leaves(actual), strict=True):
    name = jax.tree_util.keystr(path)
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape), name
    assert a.tobytes() == b.tobytes(), name
