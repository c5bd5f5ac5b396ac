"""`digits`: 1,797 real handwritten digits that ship inside scikit-learn.

The data set for trying things out: no download, 8x8 pixels, ten classes.
`digits:13589` keeps only some digits, for example to pre-train on half of the
classes and transfer to the other half.
"""

import importlib.util
import pathlib

import numpy as np

from vit_jax.data import source

_DIGITS = '0123456789'
_SEED = 2010


class Digits(source.Labelled):
  """Scanned digits, uint8 [8, 8, 1], in a fixed class-balanced order.

  The images of each class have a fixed shuffled order, and the classes take
  turns. So every prefix is balanced as long as all classes have images left (a
  class has 174 to 183). `train` is the first 80 %, `test` the rest. Labels are
  positions in `digits`.
  """

  def __init__(self, digits: str = _DIGITS):
    """Loads the images.

    Args:
      digits: the digits to keep, one character each, in the order of their
        labels.

    Raises:
      ValueError: a character is not a digit or repeats, or there are fewer
        than two.
    """
    if len(set(digits) & set(_DIGITS)) < max(2, len(digits)):
      raise ValueError(
        f'digits:{digits}: expected two or more different digits out of'
        f' {_DIGITS}.'
      )
    images, labels = _load(digits)
    end = int(0.8 * len(labels))
    self._images = {'train': images[:end], 'test': images[end:]}
    self._labels = {'train': labels[:end], 'test': labels[end:]}
    self.info = source.SourceInfo(
      spec=f'digits:{digits}',
      splits={split: len(of) for split, of in self._labels.items()},
      class_names=tuple(digits),
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one digit: image uint8 [8, 8, 1], 0 (paper) to 255 (ink)."""
    label, name = self.label(split, index), self.name(split, index)
    return source.Record(self._images[split][index], label, name)


def _load(digits: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns images uint8 [n, 8, 8, 1] and labels int32 [n], in split order."""
  # Importing scikit-learn takes a second or more, a tenth of the smallest runs.
  # So its data file is read directly.
  package = importlib.util.find_spec('sklearn').submodule_search_locations[0]
  path = pathlib.Path(package, 'datasets', 'data', 'digits.csv.gz')
  rows = np.loadtxt(path, delimiter=',')
  scans, targets = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
  indices, turns, labels = [], [], []
  for label, digit in enumerate(digits):
    (members,) = np.nonzero(targets == int(digit))
    # One generator per digit: its order does not depend on the other digits.
    rng = np.random.Generator(np.random.PCG64([_SEED, int(digit)]))
    indices.append(rng.permutation(members))
    turns.append(np.arange(len(members)))
    labels.append(np.full(len(members), label, np.int32))
  indices, turns, labels = map(np.concatenate, (indices, turns, labels))
  order = np.lexsort((labels, turns))
  images = np.rint(scans[indices[order]] * (255 / 16)).astype(np.uint8)
  return images[..., None], labels[order]
