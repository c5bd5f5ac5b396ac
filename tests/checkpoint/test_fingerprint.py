"""Guards: digests depend on every bit and its place, and on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.checkpoint import fingerprint

DTYPES = (
  *('float32', 'bfloat16', 'float16', 'int32', 'int16', 'int8'),
  *('uint32', 'uint8', 'bool'),
)
SHAPES = ((), (0,), (3, 0), (5,), (8, 16), (2, 3, 4, 5))


def _array(shape, dtype):
  values = np.random.default_rng(0).normal(size=shape) * 100
  return np.asarray(values > 0 if dtype == 'bool' else values, jnp.dtype(dtype))


def _mix(x):
  """Computes MurmurHash3's finalizer with Python's integers."""
  x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
  x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
  return x ^ x >> 16


def test_the_formula():
  # These are the bits of 1.0 and -2.0.
  words = [0x3F800000, 0xC0000000]
  keys = [_mix(0), _mix(1)]
  others = [(k * 0x9E3779B1 + 0x165667B1) % 2**32 for k in keys]
  first, second = (
    sum(_mix(w ^ k) for w, k in zip(words, column, strict=True)) % 2**32
    for column in (keys, others)
  )
  found = fingerprint.digests({'a': np.array([1, -2], np.float32)})
  assert found == {'a': f'{first:08x}{second:08x}'}


@pytest.fixture(autouse=True)
def _always_on_the_device(monkeypatch):
  monkeypatch.setattr(fingerprint, '_FEW', -1)


def test_the_host_and_the_device_agree():
  tree = {
    f'{dtype}{index}': _array(shape, dtype)
    for dtype in DTYPES
    for index, shape in enumerate(SHAPES)
    if dtype == 'float32' or shape == (8, 16)
  }
  on_device = fingerprint.digests(jax.tree.map(jnp.asarray, tree))
  assert on_device == fingerprint.digests(tree)
  assert on_device['float320'] != on_device['float323']
  assert on_device['float321'] == '0' * 16


def test_all_bits_of_8_byte_elements_count():
  values = {'a': np.array([1.5, 2**40]), 'b': np.array([1, 2**40])}
  with jax.enable_x64(True):
    assert fingerprint.digests(
      jax.tree.map(jnp.asarray, values)
    ) == fingerprint.digests(values)
  upper, lower = (
    fingerprint.digests(np.array([1, 2**40 + x])) for x in (2**41, 1)
  )
  assert len({*upper.values(), *lower.values(), 'b'}) == 3
  assert upper[''] != fingerprint.digests(values)['b'] != lower['']


@pytest.fixture(scope='module')
def mesh():
  return jax.make_mesh((4, 2), ('a', 'b'), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.parametrize(
  'spec', [P(), P('a'), P(None, 'a'), P('a', 'b'), P(('b', 'a')), P('b', 'a')]
)
def test_any_sharding_gives_the_same(mesh, spec):
  x = _array((64, 256), 'float32')
  sharded = jax.device_put(x, NamedSharding(mesh, spec))
  assert fingerprint.digests([sharded]) == fingerprint.digests([x])


def test_a_sharded_array_is_neither_gathered_nor_copied(mesh):
  x = jax.ShapeDtypeStruct(
    (4, 1024, 512), np.float32, sharding=NamedSharding(mesh, P(None, 'a', 'b'))
  )
  function = fingerprint._jitted(NamedSharding(mesh, P()))
  compiled = function.lower((x,)).compile()
  memory = compiled.memory_analysis()
  assert memory.argument_size_in_bytes == 2**20
  assert memory.temp_size_in_bytes < 2**12


def test_arrays_on_devices_and_on_the_host(mesh):
  x = _array((8, 2), 'float32')
  tree = {
    'all': jax.device_put(x, NamedSharding(mesh, P('a'))),
    'host': x,
    'number': 3,
  }
  found = fingerprint.digests(tree)
  assert list(found) == ['all', 'host', 'number']
  assert found['all'] == found['host'] != found['number']


def test_every_bit_and_every_place_counts():
  x = np.zeros(64, np.float32)
  seen = {fingerprint.digests([x])['0']}
  for index in range(64):
    for bit in (0, 17, 31):
      changed = x.copy()
      changed.view(np.uint32)[index] ^= np.uint32(1 << bit)
      seen.add(fingerprint.digests([changed])['0'])
  assert len(seen) == 1 + 64 * 3  # -0.0 is not 0.0.
  a, b = (fingerprint.digests([np.float32(x)])['0'] for x in ([1, 2], [2, 1]))
  assert a[:8] != b[:8]
  assert a[8:] != b[8:]


def test_small_floats_are_not_flushed():
  tiny = np.array([1e-40], np.float32)
  zero = np.zeros(1, np.float32)
  found = fingerprint.digests({'a': jnp.asarray(tiny), 'b': zero})
  assert found['a'] != found['b']
