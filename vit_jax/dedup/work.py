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

import dataclasses
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures

import numpy as np
import pandas as pd
from absl import logging
from etils import epath

from vit_jax.dedup import hashing, matching, sets
from vit_jax.runtime import distributed, printable
from vit_jax.workdir import files

# Raised by changes after which hashes or correlations differ.
VERSION = 1
# What became of an image: it has a hash, is flat, or cannot be read.
HASHED, FLAT, UNREADABLE = 0, 1, 2
# What names a pair; `test` is the number of the set, 0 inside one set.
PAIR = ['index', 'test', 'test_index']


@dataclasses.dataclass
class Work:
  """The work in a folder.

  Attributes:
    folder: local or remote.
    images: the set that is searched.
    tests: the sets with the queries. None of them: the images are compared with
      each other.
    max_distance: number of bits that hashes of a pair may differ in.
    flips: whether mirrored images are found.
    block_size: images of a block.
    queries: folder in `hashes` -> the set whose images have several views.
  """

  folder: epath.Path
  images: sets.Set
  tests: Sequence[sets.Set] = ()
  max_distance: int = 32
  flips: bool = False
  block_size: int = 16_384

  def __post_init__(self):
    """Opens the folder, or begins it.

    Raises:
      ValueError: it holds a comparison of other images, or one with other
        settings.
    """
    tests = {f'test_{i}': test for i, test in enumerate(self.tests, 1)}
    self.queries = tests or {'data': self.images}
    asked = {
      'version': VERSION,
      'data': self.images.facts(),
      'tests': [test.facts() for test in self.tests],
      'max_distance': self.max_distance,
      'flips': self.flips,
      'block_size': self.block_size,
    }
    path = self.folder / 'settings.json'
    if not path.exists():
      files.write_json(path, asked)
    remedy = 'use another directory, or delete this one'
    saved = files.read_object(path, remedy)
    saved = {key: saved.get(key) for key in asked}
    if found := distributed.differences(saved, asked, 'there', 'now'):
      raise ValueError(
        f'{self.folder} holds another comparison:\n{found}: {remedy}.'
      )

  def run(self, part: int = 0, parts: int = 1) -> None:
    """Computes what is missing of a part, and the test images' hashes.

    Args:
      part: its number, from 0 on.
      parts: how many there are.
    """
    for name, queries in self.queries.items():
      count = len(self._blocks(queries))
      # Each part begins elsewhere, so that they seldom do the same.
      order = np.roll(range(count), -(part * count // parts)).tolist()
      for number in self._missing(f'hashes/{name}', order):
        self._hash(name, number)
    mine = self._blocks(self.images)[part::parts]
    for number in self._missing('pairs', mine):
      if self.tests and not self._path('hashes/data', number).exists():
        self._hash('data', number)
      self._pair(number)

  def missing(self) -> int:
    """Returns how many blocks have no pairs yet."""
    blocks = self._blocks(self.images)
    return sum(not self._path('pairs', block).exists() for block in blocks)

  def pairs(self) -> pd.DataFrame:
    """Returns the pairs whose hashes are near, sorted by PAIR.

    The columns are PAIR; `distance` in bits; `view` of the query image; and
    `correlation`, see `matching`.
    """
    blocks = self._blocks(self.images)
    parts = [pd.DataFrame(_load(self._path('pairs', b))) for b in blocks]
    return pd.concat(parts, ignore_index=True)

  def states(self) -> np.ndarray:
    """Returns what became of the images of the blocks that are there."""
    paths = (self.folder / 'hashes').glob('*/*.npz')
    return np.concatenate([_load(path)['state'] for path in paths])

  def _blocks(self, of: sets.Set) -> range:
    return range(-(-len(of) // self.block_size))

  def _path(self, kind: str, block: int) -> epath.Path:
    return self.folder / kind / f'{block:05d}.npz'

  def _missing(self, kind: str, blocks: Sequence[int]) -> Iterator[int]:
    """Yields the blocks that have no file, and logs the progress."""
    blocks = [b for b in blocks if not self._path(kind, b).exists()]
    start = time.monotonic()
    for done, block in enumerate(blocks, 1):
      # Another machine may have been faster.
      if not self._path(kind, block).exists():
        yield block
      left = (time.monotonic() - start) / done * (len(blocks) - done)
      logging.info(
        '%s: %d of %d blocks, %s left',
        *(kind, done, len(blocks), printable.duration(left)),
      )

  def _hash(self, name: str, number: int) -> None:
    """Writes `state` uint8 [n] and `hash` uint8 [n, V, 16] of a block."""
    of, many = self.queries.get(name, self.images), name in self.queries
    start = number * self.block_size
    block = range(start, min(start + self.block_size, len(of)))
    views = len(hashing.VIEWS) * (1 + self.flips) if many else 1
    state = np.full(len(block), HASHED, np.uint8)
    found = np.zeros((len(block), views, hashing.BITS // 8), np.uint8)

    def work(row):
      try:
        grey = of.grey(block[row])
      except (hashing.CorruptImageError, OSError) as error:
        logging.warning('%s: %s', of.view.name(block[row]), error)
        state[row] = UNREADABLE
        return
      if hashing.is_flat(grey):
        state[row] = FLAT
      elif many:
        found[row] = hashing.of_views(grey, flips=self.flips)
      else:
        found[row] = hashing.of_whole(grey)

    _in_threads(work, range(len(block)))
    _save(self._path(f'hashes/{name}', number), state=state, hash=found)

  def _hashes(self, name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images of a block that have hashes, and these [n, V, 16]."""
    stored = _load(self._path(f'hashes/{name}', number))
    (rows,) = np.nonzero(stored['state'] == HASHED)
    return number * self.block_size + rows, stored['hash'][rows]

  def _pair(self, number: int) -> None:
    """Writes the pairs of a block of the data, see `pairs`."""
    (index, targets), found = self._hashes('data', number), []
    for test, (name, queries) in enumerate(self.queries.items()):
      for other in self._blocks(queries):
        if not self.tests and other > number:
          break
        test_index, hashes = self._hashes(name, other)
        near = near_hashes(targets[:, 0], hashes, self.max_distance)
        near['index'], near['test'] = index[near['target']], test
        near['test_index'] = test_index[near['query']]
        found.append(near)
    found = pd.concat(found)
    if not self.tests:
      found = found[found['test_index'] < found['index']]
    found = found.sort_values(PAIR, ignore_index=True)
    query_sets, columns = [*self.queries.values()], [*PAIR, 'view', 'second']

    def work(index, test, test_index, *views):
      one = self.images.kept_grey(index)
      other = query_sets[test].kept_grey(test_index)
      return matching.correlation(one, other, [v for v in views if v >= 0])

    best = _in_threads(work, *(found[key].tolist() for key in columns))
    arrays = {key: found[key].to_numpy() for key in [*PAIR, 'distance']}
    # Without pairs, NumPy would choose other dtypes.
    arrays['view'] = np.array([view for _, view in best], np.int64)
    scores = np.array([score for score, _ in best], np.float32)
    _save(self._path('pairs', number), **arrays, correlation=scores)


def near_hashes(
  targets: np.ndarray, queries: np.ndarray, max_distance: int
) -> pd.DataFrame:
  """Returns all pairs in which a view differs in at most some bits.

  Args:
    targets: uint8 [T, B], T hashes of B bytes.
    queries: uint8 [Q, V, B], of Q images with V views each.
    max_distance: number of bits.

  Returns:
    A row for each pair, sorted by `target` and `query`, which are rows of the
    arguments: `distance` in bits of the nearest view, `view` its number, and
    `second` that of the second nearest, -1 if only one is near.
  """
  import faiss

  views = queries.shape[1]
  index = faiss.IndexBinaryFlat(hashing.BITS)
  index.add(np.ascontiguousarray(targets))
  flat = np.ascontiguousarray(queries.reshape(-1, queries.shape[2]))
  # faiss finds distances below its radius.
  limits, distance, target = index.range_search(flat, max_distance + 1)
  row = np.repeat(np.arange(len(flat)), np.diff(limits.astype(np.int64)))
  near = pd.DataFrame(
    {
      'target': target,
      'query': row // views,
      'distance': distance.astype(np.int16),
      'view': row % views,
    }
  ).sort_values(['target', 'query', 'distance', 'view'])
  pairs = near.groupby(['target', 'query'])
  near['second'] = pairs['view'].shift(-1, fill_value=-1)
  return near[pairs.cumcount() == 0].reset_index(drop=True)


def _in_threads(work: Callable, *items: Iterable) -> list:
  """Returns the results in order; raises the first one's error."""
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return list(pool.map(work, *items))


def _save(path: epath.Path, **columns: np.ndarray) -> None:
  content = io.BytesIO()
  np.savez(content, **columns)
  files.write_shared(path, content.getvalue())


def _load(path: epath.Path) -> dict[str, np.ndarray]:
  with np.load(io.BytesIO(path.read_bytes())) as stored:
    return dict(stored)
