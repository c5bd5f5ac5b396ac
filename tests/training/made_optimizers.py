"""Parameters with the names and shapes of a Transformer, and their gradients.

Also the options of each optimizer that tests use.
"""

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import schedule as schedule_lib

STEPS = 100
ATTENTION = 'MultiHeadDotProductAttention_0'
# Width 8, 2 heads of size 4, hidden size 12; the blocks are stacked.
SHAPES = {
  'embedding/kernel': (2, 2, 3, 8),
  'Transformer/posembed_input/pos_embedding': (1, 5, 8),
  f'Transformer/encoderblock/{ATTENTION}/query/kernel': (2, 8, 2, 4),
  f'Transformer/encoderblock/{ATTENTION}/out/kernel': (2, 2, 4, 8),
  'Transformer/encoderblock/MlpBlock_0/Dense_0/kernel': (2, 8, 12),
  'Transformer/encoderblock/LayerNorm_0/scale': (2, 8),
  f'MAPHead_0/{ATTENTION}/out/kernel': (2, 4, 8),
  'MAPHead_0/MlpBlock_0/Dense_1/kernel': (12, 8),
  'head/kernel': (8, 6),
  'head/bias': (6,),
}
DECAYED = dict(weight_decay=0.1, weight_decay_params='kernels')
OPTIONS = {
  'adafactor': dict(
    min_dim_size_to_factor=6,
    decay_rate=2.0,  # So that the average reaches its longest, 0.999.
    multiply_by_parameter_scale=False,
    clipping_threshold=0.0,
    momentum=0.9,
    weight_decay_rate=0.1,
    weight_decay_params='kernels',
  ),
  'adamw': DECAYED,
  'lamb': DECAYED,
  'lars': DECAYED | dict(trust_coefficient=0.1),
  'lion': DECAYED,
  'muon': DECAYED | dict(adam_weight_decay=0.1),
  'sgd': DECAYED | dict(momentum=0.9),
}
SCHEDULE = config_lib.schedule(
  'cosine', peak=0.01, warmup_steps=10, warmup_start=1e-3
)


def first_params():
  """Returns initial parameters by name."""
  rng = np.random.default_rng(0)
  return {n: rng.normal(size=s).astype('f') for n, s in SHAPES.items()}


def slopes():
  """Returns what each step adds to a bowl's gradients, 0.3 p: [STEPS, ...]."""
  rng = np.random.default_rng(1)
  return {
    name: rng.normal(0, 0.1, (STEPS, *shape)).astype('f')
    for name, shape in SHAPES.items()
  }


def by_block(params):
  """Returns the parameters, with a name for each block."""
  found = {}
  for name, x in params.items():
    if '/encoderblock/' in name:
      for i, block in enumerate(x):
        found[name.replace('/encoderblock/', f'/encoderblock_{i}/')] = block
    else:
      found[name] = x
  return found


def tree(params):
  """Returns parameters by name as the tree that the model has."""
  return flax.traverse_util.unflatten_dict(params, sep='/')


def build(name, **others):
  """Returns an optimizer with the options above, for `SCHEDULE`."""
  return optimizer_lib.build_optimizer(
    config_lib.optimizer(name, **OPTIONS[name] | others),
    schedule_lib.build_schedule(SCHEDULE, STEPS),
  )


def trajectory(optimizer):
  """Returns the parameters after all steps, with a name for each block."""

  def step(carry, slope):
    params, state = carry
    grads = jax.tree.map(lambda p, s: 0.3 * p + s, params, slope)
    updates, state = optimizer.update(grads, state, params)
    return (jax.tree.map(jnp.add, params, updates), state), None

  @jax.jit
  def run(params, slopes):
    return jax.lax.scan(step, (params, optimizer.init(params)), slopes)[0][0]

  params = jax.device_get(run(tree(first_params()), tree(slopes())))
  return by_block(flax.traverse_util.flatten_dict(params, sep='/'))


def assert_steps(found, expected, tolerance):
  """Compares parameters after all steps, by how far each has moved."""
  for name, first in by_block(first_params()).items():
    moved = np.abs(expected[name] - first).max()
    assert moved > 1e-2, name
    np.testing.assert_allclose(
      found[name], expected[name], rtol=0, atol=tolerance * moved, err_msg=name
    )
