"""Keeps the memory of a process flat over thousands of saves.

TensorStore 0.1.86 never frees what it turns from its own JSON into Python's: 3
kB whenever Orbax asks for its counters, only to log them, and 250 bytes for the
description of each array of each save. And a save has new threads, which take
their memory from the arenas of glibc, eight a core: all become full of holes.
"""

import ctypes
import functools
import json
from typing import Any

import tensorstore

from vit_jax.runtime import jax_internals

# Of glibc's malloc.h. Two arenas: threads that decode images, each for
# milliseconds, hardly meet at them.
_M_ARENA_MAX = -8
_ARENAS = 2


@functools.cache
def plug() -> None:
  """Makes Orbax ask TensorStore less; once for the whole process."""
  if mallopt := getattr(ctypes.CDLL(None), 'mallopt', None):
    mallopt(_M_ARENA_MAX, _ARENAS)
  tensorstore.experimental_collect_matching_metrics = lambda *_, **__: []
  # Without it, Orbax is of a release that may leak.
  if orbax := jax_internals.orbax_tensorstore():
    orbax.ts = _TensorStore()


class _Spec:
  """What Orbax describes a key-value store by."""

  def __init__(self, description: dict[str, Any]):
    self.text = json.dumps(description)

  def to_json(self) -> dict[str, Any]:
    return dict(_resolved(self.text))


class _KvStore:
  """TensorStore's, as far as Orbax uses it."""

  Spec = _Spec

  @staticmethod
  def open(spec: _Spec, **options: Any):
    return tensorstore.KvStore.open(json.loads(spec.text), **options)


class _TensorStore:
  """The module as Orbax sees it, with descriptions that are made once."""

  KvStore = _KvStore

  def __getattr__(self, name):
    return getattr(tensorstore, name)


# The arrays of a checkpoint lie in the same store.
@functools.lru_cache(maxsize=16)
def _resolved(text: str) -> dict[str, Any]:
  return tensorstore.KvStore.Spec(json.loads(text)).to_json()


@functools.cache
def _malloc_trim():
  return getattr(ctypes.CDLL(None), 'malloc_trim', lambda _: None)


def give_back() -> None:
  """Gives the system what was freed; where the C library is glibc."""
  _malloc_trim()(0)
