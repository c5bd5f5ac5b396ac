"""Measures `vit_jax.dedup`: `python -m benchmarks.dedup --data=SPEC`.

Plants near-duplicates of the images of a data spec, and counts how many are
found. `by hash` is the share whose pixels are compared, `found` the share that
is found, with the changed images as the data, and `reverse` with the changed
images as the test images. `false` counts other pairs, of all images in both
directions. The last lines are over all changes but, without --flips, mirroring.

  python -m benchmarks.dedup --data=classes:photos
  python -m benchmarks.dedup --data=folder:/data/cifar10 --images=500 --rounds=2
  python -m benchmarks.dedup --data=classes:photos --flips

Each round draws other crops, and so on. The images must be JPEGs.

  python -m benchmarks.dedup --searched=1000000 --queries=50000

times the search of random hashes in place of this.
"""

import resource
import time

import numpy as np
from absl import flags

from benchmarks import report
from benchmarks.measure import dedup
from vit_jax import data
from vit_jax.dedup import hashing, search, work
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_DATA = flags.DEFINE_string('data', None, 'Data spec of the originals.')
_SPLIT = flags.DEFINE_string('split', 'train', 'Split expression of --data.')
_IMAGES = flags.DEFINE_integer('images', 120, 'Originals, at random.', 1)
_ROUNDS = flags.DEFINE_integer('rounds', 1, 'Rounds, each of another seed.', 1)
_SEED = flags.DEFINE_integer('seed', 0, 'The seed of the first round.', 0)
_FLIPS = flags.DEFINE_bool('flips', False, 'Also look for mirrored images.')
_MIN_CORRELATION = flags.DEFINE_float('min_correlation', 0.8, 'As of dedup.')
_SEARCHED = flags.DEFINE_integer('searched', 0, 'Random hashes to search.', 0)
_QUERIES = flags.DEFINE_integer('queries', 50_000, 'Random query images.', 1)

_COLUMNS = {
  'by hash': ('by_hash', '.1%'),
  'found': ('found', '.1%'),
  'reverse': ('reverse', '.1%'),
  'false': ('false', 'd'),
  'images/core-s': ('images_per_core_sec', ',.0f'),
  'seconds': ('seconds', '.1f'),
  'core-seconds': ('core_seconds', '.1f'),
  'comparisons/core-s': ('rate', '.3g'),
  'GiB': ('gib', '.2f'),
}
_DISTANCE = work.Work.max_distance


def main():
  if bool(_DATA.value) == bool(_SEARCHED.value):
    raise ValueError(
      f'--data={_DATA.value} and --searched={_SEARCHED.value}: give one.'
    )
  results = _search() if _SEARCHED.value else _quality()
  report.publish(
    'dedup',
    results,
    _COLUMNS,
    setting={
      **{f.name: f.value for f in (_DATA, _SPLIT, _IMAGES, _ROUNDS, _SEED)},
      **{f.name: f.value for f in (_FLIPS, _SEARCHED, _QUERIES)},
      'max_distance': _DISTANCE,
      'min_correlation': _MIN_CORRELATION.value,
    },
    title=f'Near-duplicates of {_DATA.value or "random hashes"}',
  )


def _originals() -> list[bytes]:
  view = data.View(data.open_source(_DATA.value), _SPLIT.value)
  rng = np.random.default_rng(_SEED.value)
  chosen = rng.permutation(len(view))[: _IMAGES.value]
  return [view[index].image for index in sorted(chosen.tolist())]


def _quality():
  originals = _originals()
  known = dedup.pairs(originals, [], _FLIPS.value)
  same = {
    (min(pair), max(pair))
    for *pair, correlation in zip(
      *(known[key].tolist() for key in ('index', 'test_index', 'correlation')),
      strict=True,
    )
    if correlation >= min(dedup.CORRELATIONS)
  }
  everything, results = [], _rates(originals)
  for name, change in dedup.CHANGES.items():
    found = [
      dedup.quality(originals, change, _SEED.value + number, _FLIPS.value)
      for number in range(_ROUNDS.value)
    ]
    results[name] = _figures(found, same, len(originals))
    if _FLIPS.value or 'mirrored' not in name:
      everything += found
  for distance in dedup.DISTANCES:
    results[f'up to {distance} bits'] = _figures(
      everything, same, len(originals), distance=distance
    )
  for correlation in dedup.CORRELATIONS:
    results[f'from {correlation:g} on'] = _figures(
      everything, same, len(originals), correlation=correlation
    )
  return results


def _rates(originals):
  """Returns how many images a core decodes and hashes in a second."""
  repeats = -(-2000 // len(originals))
  results = {}
  for name, views in (('data', False), ('test images', True)):
    cores = time.process_time()
    for image in originals * repeats:
      grey = hashing.decode(image, upright=True)
      if not hashing.is_flat(grey):
        if views:
          hashing.of_views(grey, flips=_FLIPS.value)
        else:
          hashing.of_whole(grey)
    cores = time.process_time() - cores
    rate = repeats * len(originals) / cores
    results[f'hashes of {name}'] = {'images_per_core_sec': rate}
  return results


def _figures(found, same, images, *, distance=_DISTANCE, correlation=None):
  if correlation is None:
    correlation = _MIN_CORRELATION.value
  total = images * len(found)
  (hashed, _), (right, false), (back, false_back) = (
    np.sum(
      [
        dedup.count(pair[direction], same, correlation=least, distance=distance)
        for pair in found
      ],
      axis=0,
    ).tolist()
    for direction, least in ((0, -1), (0, correlation), (1, correlation))
  )
  return {
    'by_hash': hashed / total,
    'found': right / total,
    'reverse': back / total,
    'false': false + false_back,
  }


def _search():
  rng = np.random.default_rng(_SEED.value)
  size = hashing.BITS // 8
  targets = rng.integers(0, 256, (_SEARCHED.value, size), np.uint8)
  shape = (_QUERIES.value, len(hashing.VIEWS), size)
  queries = rng.integers(0, 256, shape, np.uint8)
  block, results = work.Work.block_size, {}
  for number in range(_ROUNDS.value):
    start, cores = time.monotonic(), time.process_time()
    for first in range(0, len(targets), block):
      part = targets[first : first + block]
      search.near_hashes(part, queries, _DISTANCE)
    cores = time.process_time() - cores
    results[f'round {number + 1}'] = {
      'seconds': time.monotonic() - start,
      'core_seconds': cores,
      'rate': len(targets) * shape[0] * shape[1] / cores,
      'gib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
  return results


if __name__ == '__main__':
  command_line.run(main)
