"""Finds images that are the same to the byte, to merge their labels.

In ImageNet-21k, a picture may lie in the folders of several synsets. Its copies
become one record, at the place of the first, with the labels of all.
"""

import dataclasses
import hashlib
import time
from collections.abc import Sequence

import numpy as np
from absl import logging
from etils import epath

from vit_jax.data.source import View, read_labels
from vit_jax.prepare_data import job as job_lib
from vit_jax.prepare_data import parallel, reading

_BLOCK = 16_384  # Images of a task.
_DIGEST_BYTES = 16
_WAIT_SEC = 5.0  # The longest time between two looks.


@dataclasses.dataclass(frozen=True)
class Groups:
  """The records of a split.

  Attributes:
    labels: the labels of all records, concatenated, int32; those of a record
      are ascending.
    label_ends: where the labels of each record end, int64 [records].
    images: the indices of the images of all records in the source,
      concatenated, int64; those of a record are ascending.
    image_ends: where the images of each record end, int64 [records].
  """

  labels: np.ndarray
  label_ends: np.ndarray
  images: np.ndarray
  image_ends: np.ndarray

  def __len__(self) -> int:
    return len(self.image_ends)

  def labels_of(self, record: int) -> list[int]:
    """Returns the labels of a record."""
    return _part(self.labels, self.label_ends, record)

  def images_of(self, record: int) -> list[int]:
    """Returns the images of a record, the first of which is stored."""
    return _part(self.images, self.image_ends, record)


def find(job: job_lib.Job, part: tuple[int, int], processes: int) -> None:
  """Writes the groups of all splits to the job's folder.

  Args:
    job: the job.
    part: (k, n): this command hashes every n-th block of images from the k-th,
      and waits for the others.
    processes: number of processes.
  """
  blocks = [
    (split, start, min(start + _BLOCK, job.source.info.splits[split]))
    for split in job.splits
    for start in range(0, job.source.info.splits[split], _BLOCK)
  ]
  mine = [
    block
    for i, block in enumerate(blocks)
    if i % part[1] == part[0] and not _path(job, block).exists()
  ]
  records = sum(stop - start for _, start, stop in mine)
  for _ in parallel.run(
    *(_hash, job, mine), processes=processes, records=records, what='Hashed'
  ):
    pass
  _wait(job, blocks)
  for split in job.splits:
    if not _done(job.state, split).exists():
      digests = [_path(job, b) for b in blocks if b[0] == split]
      digests = np.concatenate([job_lib.read_array(path) for path in digests])
      _write(job, split, group(digests, read_labels(View(job.source, split))))


def load(state: epath.Path, split: str) -> Groups:
  """Loads the groups of a split from the folder of a job's state."""
  return Groups(
    **{
      field.name: job_lib.read_array(state / f'{split}.{field.name}.npy')
      for field in dataclasses.fields(Groups)
    }
  )


def group(digests: np.ndarray, labels: Sequence[int | Sequence[int]]) -> Groups:
  """Groups images by their digests.

  Args:
    digests: uint8 [images, 16].
    labels: the label or labels of each image.
  """
  keys = np.ascontiguousarray(digests).view(f'V{_DIGEST_BYTES}').ravel()
  _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
  # In the order of the first images, and not of the digests.
  order = np.argsort(first, kind='stable')
  rank = np.empty_like(order)
  rank[order] = np.arange(len(order))
  if isinstance(labels, np.ndarray):
    owner, flat = rank[inverse], labels.astype(np.int64)
  else:
    each = [np.atleast_1d(np.asarray(one, np.int64)) for one in labels]
    owner = np.repeat(rank[inverse], [len(one) for one in each])
    flat = np.concatenate(each)
  # A negative number says that the class is not known. As part of a pair it
  # would become a class of another record.
  known = flat >= 0
  owner, flat = owner[known], flat[known]
  classes = int(flat.max(initial=0)) + 1
  # Each pair of a record and a label, once, in this order.
  pairs = np.unique(owner.astype(np.int64) * classes + flat)
  counts = np.bincount(pairs // classes, minlength=len(first))
  record = rank[inverse]
  return Groups(
    labels=(pairs % classes).astype(np.int32),
    label_ends=np.cumsum(counts),
    images=np.argsort(record, kind='stable'),
    image_ends=np.cumsum(np.bincount(record, minlength=len(first))),
  )


def _part(values: np.ndarray, ends: np.ndarray, index: int) -> list[int]:
  begin = int(ends[index - 1]) if index else 0
  return values[begin : int(ends[index])].tolist()


def _hash(job: job_lib.Job, block: tuple[str, int, int]) -> None:
  split, start, stop = block
  digests = np.zeros((stop - start, _DIGEST_BYTES), np.uint8)
  for row, record in reading.records(
    View(job.source, split), range(start, stop)
  ):
    if isinstance(record, Exception):
      # Unreadable images are told apart, so that each is reported.
      content = f'{split}/{start + row}'.encode()
    elif isinstance(record.image, np.ndarray):
      content = f'{record.image.shape}'.encode() + record.image.tobytes()
    else:
      content = record.image or f'{split}/{start + row}'.encode()
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
    digests[row] = np.frombuffer(digest, np.uint8)
    parallel.advance(1)
  job_lib.write_array(_path(job, block), digests)


def _path(job: job_lib.Job, block: tuple[str, int, int]) -> epath.Path:
  return job.state / 'digests' / f'{block[0]}-{block[1]:010}.npy'


def _done(state: epath.Path, split: str) -> epath.Path:
  """The file that is written last."""
  return state / f'{split}.{dataclasses.fields(Groups)[-1].name}.npy'


def _write(job: job_lib.Job, split: str, groups: Groups) -> None:
  for field in dataclasses.fields(Groups):
    path = job.state / f'{split}.{field.name}.npy'
    job_lib.write_array(path, getattr(groups, field.name))


def _wait(job: job_lib.Job, blocks: Sequence[tuple[str, int, int]]) -> None:
  """Waits until other parts have hashed their blocks."""
  missing, last, pause = list(blocks), None, 0.1
  while missing := [b for b in missing if not _path(job, b).exists()]:
    if last != len(missing):
      logging.info(
        'Waiting for the other parts, which have %d blocks of images left to'
        ' hash.',
        len(missing),
      )
      last = len(missing)
    time.sleep(pause)
    pause = min(2 * pause, _WAIT_SEC)
