"""Hashes, searches and compares block by block.

A block is some consecutive images. All results are files in one folder, local
or in a bucket:

  settings.json            what is compared, and how
  hashes/data/00003.npz    of the images that are searched
  hashes/test_1/00000.npz  of the images of the first --test, with their views
  pairs/00003.npz          the pairs of a block of --data with all test images

A block that is there is not computed again, so an interrupted command continues
where it was, and machines share the work by files alone: each takes some blocks
of --data. A block of test images is computed by whoever needs it first. If two
machines do so at the same time, both write the same file.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from vit_jax.dedup import hashing, pairing, sets
from vit_jax.dedup import stored as stored_lib
from vit_jax.runtime import printable

# Raised by changes after which hashes or correlations differ.
VERSION = 1
_SECONDS = 10.0  # Between two lines that tell the progress.


@dataclasses.dataclass(frozen=True)
class Settings:
  """How images are compared.

  Attributes:
    max_distance: number of bits that hashes of a pair may differ in.
    flips: whether mirrored images are found.
    block_size: images of a block.
    threads: number of threads that decode and compare.
  """

  max_distance: int = 32
  flips: bool = False
  block_size: int = 16_384
  threads: int = os.cpu_count() or 1


class Work:
  """The work in a folder.

  Attributes:
    images: the set that is searched.
    tests: the sets with the queries. None of them: the images are compared with
      each other.
    seconds: stage -> how long this process took for it.
  """

  def __init__(
    self,
    folder: epath.Path,
    images: sets.Set,
    tests: Sequence[sets.Set],
    settings: Settings,
  ):
    """Opens a folder, or begins one.

    Raises:
      ValueError: the folder holds a comparison of other images, or one with
        other settings.
    """
    self.folder = folder
    self.images = images
    self.tests = tests
    self.settings = settings
    self.seconds: dict[str, float] = {}
    self._loaded: dict[epath.Path, dict[str, np.ndarray]] = {}
    stored_lib.check_same(folder, self._asked())

  def _asked(self) -> dict[str, Any]:
    return {
      'version': VERSION,
      'data': self.images.facts(),
      'tests': [test.facts() for test in self.tests],
      'max_distance': self.settings.max_distance,
      'flips': self.settings.flips,
      'block_size': self.settings.block_size,
    }

  @property
  def queries(self) -> Sequence[sets.Set]:
    """The sets whose images have hashes of several views."""
    return self.tests or [self.images]

  def blocks(self, of: sets.Set) -> list[range]:
    """Returns the images of each block of a set."""
    size = self.settings.block_size
    return [
      range(start, min(start + size, len(of)))
      for start in range(0, len(of), size)
    ]

  def run(self, part: int = 0, parts: int = 1) -> None:
    """Computes what is missing of a part, and the test images' hashes.

    Args:
      part: its number, from 0 on.
      parts: how many there are.
    """
    for number, queries in enumerate(self.queries):
      count = len(self.blocks(queries))
      # Each part begins elsewhere, so that they seldom do the same.
      first = part * count // parts
      self._hash(
        _name(self.tests, number),
        queries,
        [(first + i) % count for i in range(count)],
        views=True,
      )
    mine = range(part, len(self.blocks(self.images)), parts)
    if self.tests:
      self._hash('data', self.images, mine, views=False)
    self._pair(mine)

  def missing(self) -> int:
    """Returns how many blocks have no pairs yet."""
    blocks = range(len(self.blocks(self.images)))
    return sum(not self._pairs_file(block).exists() for block in blocks)

  def pairs(self) -> dict[str, np.ndarray]:
    """Returns the pairs of all blocks; see `pairing.of_block`."""
    parts = [
      stored_lib.load(self._pairs_file(block))
      for block in range(len(self.blocks(self.images)))
    ]
    return {
      key: np.concatenate([part[key] for part in parts]) for key in parts[0]
    }

  def states(self) -> dict[str, np.ndarray]:
    """Returns what became of each image, uint8 [images], by set.

    The keys are those of the folders in `hashes`.
    """
    names = {
      _name(self.tests, i): queries for i, queries in enumerate(self.queries)
    } | {'data': self.images}
    return {
      name: np.concatenate(
        [
          stored_lib.load(self._hash_file(name, block))['state']
          for block in range(len(self.blocks(of)))
        ]
      )
      for name, of in names.items()
    }

  def unreadable(self) -> int:
    """Returns how many images cannot be read, of the blocks that are there."""
    files = (self.folder / 'hashes').glob('*/*.npz')
    return sum(
      int((stored_lib.load(file)['state'] == stored_lib.UNREADABLE).sum())
      for file in files
    )

  # Hashes -------------------------------------------------------------------

  def _hash_file(self, name: str, block: int) -> epath.Path:
    return self.folder / 'hashes' / name / f'{block:05d}.npz'

  def _hash(
    self, name: str, of: sets.Set, numbers: Sequence[int], *, views: bool
  ) -> None:
    blocks = self.blocks(of)
    missing = [n for n in numbers if not self._hash_file(name, n).exists()]
    count = sum(len(blocks[n]) for n in missing)
    with self._clock(f'hashes of {name}', count) as tell:
      for number in missing:
        path = self._hash_file(name, number)
        if not path.exists():  # Another machine may have been faster.
          stored_lib.save(
            path, self._hashes_of(of, blocks[number], views, tell)
          )

  def _hashes_of(
    self, of: sets.Set, block: range, views: bool, tell: Callable
  ) -> dict[str, np.ndarray]:
    """Returns `state` uint8 [n] and `hash` uint8 [n, V, 16] of a block."""
    settings = self.settings
    count = 1
    if views:
      count = len(hashing.VIEWS) * (1 + settings.flips)
    state = np.full(len(block), stored_lib.HASHED, np.uint8)
    found = np.zeros((len(block), count, hashing.BITS // 8), np.uint8)

    def work(row):
      try:
        grey = of.grey(block[row])
      except (hashing.CorruptImageError, OSError) as error:
        logging.warning('%s: %s', of.name(block[row]), error)
        state[row] = stored_lib.UNREADABLE
      else:
        if hashing.is_flat(grey):
          state[row] = stored_lib.FLAT
        elif views:
          found[row] = hashing.of_views(grey, flips=settings.flips)
        else:
          found[row, 0] = hashing.of_whole(grey)
      tell()

    pairing.in_threads(work, range(len(block)), settings.threads)
    return {'state': state, 'hash': found}

  # Pairs --------------------------------------------------------------------

  def _pairs_file(self, block: int) -> epath.Path:
    return self.folder / 'pairs' / f'{block:05d}.npz'

  def _pair(self, numbers: Sequence[int]) -> None:
    missing = [n for n in numbers if not self._pairs_file(n).exists()]
    count = sum(len(self.blocks(self.images)[n]) for n in missing)
    with self._clock('search and comparison', count) as tell:
      for number in missing:
        path = self._pairs_file(number)
        if not path.exists():
          stored_lib.save(path, pairing.of_block(self, number))
        tell(len(self.blocks(self.images)[number]))

  def query_hashes(self, number: int, block: int) -> dict[str, np.ndarray]:
    """Returns the hashes of a block of a query set; see `_hashes_of`."""
    name = _name(self.tests, number)
    path = self._hash_file(name, block)
    if not self.tests:  # There may be more than the memory holds.
      return stored_lib.load(path)
    if path not in self._loaded:
      self._loaded[path] = stored_lib.load(path)
    return self._loaded[path]

  def hashes(self, block: int) -> dict[str, np.ndarray]:
    """Returns the hashes of a block of the images; the first view is whole."""
    return stored_lib.load(self._hash_file('data', block))

  @contextlib.contextmanager
  def _clock(self, stage: str, images: int) -> Iterator[Callable]:
    """Yields a function to call after images; it logs the progress."""
    start = told = time.monotonic()
    done, lock = 0, threading.Lock()

    def tell(count=1):
      nonlocal done, told
      with lock:
        done += count
        now = time.monotonic()
        if now - told < _SECONDS:
          return
        told = now
        rate = done / (now - start)
        logging.info(
          '%s: %s of %s images, %s images/s, %s left',
          *(stage, f'{done:,}', f'{images:,}', f'{rate:,.0f}'),
          printable.duration((images - done) / rate),
        )

    yield tell
    if images:
      self.seconds[stage] = time.monotonic() - start


def _name(tests: Sequence[sets.Set], number: int) -> str:
  """Returns the name of the folder of a query set's hashes."""
  return f'test_{number + 1}' if tests else 'data'
