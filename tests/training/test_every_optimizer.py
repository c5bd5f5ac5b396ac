"""Guards: each optimizer on a mesh, in a checkpoint, skipped, and in part."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_run, tiny_step
from tests.checkpoint import states
from tests.training import made_optimizers as made
from vit_jax import checkpoint, sharding
from vit_jax import config as config_lib
from vit_jax.config import completion
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import program as program_lib
from vit_jax.training import step as step_lib

each_optimizer = pytest.mark.parametrize('name', made.OPTIONS)
# sharding/test_gradients.py has AdamW on meshes, test_interrupted_run.py a run
# that goes on bitwise, and test_step.py skipped steps. Lion and SGD compute
# each element alone, too.
ALONE = dict.fromkeys(('adamw', 'lion', 'sgd'), pytest.mark.slow)
in_the_gate = pytest.mark.parametrize(
  'name',
  [pytest.param(n, marks=ALONE.get(n, pytest.mark.gate)) for n in made.OPTIONS],
)
# Adam's first update is the gradient's sign, whatever its size. A larger
# epsilon keeps differences due to rounding small.
EPSILON = {'adamw': 1e-3, 'lamb': 1e-3, 'muon': 1e-3}


def _rate(step):
  return jnp.float32(0.01)


def _optimizer(name):
  eps = {'eps': EPSILON[name]} if name in EPSILON else {}
  section = config_lib.optimizer(name, **made.OPTIONS[name] | eps)
  return optimizer_lib.build_optimizer(section, _rate)


def _objective(params, batch, key):
  loss = 0.0
  for i, p in enumerate(jax.tree.leaves(params)):
    pattern = np.cos(np.arange(p.size) * (i + 1.0)).reshape(p.shape)
    loss += jnp.square((p * pattern).sum() - batch['x']).mean() + (p**2).mean()
  return loss, {'loss': loss}


def _batch(seed):
  return {'x': np.random.default_rng(seed).normal(size=8).astype('f')}


def _state(optimizer):
  return jax.jit(
    lambda params: step_lib.init_state(params, optimizer, polyak=False)
  )(made.tree(made.first_params()))


def _step(optimizer, layout, state=None):
  return tiny_step.train_step(
    *(_objective, optimizer, _rate, jax.random.key(0), layout, state),
    changes={'guard.nonfinite': 'skip'},
  )


@functools.cache
def _alone(name):
  """Returns the first state on one device, and the step."""
  optimizer = _optimizer(name)
  layout = tiny_step.one_device(partition='compiler')
  return _state(optimizer), _step(optimizer, layout)


@in_the_gate
def test_a_mesh_updates_as_one_device_does(name):
  one, step = _alone(name)
  layout = sharding.Layout(
    sharding.make_mesh(2, 2, 2), 'all', partition='compiler'
  )
  shardings = layout.state(one)
  many = sharding.put_tree(one, shardings)
  split_step = _step(_optimizer(name), layout, one)
  for seed in range(2):
    one, _ = step(one, _batch(seed))
    many, _ = split_step(many, sharding.put_batch(_batch(seed), layout.mesh))
  for (path, x), y in zip(
    jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(many), strict=True
  ):
    np.testing.assert_allclose(
      y, x, atol=1e-5 * np.abs(x).max(), err_msg=str(path)
    )
  # The moments are split as their parameters are.
  specs = {str(x.spec) for x in jax.tree.leaves(shardings.opt_state)}
  assert any("'tensor'" in s for s in specs)
  assert any("'fsdp'" in s for s in specs)


@in_the_gate
def test_a_restored_state_goes_on_bitwise_and_a_skipped_step_counts_for_nothing(
  name, tmp_path
):
  state, step = _alone(name)
  first, _ = step(state, _batch(0))
  states.save(tmp_path, first)
  restored, _ = checkpoint.restore_newest(tmp_path, states.abstract(first))
  states.assert_bitwise(restored, first)
  # Where the step is compiled for.
  restored = jax.tree.map(
    lambda x, like: jax.device_put(x, like.sharding), restored, first
  )
  second, _ = step(first, _batch(1))
  skipped, metrics = step(restored, {'x': np.full(8, np.nan, 'f')})
  assert metrics['skipped'] == 1
  states.assert_bitwise(skipped.params, first.params)
  found, _ = step(skipped, _batch(1))
  states.assert_bitwise(found.params, second.params)


@pytest.mark.parametrize(
  'name, stddev', [('adamw', 0.0), ('lamb', 0.02), ('lars', 0.02)]
)
def test_a_head_begins_where_the_optimizer_can_leave(name, stddev):
  config = tiny_run.tiny_config({'num_classes': 500})
  config.optimizer = config_lib.optimizer(name, **made.OPTIONS[name])
  config.model.update(distillation_token=True, dtype='float32')
  completion.fill_in(config)
  program = program_lib.Program(config, sharding.build(**config.mesh))
  params = program_lib.fresh_params(config, program.model, program.params_key)
  for head in ('head', 'head_dist'):
    found = params[head]['kernel'].std()
    assert found == pytest.approx(stddev, rel=0.2), head


LORA = {'lora.rank': 2, 'lora.targets': ('mlp',)}


@pytest.mark.parametrize(
  'changes', [{'tuning.freeze': 'embedding'}, LORA], ids=['freeze', 'lora']
)
@each_optimizer
def test_a_part_of_a_model(name, changes):
  config = tiny_run.tiny_config({'num_classes': 2, 'model.scan': True})
  config.model.dtype = 'float32'
  config.optimizer = config_lib.optimizer(name, **made.OPTIONS[name])
  config.update_from_flattened_dict({'tuning.layer_decay': 0.7} | changes)
  layout = sharding.build(**config.mesh)
  if name == 'muon' and changes is LORA:
    with pytest.raises(ValueError, match=r"'muon' .*: use .*'adamw'"):
      program_lib.Program(config, layout)
    return
  program = program_lib.Program(config, layout)
  after, _ = jax.eval_shape(
    program.train_step, program.abstract_state, program.abstract_batch
  )
  alike = jax.tree.map(lambda x, y: x.shape == y.shape, program.shapes, after)
  assert all(jax.tree.leaves(alike))
