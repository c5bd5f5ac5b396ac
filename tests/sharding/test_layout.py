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
MLP = 'MlpBlock_0/Dense_0/kernel'
# ViT-B/16's parameters: name, shape, and the axis that splits each dimension.
RULES = [
  ('embedding/kernel', (16, 16, 3, 768), ('fsdp', None, None, None)),
  ('cls', (1, 1, 768), (None, None, 'fsdp')),
  (ATTENTION + 'query/kernel', (768, 12, 64), ('fsdp', 'tensor', None)),
  (ATTENTION + 'out/kernel', (12, 64, 768), ('tensor', 'fsdp', None)),
  (ATTENTION + 'relative_embedding', (33, 12, 64), (None, 'tensor', 'fsdp')),
  (ATTENTION + 'relative_embedding', (33, 1, 64), (None, None, 'fsdp')),
  (BLOCK + MLP, (768, 3072), ('fsdp', 'tensor')),
  (BLOCK + 'MlpBlock_0/Dense_0/bias', (3072,), ('tensor',)),
  (BLOCK + 'MlpBlock_0/Dense_1/kernel', (3072, 768), ('tensor', 'fsdp')),
  ('MAPHead_0/' + MLP, (768, 3072), ('fsdp', 'tensor')),
  # Two divides neither 1,001 classes nor three channels.
  ('head/kernel', (768, 1001), ('fsdp', None)),
  ('head/bias', (1001,), (None,)),
  # Scanned blocks have one more dimension, which is not split.
  ('encoderblock/' + MLP, (4096, 768, 3072), (None, 'fsdp', 'tensor')),
  ('encoderblock/LayerNorm_0/scale', (4096, 7), (None, None)),
  ('', (), ()),  # A step counter.
]


@pytest.mark.parametrize(('name', 'shape', 'axes'), RULES)
def test_rules(name, shape, axes):
  layout = sharding.build(data=2, fsdp=2, tensor=2, shard='all', gather='step')
  assert layout.spec(name, shape, split=True) == P(*axes)
  gathered = (None if axis == 'fsdp' else axis for axis in axes)
  assert layout.spec(name, shape, split=False) == P(*gathered)


def _state(**overrides):
  sizes = dict(width=32, depth=2, heads=4, mlp_dim=48) | overrides
  model = models.build('ViT-Ti/4', num_classes=6, **sizes)
  optimizer = optimizer_lib.build_optimizer(
    config_lib.optimizer('adamw', weight_decay=0.0), lambda step: 0.1
  )

  def first_state():
    params = step_lib.init_params(model, jax.random.key(0), (8, 8, 3))
    return step_lib.init_state(params, optimizer, polyak=True)

  return first_state


@pytest.mark.parametrize(
  ('shard', 'params', 'others'),
  [('none', False, False), ('optimizer', False, True), ('all', True, True)],
)
def test_each_shard_option_splits_the_documented_parts(shard, params, others):
  layout = sharding.build(data=2, fsdp=4, tensor=1, shard=shard, gather='step')
  found = layout.state(jax.eval_shape(_state()))
  assert found.step.spec == P()
  for tree, split in (
    (found.params, params),
    (found.ema_params, others),
    (found.opt_state[0].mu, others),
  ):
    names = {
      jax.tree_util.keystr(path)
      for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
      if 'fsdp' not in leaf.spec
    }
    # The head's bias has 6 classes.
    assert (names == {"['head']['bias']"}) == split


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
