"""Measures `vit_jax.dedup`: `python -m benchmarks.dedup --data=SPEC`.

Plants near-duplicates of the images of a data spec, and counts how many are
found. Every original is changed in the same way. `by hash` is the share whose
pixels are compared, `found` the share that is found, with the changed images as
the data, and `reverse` with the changed images as the test images. `false`
counts pairs of other images in both directions, unless their originals are
near-duplicates of each other. The last lines are over all changes but, without
--flips, mirroring.

  python -m benchmarks.dedup --data=classes:photos
  python -m benchmarks.dedup --data=folder:/data/cifar10 --images=500 --rounds=2
  python -m benchmarks.dedup --data=classes:photos --flips

Each round draws other crops, and so on. The images must be JPEGs.
"""

import tempfile
from collections.abc import Sequence

import cv2
import numpy as np
import pandas as pd
from absl import flags
from etils import epath

from benchmarks import report
from vit_jax import data
from vit_jax.dedup import sets, work
from vit_jax.runtime import command_line

flags.adopt_module_key_flags(report)
_DATA = flags.DEFINE_string('data', None, 'Data spec of the originals.')
_SPLIT = flags.DEFINE_string('split', 'train', 'Split expression of --data.')
_IMAGES = flags.DEFINE_integer('images', 120, 'Originals, at random.', 1)
_ROUNDS = flags.DEFINE_integer('rounds', 1, 'Rounds, each of another seed.', 1)
_SEED = flags.DEFINE_integer('seed', 0, 'The seed of the first round.', 0)
_FLIPS = flags.DEFINE_bool('flips', False, 'Also look for mirrored images.')
_MIN_CORRELATION = flags.DEFINE_float('min_correlation', 0.8, 'As of dedup.')

_COLUMNS = {
  'by hash': ('by_hash', '.1%'),
  'found': ('found', '.1%'),
  'reverse': ('reverse', '.1%'),
  'false': ('false', 'd'),
}
_CORRELATIONS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
# Candidates up to the last of these are compared, so that curves can be drawn.
_DISTANCES = (10, 16, 20, 24, 28, 30, 32, 36)


def _encoded(image: np.ndarray, quality: int = 95) -> bytes:
  how = [cv2.IMWRITE_JPEG_QUALITY, quality]
  return cv2.imencode('.jpg', image, how)[1].tobytes()


def _decoded(encoded: bytes) -> np.ndarray:
  return cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)


def _jpeg(image, rng, quality):
  return _decoded(_encoded(image, quality))


def _resize(image, rng, factor):
  height, width = image.shape[:2]
  size = max(4, round(width * factor)), max(4, round(height * factor))
  how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
  return cv2.resize(image, size, interpolation=how)


def _crop(image, rng, share):
  """Keeps a share of each side, at a random place."""
  height, width = (round(share * side) for side in image.shape[:2])
  top = rng.integers(image.shape[0] - height + 1)
  left = rng.integers(image.shape[1] - width + 1)
  return image[top : top + height, left : left + width]


def _grey(image, rng):
  grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
  return cv2.cvtColor(grey, cv2.COLOR_GRAY2BGR)


def _brightness(image, rng, levels):
  """Makes an image brighter or darker by some grey levels; some saturate."""
  offset = rng.choice([-levels, levels])
  return np.clip(image * 1.0 + offset, 0, 255).astype(np.uint8)


def _contrast(image, rng, share):
  """Changes the distance from the middle grey by a share."""
  factor = rng.choice([1 - share, 1 + share])
  offset = 127.5 * (1 - factor)
  return np.clip(image * factor + offset, 0, 255).astype(np.uint8)


def _mirror(image, rng):
  return cv2.flip(image, 1)


# Name -> steps: functions of (image, random generator, further arguments).
CHANGES = {
  'JPEG 90': [(_jpeg, 90)],
  'JPEG 50': [(_jpeg, 50)],
  'JPEG 20': [(_jpeg, 20)],
  'resized to 50%': [(_resize, 0.5)],
  'resized to 25%': [(_resize, 0.25)],
  'resized to 150%': [(_resize, 1.5)],
  'cropped by 10%': [(_crop, 0.9)],
  'grey': [(_grey,)],
  'brightness': [(_brightness, 40)],
  'contrast': [(_contrast, 0.4)],
  'mirrored': [(_mirror,)],
  'crop, 50%, JPEG 50': [(_crop, 0.9), (_resize, 0.5), (_jpeg, 50)],
  'grey, brightness, JPEG 20': [(_grey,), (_brightness, 40), (_jpeg, 20)],
  'mirrored, crop, JPEG 50': [(_mirror,), (_crop, 0.9), (_jpeg, 50)],
}


