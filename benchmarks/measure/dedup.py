"""Plants near-duplicates, and counts how many `vit_jax.dedup` finds.

Every original is changed in the same way. Then the changed images are cleaned
of the originals, and the originals of the changed images. A pair of an original
with its own changed image counts as found; any other pair is false, unless the
two originals are near-duplicates of each other.
"""

import tempfile
from collections.abc import Callable, Sequence

import cv2
import numpy as np
import pandas as pd
from etils import epath

from vit_jax import data
from vit_jax.dedup import sets, work

CORRELATIONS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
DISTANCES = (10, 16, 20, 24, 28, 30, 32, 36)
# Candidates up to this many bits are compared, so that curves can be drawn.
_MOST_BITS = max(DISTANCES)

Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _jpeg(quality: int) -> Change:
  return lambda image, rng: cv2.imdecode(
    np.frombuffer(_encoded(image, quality), np.uint8), cv2.IMREAD_COLOR
  )


def _resize(factor: float) -> Change:
  how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC

  def change(image, rng):
    height, width = image.shape[:2]
    size = max(4, round(width * factor)), max(4, round(height * factor))
    return cv2.resize(image, size, interpolation=how)

  return change


def _crop(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Keeps 90% of each side, at a random place."""
  height, width = (round(0.9 * side) for side in image.shape[:2])
  top = rng.integers(image.shape[0] - height + 1)
  left = rng.integers(image.shape[1] - width + 1)
  return image[top : top + height, left : left + width]


def _grey(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  return cv2.cvtColor(
    cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR
  )


def _brighter(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Makes an image brighter or darker by 40 grey levels; some saturate."""
  return _levels(image, 1.0, rng.choice([-40, 40]))


def _contrast(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Multiplies the distance from the middle grey by 0.6 or 1.4."""
  factor = rng.choice([0.6, 1.4])
  return _levels(image, factor, 127.5 * (1 - factor))


def _levels(image: np.ndarray, factor: float, offset: float) -> np.ndarray:
  return np.clip(image * factor + offset, 0, 255).astype(np.uint8)


def _mirror(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  return cv2.flip(image, 1)


def _all(*changes: Change) -> Change:
  def change(image, rng):
    for one in changes:
      image = one(image, rng)
    return image

  return change


CHANGES: dict[str, Change] = {
  'JPEG 90': _jpeg(90),
  'JPEG 50': _jpeg(50),
  'JPEG 20': _jpeg(20),
  'resized to 50%': _resize(0.5),
  'resized to 25%': _resize(0.25),
  'resized to 150%': _resize(1.5),
  'cropped by 10%': _crop,
  'grey': _grey,
  'brightness': _brighter,
  'contrast': _contrast,
  'mirrored': _mirror,
  'crop, 50%, JPEG 50': _all(_crop, _resize(0.5), _jpeg(50)),
  'grey, brightness, JPEG 20': _all(_grey, _brighter, _jpeg(20)),
  'mirrored, crop, JPEG 50': _all(_mirror, _crop, _jpeg(50)),
}


class Images(data.Source):
  """Encoded images in memory."""

  def __init__(self, images: Sequence[bytes]):
    self.info = data.SourceInfo('planted', {'train': len(images)}, ('any',))
    self._images = images

  def read(self, split: str, index: int) -> data.Record:
    return data.Record(self._images[index], 0, str(index))


def quality(
  originals: Sequence[bytes], change: Change, seed: int, flips: bool
) -> list[pd.DataFrame]:
  """Returns what is found of changed images, in both directions.

  Args:
    originals: JPEGs.
    change: how each is changed.
    seed: of random numbers.
    flips: whether to look for mirrored images.

  Returns:
    Two times `pairs`, below: of changed images with originals as the test
    images, and the other way round.
  """
  rng = np.random.default_rng(seed)
  changed = [
    _encoded(
      change(
        cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR), rng
      )
    )
    for image in originals
  ]
  return [pairs(changed, originals, flips), pairs(originals, changed, flips)]


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
    sets.Set(data.View(Images(each), 'train'), upright=False)
    for each in (images, tests)
    if each
  ]
  with tempfile.TemporaryDirectory() as folder:
    job = work.Work(
      *(epath.Path(folder), opened[0], opened[1:]),
      max_distance=_MOST_BITS,
      flips=flips,
    )
    job.run()
    return job.pairs()


def count(
  found: pd.DataFrame,
  same: set[tuple[int, int]],
  *,
  correlation: float,
  distance: int,
) -> tuple[int, int]:
  """Returns how many planted pairs and how many false ones are found.

  Args:
    found: see `pairs`.
    same: pairs of originals that are near-duplicates of each other.
    correlation: the least one.
    distance: the most bits.
  """
  kept = (found['correlation'] >= correlation) & (found['distance'] <= distance)
  right = false = 0
  for one, other in zip(
    found['index'][kept].tolist(),
    found['test_index'][kept].tolist(),
    strict=True,
  ):
    right += one == other
    false += one != other and (min(one, other), max(one, other)) not in same
  return right, false


def _encoded(image: np.ndarray, quality: int = 95) -> bytes:
  how = [cv2.IMWRITE_JPEG_QUALITY, quality]
  return cv2.imencode('.jpg', image, how)[1].tobytes()
