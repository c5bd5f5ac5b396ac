"""Makes one image of those that are equal to the byte, with all their labels.

In ImageNet-21k, a picture may lie in the folders of several classes.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from absl import logging
from etils import epath

from vit_jax.data.source import Record, Source, View
from vit_jax.prepare_data import job as job_lib
from vit_jax.workdir import files

_DIGEST_BYTES = 16
_THREADS = 32


class Merged(Source):
  """A data set whose equal images are one, with the labels of all copies.

  An image has the place and the name of its first copy. Images of two splits
  stay apart.
  """

  def __init__(self, whole: Source, splits: Sequence[str], folder: epath.Path):
    """Reads all images, unless an earlier command has left their digests.

    Args:
      whole: the data set: encoded images, with one label each.
      splits: the splits to merge.
      folder: where to leave the digests.

    Raises:
      ReadError: the source does not answer.
    """
    self._whole = whole
    # Copies follow each other, in the order of the first of them.
    self._copies, self._starts = {}, {}
    for split in splits:
      keys = _digests(View(whole, split), folder / f'{split}.digests')
      _, first, group = np.unique(keys, return_index=True, return_inverse=True)
      first = first[group]
      copies = np.argsort(first, kind='stable')
      steps = np.diff(first[copies], prepend=-1, append=len(copies))
      self._copies[split], self._starts[split] = copies, np.flatnonzero(steps)
    sizes = {split: len(of) - 1 for split, of in self._starts.items()}
    for split, size in sizes.items():
      copies = whole.info.splits[split] - size
      logging.info('%s: merged %s copies of images.', split, f'{copies:,}')
    self.info = dataclasses.replace(whole.info, splits=sizes, multi_label=True)

  def _places(self, split: str, index: int) -> list[int]:
    start, stop = self._starts[split][index : index + 2]
    return self._copies[split][start:stop].tolist()

  def read(self, split: str, index: int) -> Record:
    """Reads the first copy, with the ascending labels of all."""
    record = self._whole.read(split, self._places(split, index)[0])
    return dataclasses.replace(record, label=self.label(split, index))

  def label(self, split: str, index: int) -> tuple[int, ...]:
    places = self._places(split, index)
    return tuple(sorted({self._whole.label(split, place) for place in places}))

  def name(self, split: str, index: int) -> str:
    return self._whole.name(split, self._places(split, index)[0])


def _digests(view: View, path: epath.Path) -> np.ndarray:
  """Returns a digest of each image, [n], from a file that is made if needed.

  Only together they tell which images are equal, so a command that goes on
  takes those of the first: a file may be readable only later.
  """
  if not path.exists():
    found = bytearray()
    job_lib.log_progress('Compared', _hash(view, found), len(view))
    files.write_shared(path, bytes(found))
  return np.frombuffer(path.read_bytes(), f'V{_DIGEST_BYTES}')


def _hash(view: View, found: bytearray) -> Iterator[int]:
  """Appends the digest of each image to `found`, and yields 1."""
  records = job_lib.records(view, range(len(view)), _THREADS)
  for index, record in enumerate(records):
    # A file that is empty or cannot be read has no copy, and is set aside.
    image = b'' if isinstance(record, OSError) else record.image
    content = image or str(index).encode()
    found += hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
    yield 1
