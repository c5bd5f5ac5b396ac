"""The data sets to compare, and their images in grey."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import exclusion, identity, retrying
from vit_jax.dedup import hashing

# Images in grey that a set keeps; a JPEG's has about 12 kB.
_KEPT = 20_000


@dataclasses.dataclass
class Set:
  """The images of a data spec's split.

  Attributes:
    view: the images.
    upright: whether they are rotated by their EXIF orientation, as in training.
  """

  view: data.View
  upright: bool

  def __post_init__(self):
    # Only images of pairs are kept: PNGs and arrays are not reduced.
    self.kept_grey = functools.lru_cache(_KEPT)(self.grey)

  def __len__(self) -> int:
    return len(self.view)

  @property
  def spec(self) -> str:
    return self.view.source.info.spec

  def grey(self, index: int) -> np.ndarray:
    """Returns an image in grey, reduced: uint8 [h, w].

    Raises:
      CorruptImageError: it cannot be decoded.
      OSError: there is no such file, or it may not be read.
      ReadError: the source does not answer.
    """
    image = retrying.read(self.view, index).image
    return hashing.decode(image, upright=self.upright)

  def facts(self) -> dict[str, object]:
    """Returns facts that are equal for equal images; JSON-able."""
    digest = data.digest(self.view)
    del digest['dataset']  # The data may have been moved.
    return {
      'split': self.view.split,
      'images': len(self.view),
      'digest': identity.short_hash(digest),
    }

  def places(self, indices: Sequence[int]) -> dict[str, list[int]]:
    """Returns split -> indices there, for each split that the view reads."""
    found = {part.split: [] for part in self.view.selection.ranges}
    for split, there, _ in self.view.selection.places(
      np.array(sorted(indices), np.int64)
    ):
      found[split] += there.tolist()
    return found


def open_set(spec: str, split: str, **options) -> Set:
  """Opens the images of a data spec.

  Args:
    spec: the data spec.
    split: a split expression.
    options: see `data.open_source`.

  Raises:
    ValueError: the spec or the split is wrong, or a list of exclusions belongs
      to the spec.
  """
  base, path = exclusion.split(spec)
  if path:
    raise ValueError(
      f'{spec}: name the whole data set, {base}. The lists that are'
      ' written here count its images.'
    )
  source = data.open_source(spec, **options)
  return Set(data.View(source, split), config_lib.is_located(spec))
