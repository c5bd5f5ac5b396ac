"""Guards: each parameter is split over the right mesh axes, in memory, too."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from vit_jax import config as config_lib
from vit_jax import models, sharding
from vit_jax.training import optimizer as optimizer_lib
from vit_jax.training import step as step_lib

BLOCK = 'Transformer/encoderblock_3/'
ATTENTION = BLOCK + 'MultiHeadDotProductAttention_0/'
# ViT-B/16's parameters: name, shape, the spec over `tensor`, and the dimension
# that is split over `fsdp`, too.
RULES = [
  ('embedding/kernel', (16, 16, 3, 768), P(*[None] * 4), (0,)),
  ('cls', (1, 1, 768), P(None, None, None), (2, 'fsdp')),
  (ATTENTION + 'query/kernel', (768, 12, 64), P(None, 'tensor', None), (0,)),
  (ATTENTION + 'out/kernel', (12, 64, 768), P('tensor', None, None), (1,)),
  (
    ATTENTION + 'relative_embedding',
    (33, 12, 64),
    P(None, 'tensor', None),
    (2,),
  ),
  (ATTENTION + 'relative_embedding', (33, 1, 64), P(None, None, None), (2,)),
  (BLOCK + 'MlpBlock_0/Dense_0/kernel', (768, 3072), P(None, 'tensor'), (0,)),
  (BLOCK + 'MlpBlock_0/Dense_0/bias', (3072,), P('tensor'), ()),
  (BLOCK + 'MlpBlock_0/Dense_1/kernel', (3072, 768), P('tensor', None), (1,)),
  ('MAPHead_0/MlpBlock_0/Dense_0/kernel', (768, 3072), P(None, 'tensor'), (0,)),
  # Two divides neither 1,001 classes nor three channels.
  ('head/kernel', (768, 1001), P(None, None), (0,)),
  ('head/bias', (1001,), P(None), ()),
  # Scanned blocks have one more dimension, which is not split.
  (
    'Transformer/encoderblock/MlpBlock_0/Dense_0/kernel',
    (4096, 768, 3072),
    P(None, None, 'tensor'),
    (1,),
  ),
  ('Transformer/encoderblock/LayerNorm_0/scale', (4096, 7), P(None, None), ()),
  ('', (), P(), ()),  # A step counter.
]


@pytest.mark.parametrize(('name', 'shape', 'tensor', 'fsdp'), RULES)
def test_rules(name, shape, tensor, fsdp):
  layout = sharding.build(data=2, fsdp=2, tensor=2, shard='all', gather='step')
  assert layout.spec(name, shape, split=False) == tensor
  expected = list(tensor)
  if fsdp:
    expected[fsdp[0]] = 'fsdp'
  assert layout.spec(name, shape, split=True) == P(*expected)


def _state(**overrides):
  sizes = dict(width=32, depth=2, heads=4, mlp_dim=48) | overrides
  model = models.build('ViT-Ti/4', num_classes=6, **sizes)
  optimizer = optimizer_lib.build_optimizer(config_lib.adam(), lambda step: 0.1)

  def first_state():
    params = step_lib.init_params(model, jax.random.key(0), (8, 8, 3))
    return step_lib.init_state(params, optimizer, polyak=True)

  return first_state


def _split_names(tree, shardings, axis):
  """Returns the names of the leaves that are split over an axis."""
  return {
    jax.tree_util.keystr(path)
    for (path, _), sharding in zip(
      jax.tree_util.tree_leaves_with_path(tree),
      jax.tree.leaves(shardings),
      strict=True,
    )
    if axis in sharding.spec
  }


@pytest.mark.parametrize(
  ('shard', 'params', 'others'),
  [('none', False, False), ('optimizer', False, True), ('all', True, True)],
)
def test_each_shard_option_splits_the_documented_parts(shard, params, others):
  layout = sharding.build(data=2, fsdp=4, tensor=1, shard=shard, gather='step')
  state = jax.eval_shape(_state())
  shardings = layout.state(state)
  count = len(jax.tree.leaves(state.params))
  # All leaves except the head's bias, which has 6 classes.
  for part, split, copies in (
    ('params', params, 1),
    ('opt_state', others, 2),
    ('ema_params', others, 1),
  ):
    names = _split_names(getattr(state, part), getattr(shardings, part), 'fsdp')
    assert len(names) == (copies * (count - 1) if split else 0), part
  assert shardings.step.spec == P()


@pytest.mark.gate
def test_the_state_is_created_in_shards():
  # No device holds more than its part, also while the state is being created.
  layout = sharding.build(data=1, fsdp=8, tensor=1, shard='all', gather='step')
  first_state = _state(width=256, mlp_dim=1024, heads=8)
  shapes = jax.eval_shape(first_state)
  compiled = (
    jax.jit(first_state, out_shardings=layout.state(shapes)).lower().compile()
  )
  whole = sum(x.size * 4 for x in jax.tree.leaves(shapes))
  memory = compiled.memory_analysis()
  assert memory.output_size_in_bytes < 1.02 * whole / 8
  assert memory.temp_size_in_bytes < 0.3 * whole
  state = compiled()
  largest = max(jax.tree.leaves(state.params), key=lambda x: x.size)
  assert largest.shape == (256, 1024)
  assert {s.data.shape for s in largest.addressable_shards} == {(256, 128)} or {
    s.data.shape for s in largest.addressable_shards
  } == {(32, 1024)}


def test_put_tree_places_shards():
  layout = sharding.build(data=2, fsdp=2, tensor=2, shard='all', gather='step')
  tree = {'MlpBlock_0': {'Dense_0': {'kernel': np.arange(32.0).reshape(4, 8)}}}
  put = sharding.put_tree(tree, layout.params(tree))
  kernel = put['MlpBlock_0']['Dense_0']['kernel']
  np.testing.assert_array_equal(kernel, np.arange(32.0).reshape(4, 8))
  assert {s.data.shape for s in kernel.addressable_shards} == {(2, 4)}


def test_tensor_must_fit_the_model():
  layout = sharding.build(data=1, fsdp=1, tensor=8, shard='all', gather='step')
  params = jax.eval_shape(_state()).params
  with pytest.raises(
    ValueError, match=r'mesh.tensor=8 must divide the 4 heads'
  ):
    layout.check(params)
  with pytest.raises(ValueError, match=r'divide the 20 mlp_dim of .*Dense_0'):
    layout.check(jax.eval_shape(_state(heads=8, mlp_dim=20)).params)
  layout.check(jax.eval_shape(_state(heads=8)).params)
  bit = models.build('BiT-R50x1', num_classes=3, blocks=(1,))
  params = jax.eval_shape(
    lambda: step_lib.init_params(bit, jax.random.key(0), (32, 32, 3))
  )
  with pytest.raises(ValueError, match='neither attention heads nor MLPs'):
    layout.check(params)


def test_the_description_has_each_parameter_and_the_bytes_of_a_device():
  layout = sharding.build(
    data=2, fsdp=2, tensor=2, shard='optimizer', gather='step'
  )
  state = jax.eval_shape(_state())
  *table, total = layout.describe(state).splitlines()
  (row,) = (r for r in table if 'block_1/MlpBlock_0/Dense_0/kernel' in r)
  assert '(32, 48)' in row
  assert "(None, 'tensor')" in row
  held = layout.state(state)
  expected = sum(
    4 * np.prod(s.shard_shape(x.shape), dtype=int)
    for x, s in zip(*map(jax.tree.leaves, (state, held)), strict=True)
  )
  assert f'{expected:,} bytes' in total
  alone = sharding.build(data=1, fsdp=1, tensor=1, shard='all', gather='step')
  assert '(32, 48)' in alone.describe(state)
  assert 'Sharding' not in alone.describe(state)
  assert 'Sharding' in layout.describe(state)
