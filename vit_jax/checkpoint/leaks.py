"""Keeps the memory of a process constant over thousands of saves.

TensorStore 0.1.86 leaks the Python objects that it makes from its own JSON: 3
kB whenever Orbax logs its counters, and 250 bytes for the description of each
array in each save. Besides, each save starts new threads. They take memory from
glibc's arenas, eight per core, all of which become fragmented.
"""

import ctypes
import functools
import json
from typing import Any

import tensorstore

from vit_jax.runtime import jax_internals

# The value of M_ARENA_MAX in glibc's malloc.h. Two arenas are enough: the
# threads that decode images, for milliseconds each, hardly contend for them.
_M_ARENA_MAX = -8
_ARENAS = 2


@functools.cache
def plug() -> None:
  """Limits arenas and Orbax's calls of TensorStore, once per process."""
  if mallopt := getattr(ctypes.CDLL(None), 'mallopt', None):
    mallopt(_M_ARENA_MAX, _ARENAS)
  tensorstore.experimental_collect_matching_metrics = lambda *_, **__: []
  # None for Orbax releases that this fix does not know; they may leak.
  if orbax := jax_internals.orbax_tensorstore():
    orbax.ts = _TensorStore()


class _Spec:
  """Orbax's description of a key-value store."""

  def __init__(self, description: dict[str, Any]):
    self.text = json.dumps(description)

  def to_json(self) -> dict[str, Any]:
    return dict(_resolved(self.text))


class _KvStore:
  """The part of `tensorstore.KvStore` that Orbax uses."""

  Spec = _Spec

  @staticmethod
  def open(spec: _Spec, **options: Any):
    return tensorstore.KvStore.open(json.loads(spec.text), **options)


class _TensorStore:
  """Stands in for the `tensorstore` module, and makes each description once."""

  KvStore = _KvStore

  def __getattr__(self, name):
    return getattr(tensorstore, name)


# All arrays of a checkpoint are in the same store, so few entries are enough.
@functools.lru_cache(maxsize=16)
def _resolved(text: str) -> dict[str, Any]:
  return tensorstore.KvStore.Spec(json.loads(text)).to_json()


@functools.cache
def _malloc_trim():
  return getattr(ctypes.CDLL(None), 'malloc_trim', lambda _: None)


def give_back() -> None:
  """Returns freed memory to the operating system, if the C library is glibc."""
  _malloc_trim()(0)
