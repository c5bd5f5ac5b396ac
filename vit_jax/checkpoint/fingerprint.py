"""Digests of arrays that do not depend on how the arrays are sharded.

Orbax restores flipped bytes without an error. Comparing the digests of the
arrays in memory before the save and after the restore covers the whole path,
and reads nothing twice. Each element's bits are hashed together with its index,
and the hashes are summed modulo 2^32, with two different hashes. A sum does not
depend on order, so it is bitwise the same on any number of devices and
processes, and on the host. A change of one element always changes the digest;
any other change goes unnoticed with probability 2^-64.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax.runtime import json_text

# Small enough for the host's intermediate arrays to stay in the CPU's cache.
_CHUNK = 2**16
# Up to this many elements on a CPU are hashed with NumPy, in 0.2 s. Compiling
# for the device takes 1 to 2 s in each new process.
_FEW = 2**22

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}


def named_leaves(tree: Any) -> dict[str, Any]:
  """Flattens a tree to `{'a/b': leaf}`."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def digests(tree: Any) -> dict[str, str]:
  """Returns the digest of each array of a tree.

  Args:
    tree: a tree of `jax.Array`s, all on the same devices, NumPy arrays and
      numbers, real or boolean. If it has global arrays, all processes must call
      this.

  Returns:
    `{'a/b': 16 hexadecimal digits}`. Digests do not cover shapes and dtypes.
  """
  leaves = named_leaves(tree)
  arrays = {k: x for k, x in leaves.items() if isinstance(x, jax.Array)}
  if _better_on_host(arrays.values()):
    arrays = {}
  sums = {
    name: _host_sums(np.asarray(leaf))
    for name, leaf in leaves.items()
    if name not in arrays
  }
  if arrays:
    values = tuple(arrays.values())
    found = _jitted(_replicated(values))(values)
    sums |= zip(arrays, np.asarray(found), strict=True)
  return {name: f'{sums[name][0]:08x}{sums[name][1]:08x}' for name in leaves}


def number(digests: Mapping[str, str]) -> int:
  """Returns one number for the digests of a tree, to be kept among metrics.

  It has 52 bits, which a float64 holds exactly.
  """
  return int(json_text.checksum(digests)[:13], 16)


def word_sums(tree: Any) -> jax.Array:
  """Returns the sum of each array's bits, for use inside a jitted function.

  It serves to compare two executions of one program, and costs a single pass
  over the arrays. One flipped bit always changes it. Unlike `digests`, it does
  not notice elements that have changed places.

  Returns:
    uint32 [arrays], each the sum of the array's words modulo 2^32.
  """
  words = [_words(x) for x in jax.tree.leaves(tree)]
  return jnp.stack([jnp.sum(x, dtype=np.uint32) for x in words])


def _better_on_host(arrays) -> bool:
  """Whether NumPy is faster than compiling, and reads without a copy."""
  devices = set().union(*(array.sharding.device_set for array in arrays))
  return (
    all(device.platform == 'cpu' for device in devices)
    and len(devices) <= 1
    and sum(array.size for array in arrays) <= _FEW
  )


def _replicated(arrays) -> NamedSharding | None:
  """Replicates over the arrays' devices, so that every process can read it."""
  for array in arrays:
    if isinstance(array.sharding, NamedSharding):
      return NamedSharding(array.sharding.mesh, P())
  return None  # All arrays are on one device.


@functools.cache
def _jitted(out_sharding):
  """Returns what computes the two sums of each array, uint32 [arrays, 2]."""
  return jax.jit(
    lambda arrays: jnp.stack([_array_sums(x) for x in arrays]),
    out_shardings=out_sharding,
  )


# Jitted separately, so that arrays of equal shape are traced once.
@jax.jit
def _array_sums(x: jax.Array) -> jax.Array:
  word = _words(x)
  # One reduction for both sums: with two, XLA on CPU would store both terms.
  sums = jax.lax.reduce(
    _terms(word, _index(word.shape)),
    (np.uint32(0), np.uint32(0)),
    lambda a, b: (a[0] + b[0], a[1] + b[1]),
    range(word.ndim),
  )
  return jnp.stack(sums)


def _words(x: jax.Array) -> jax.Array:
  """The bits of each element as uint32; 8 bytes become two, in a last axis."""
  if x.dtype == bool:
    x = x.astype(np.uint8)
  unsigned = _UNSIGNED[x.dtype.itemsize]
  return jax.lax.bitcast_convert_type(x, unsigned).astype(np.uint32)


def _index(shape: tuple[int, ...]) -> jax.Array:
  """The flat index of each element, uint32, modulo 2^32."""
  # It comes from each axis's own index: flattening would gather a sharded
  # array.
  index = jnp.zeros(shape, np.uint32)
  stride = 1
  for axis in reversed(range(len(shape))):
    along = jax.lax.broadcasted_iota(np.uint32, shape, axis)
    index = index + along * np.uint32(stride % 2**32)
    stride *= shape[axis]
  return index


def _mix(x):
  """A bijection of 32-bit integers (the finalizer of MurmurHash3)."""
  x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
  x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
  return x ^ (x >> np.uint32(16))


def _terms(word, index):
  """The terms of the two sums, for `jax.Array`s and NumPy arrays alike."""
  key = _mix(index)
  other = key * np.uint32(0x9E3779B1) + np.uint32(0x165667B1)
  return _mix(word ^ key), _mix(word ^ other)


def _host_sums(x: np.ndarray) -> np.ndarray:
  """Computes `_array_sums` in NumPy."""
  flat = np.ascontiguousarray(x).reshape(-1).view(_UNSIGNED[x.dtype.itemsize])
  sums = np.zeros(2, np.uint64)
  for start in range(0, flat.size, _CHUNK):
    part = flat[start : start + _CHUNK]
    index = np.arange(start, start + part.size, dtype=np.uint64)
    terms = _terms(part.astype(np.uint32), index.astype(np.uint32))
    sums += [np.sum(t, dtype=np.uint64) for t in terms]
  return sums % 2**32