def changed(
  image: np.ndarray, name: str, rng: np.random.Generator
) -> np.ndarray:
  """Returns an image, uint8 [H, W, 3], after one of CHANGES."""
  for step, *arguments in CHANGES[name]:
    image = step(image, rng, *arguments)
  return image


class _Images(data.Source):
  """Encoded images in memory."""

  def __init__(self, images: Sequence[bytes]):
    self.info = data.SourceInfo('planted', {'train': len(images)}, ('any',))
    self._images = images

  def read(self, split: str, index: int) -> data.Record:
    return data.Record(self._images[index], 0, str(index))


def pairs(
  images: Sequence[bytes], tests: Sequence[bytes], flips: bool = False
) -> pd.DataFrame:
  """Returns the pairs that are compared, see `work.Work.pairs`.

  Args:
    images: the data to clean.
    tests: the test images; [] compares the images with each other.
    flips: see `work.Work`.
  """
  opened = [
    sets.Set(data.View(_Images(each), 'train'), upright=False)
    for each in (images, tests)
    if each
  ]
  with tempfile.TemporaryDirectory() as folder:
    job = work.Work(
      *(epath.Path(folder), opened[0], opened[1:]),
      max_distance=_DISTANCES[-1],
      flips=flips,
    )
    job.run()
    return job.pairs()


def planted(
  originals: Sequence[bytes], name: str, seed: int, flips: bool = False
) -> list[dict[str, np.ndarray]]:
  """Returns what is found of changed images, in both directions.

  Args:
    originals: JPEGs.
    name: one of CHANGES.
    seed: of random numbers.
    flips: whether to look for mirrored images.

  Returns:
    `pairs` of changed images with originals as the test images, and the other
    way round.
  """
  rng = np.random.default_rng(seed)
  copies = [
    _encoded(changed(_decoded(image), name, rng)) for image in originals
  ]
  return [pairs(copies, originals, flips), pairs(originals, copies, flips)]


def count(
  found: pd.DataFrame,
  same: set[tuple[int, int]],
  correlation: float,
  distance: int = work.Work.max_distance,
) -> np.ndarray:
  """Returns how many planted pairs and how many false ones are found.

  Args:
    found: see `pairs`.
    same: pairs of originals that are near-duplicates of each other.
    correlation: the least one.
    distance: the most bits.
  """
  kept = (found['correlation'] >= correlation) & (found['distance'] <= distance)
  both = np.stack([found['index'][kept], found['test_index'][kept]], axis=1)
  right = (both[:, 0] == both[:, 1]).sum()
  others = both[both[:, 0] != both[:, 1]]
  false = sum(tuple(pair) not in same for pair in np.sort(others).tolist())
  return np.array([right, false])


def main():
  view = data.View(data.open_source(_DATA.value), _SPLIT.value)
  rng, flips = np.random.default_rng(_SEED.value), _FLIPS.value
  chosen = rng.permutation(len(view))[: _IMAGES.value]
  originals = [view[index].image for index in sorted(chosen.tolist())]
  known = pairs(originals, [], flips)
  alike = known['correlation'] >= min(_CORRELATIONS)
  both = np.stack([known['index'][alike], known['test_index'][alike]], axis=1)
  same = set(map(tuple, np.sort(both).tolist()))

  def figures(found, correlation=_MIN_CORRELATION.value, **distance):
    hashed, right, back = (
      sum(count(each[i], same, least, **distance) for each in found).tolist()
      for i, least in ((0, -1), (0, correlation), (1, correlation))
    )
    total = len(originals) * len(found)
    return {
      'by_hash': hashed[0] / total,
      'found': right[0] / total,
      'reverse': back[0] / total,
      'false': right[1] + back[1],
    }

  everything, results = [], {}
  for name in CHANGES:
    found = [
      planted(originals, name, _SEED.value + number, flips)
      for number in range(_ROUNDS.value)
    ]
    results[name] = figures(found)
    if flips or 'mirrored' not in name:
      everything += found
  for bits in _DISTANCES:
    results[f'up to {bits} bits'] = figures(everything, distance=bits)
  for least in _CORRELATIONS:
    results[f'from {least:g} on'] = figures(everything, least)
  report.publish(
    'dedup',
    results,
    _COLUMNS,
    f'Near-duplicates of {_DATA.value}',
    max_distance=work.Work.max_distance,
  )


if __name__ == '__main__':
  command_line.run(main, required=('data',))
