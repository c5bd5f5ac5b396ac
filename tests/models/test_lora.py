"""Guards: low-rank additions against NumPy."""

import functools

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from tests.models import stacking
from vit_jax.models import lora

ALL = tuple(lora.TARGETS)
MODEL = tiny.vit(mlp='swiglu')
PARAMS = tiny.params(MODEL)
_flat = functools.partial(flax.traverse_util.flatten_dict, sep='/')


def _with_additions(params, **options):
  options = dict(rank=3, alpha=6.0, targets=ALL) | options
  additions = lora.init(jax.random.key(1), params, **options)
  return params | {lora.FOLDER: jax.tree.map(np.asarray, additions)}


@pytest.mark.parametrize('scan', [False, True])
def test_merged_kernels_are_those_of_numpy(scan):
  params = PARAMS
  if scan:
    params = jax.tree.map(np.asarray, stacking.stack_blocks(params))
  tuned, rng = _with_additions(params), np.random.default_rng(2)
  additions = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32), tuned[lora.FOLDER]
  )
  tuned[lora.FOLDER] = additions | {'scale': np.float32(2.0)}  # alpha / rank.
  result, flat = _flat(lora.merged(tuned)), _flat(tuned)
  assert result.keys() == _flat(params).keys()
  b = 'b' if scan else ''  # The blocks' axis.
  sums = {
    'query': f'{b}ir,{b}rhk->{b}ihk',
    'key': f'{b}ir,{b}rhk->{b}ihk',
    'value': f'{b}ir,{b}rhk->{b}ihk',
    'out': f'{b}hkr,{b}ro->{b}hko',
    'Dense_0': f'{b}ir,{b}ro->{b}io',
    'Dense_1': f'{b}ir,{b}ro->{b}io',
    'gate': f'{b}ir,{b}ro->{b}io',
  }
  changed = 0
  by_numpy = _flat(lora.merged(tuned, np.matmul))
  for name, kernel in _flat(params).items():
    layer = name.split('/')[-2] if name.endswith('kernel') else ''
    expected = kernel
    if layer in sums:
      changed += 1
      a, b = (flat[f'lora/{name}/{part}'] for part in 'ab')
      expected = kernel + 2 * np.einsum(sums[layer], a, b)
    for found in (result[name], by_numpy[name]):
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  assert changed == (7 if scan else 14)


def test_merged_weights_compute_what_low_rank_layers_do():
  # The addition to the query is computed beside the kernel, as in the paper.
  model = MODEL
  images = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype('f')
  params = jax.tree.map(lambda x: 0.6 * x, PARAMS)
  tuned = _with_additions(params, targets=('query',))
  name = 'lora/Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query'
  tuned = flax.traverse_util.unflatten_dict(
    {k: v + 0.3 * (k == f'{name}/kernel/b') for k, v in _flat(tuned).items()},
    sep='/',
  )
  query = {}

  def beside(next_function, args, kwargs, context):
    path = '/'.join(context.module.path)
    y = next_function(*args, **kwargs)
    if f'lora/{path}' == name and context.method_name == '__call__':
      a, b = (_flat(tuned)[f'{name}/kernel/{part}'] for part in 'ab')
      y = y + 2.0 * jnp.einsum('nli,ir,rhk->nlhk', args[0], a, b)
      query['seen'] = True
    return y

  def encoded(params):
    return model.apply({'params': params}, images)[1]['encoded']

  with nn.intercept_methods(beside):
    expected = jax.jit(encoded)(params)
  assert query['seen']
  plain = jax.jit(lambda params: encoded(params))
  actual = plain(jax.tree.map(np.asarray, lora.merged(tuned)))
  np.testing.assert_allclose(actual, expected, atol=1e-5)
  assert np.abs(actual - plain(params)).max() > 1e-2


def test_new_additions_change_nothing():
  tuned = _with_additions(PARAMS)
  assert tuned[lora.FOLDER]['scale'] == 2.0
  tiny.assert_equal(jax.tree.map(np.asarray, lora.merged(tuned)), PARAMS)
  assert lora.merged(PARAMS) is PARAMS
  parts = _flat(tuned[lora.FOLDER])
  first = [x for name, x in parts.items() if name.endswith('kernel/a')]
  # Uniform within 1 / sqrt(inputs), and different for each kernel.
  bound = 1 / np.sqrt(tiny.SIZES['width'])
  assert 0.9 * bound < np.abs(first[0]).max() < bound
  assert len({x.tobytes() for x in first}) == len(first) == 14


def test_errors():
  with pytest.raises(ValueError, match=r"unknown \['heads'\].*'query', 'key'"):
    _with_additions(PARAMS, targets=('heads', 'query'))
  with pytest.raises(ValueError, match=r'fits no kernel.*lora.rank=0'):
    _with_additions(tiny.params(tiny.bit()))
