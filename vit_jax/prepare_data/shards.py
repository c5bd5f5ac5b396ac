"""Writes the shards, each by itself and with the same bytes every time.

In ImageNet-21k, a picture may lie in the folders of several synsets. If copies
that are equal to the byte are merged, they become one record, at the place of
the first, with the labels of all.
"""

import collections
import dataclasses
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence

import fsspec
import numpy as np
from absl import logging
from array_record.python import array_record_module
from etils import epath
from tensorflow_datasets.proto import tf_example_pb2

from vit_jax.data import permutation
from vit_jax.data.ops import decoding
from vit_jax.data.source import View
from vit_jax.prepare_data import images
from vit_jax.prepare_data import job as job_lib
from vit_jax.runtime import json_text
from vit_jax.workdir import files

# One record in each chunk, so that a read decompresses no other. Images are
# compressed already.
_OPTIONS = 'group_size:1,uncompressed'
_SEED = 0
# Images whose digests are computed by one task.
_BLOCK = 16_384
_DIGEST_BYTES = 16
_WAIT_SEC = 5.0  # Between two looks for the digests of other parts.


@dataclasses.dataclass
class Facts:
  """What became of the images of a shard, or of many shards; JSON-able.

  Attributes:
    counts: number of `records`, of `bytes` of the images in them, and of images
      that were `converted`.
    classes: number of labels of each class, by its index as text.
    notes: what is unusual -> number of images.
    set_aside: (name, class, reason) of each image that is not stored.
    copies: (name, class, name of the stored image) of each image that was
      merged with another.
    sha256: of the file; '' for many shards.
  """

  counts: dict[str, int] = dataclasses.field(
    default_factory=collections.Counter
  )
  classes: dict[str, int] = dataclasses.field(
    default_factory=collections.Counter
  )
  notes: dict[str, int] = dataclasses.field(default_factory=collections.Counter)
  set_aside: list[list[str]] = dataclasses.field(default_factory=list)
  copies: list[list[str]] = dataclasses.field(default_factory=list)
  sha256: str = ''


def total(every: Iterable[Facts]) -> Facts:
  """Returns the facts of many shards; the images in them are sorted."""
  whole = Facts()
  for facts in every:
    whole.counts.update(facts.counts)
    whole.classes.update(facts.classes)
    whole.set_aside += facts.set_aside
    whole.copies += facts.copies
    whole.notes.update(facts.notes)
  whole.set_aside.sort()
  whole.copies.sort()
  return whole


def every(job: job_lib.Job) -> list[job_lib.Shard]:
  """Returns all shards; those of a split have equal numbers of places."""
  found = []
  for split in job.splits:
    count, records = job.shards[split], _records(job, split)
    bounds = [records * i // count for i in range(count + 1)]
    found += [
      job_lib.Shard(split, i, bounds[i], bounds[i + 1]) for i in range(count)
    ]
  return found


def _records(job: job_lib.Job, split: str) -> int:
  """Returns the number of records of a split, if all images can be stored."""
  if job.merged:
    return len(job.groups[split][1])
  return job.source.info.splits[split]


def facts_path(job: job_lib.Job, shard: job_lib.Shard) -> epath.Path:
  """Returns the path of the facts of a shard, which exist when it does."""
  return job.state / f'{shard.split}-{shard.index:05}.facts.json'


def read_facts(job: job_lib.Job, shard: job_lib.Shard) -> Facts:
  """Reads the facts of a shard that is written."""
  return Facts(**json_text.read(facts_path(job, shard)))


def is_written(job: job_lib.Job, shard: job_lib.Shard) -> bool:
  return facts_path(job, shard).exists() and job.path(shard).exists()


def write(job: job_lib.Job, shard: job_lib.Shard) -> None:
  """Writes a shard, then its facts; what was there before is replaced."""
  facts = Facts()
  examples = _examples(job, shard, facts)
  facts.sha256 = write_file(job.path(shard), examples, _OPTIONS)
  job_lib.write_json(facts_path(job, shard), vars(facts))


def write_file(path: epath.Path, records: Iterable[bytes], options: str) -> str:
  """Writes a whole ArrayRecord file at once; returns its SHA-256.

  Args:
    path: local or remote; the folder for unfinished files is beside it.
    records: the content.
    options: of ArrayRecord.
  """
  remote, place = '://' in os.fspath(path), None
  if not remote:
    place = path.parent / job_lib.STATE
    place.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=place) as folder:
    temporary = os.path.join(folder, path.name)
    writer = array_record_module.ArrayRecordWriter(temporary, options)
    for record in records:
      writer.write(record)
    writer.close()
    with open(temporary, 'rb') as f:
      digest = hashlib.file_digest(f, 'sha256').hexdigest()
    if remote:
      system, place = fsspec.core.url_to_fs(os.fspath(path))
      system.put_file(temporary, place)
    else:
      os.replace(temporary, path)
  return digest


def _examples(
  job: job_lib.Job, shard: job_lib.Shard, facts: Facts
) -> Iterator[bytes]:
  """Yields the serialized examples of a shard, and fills in its facts."""
  rows = np.arange(shard.start, shard.stop)
  if job.shuffled and len(rows):
    rows = permutation.permute(rows, _records(job, shard.split), _SEED)
  equal = [[row] for row in rows.tolist()]
  if job.merged:
    places, ends = job.groups[shard.split]
    starts = np.append(0, ends)
    equal = [places[starts[row] : ends[row]].tolist() for row in rows]
  read = job_lib.records(
    View(job.source, shard.split), (same[0] for same in equal)
  )
  for same, record in zip(equal, read, strict=True):
    try:
      if isinstance(record, OSError):
        raise decoding.CorruptImageError(record.strerror or str(record))
      options = record.name, job.size, job.max_pixels
      stored, notes = images.store(record.image, *options)
    except decoding.CorruptImageError as error:
      facts.set_aside += [
        [*_name_and_class(job, shard.split, index), str(error)]
        for index in same
      ]
      continue
    name, label = job.relative(record.name), record.label
    if job.merged:
      others = [job.source.label(shard.split, index) for index in same[1:]]
      known = {int(i) for one in (label, *others) for i in np.atleast_1d(one)}
      # A negative number says that the class is not known.
      label = sorted(i for i in known if i >= 0)
    labels = [int(i) for i in np.atleast_1d(label)]
    facts.notes.update(notes)
    converted = int(stored is not record.image)
    facts.counts.update(records=1, bytes=len(stored), converted=converted)
    facts.classes.update(map(str, labels))
    facts.copies += [
      [*_name_and_class(job, shard.split, index), name] for index in same[1:]
    ]
    yield serialize(stored, labels, name)


def _name_and_class(job, split: str, index: int) -> tuple[str, str]:
  names = job.source.info.class_names
  labels = np.atleast_1d(job.source.label(split, index))
  classes = ' '.join(names[label] for label in labels)
  return job.relative(job.source.name(split, index)), classes


def serialize(image: bytes, labels: Sequence[int], name: str) -> bytes:
  """Returns an example as TFDS serializes it, but equal in every process."""
  example = tf_example_pb2.Example()
  features = example.features.feature
  features['image'].bytes_list.value.append(image)
  features['label'].int64_list.value.extend(labels)
  features['file_name'].bytes_list.value.append(
    name.encode('utf-8', 'backslashreplace')
  )
  return example.SerializeToString(deterministic=True)


def find_identical(
  job: job_lib.Job, part: tuple[int, int], processes: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Hashes images; returns split -> those that are equal, see `group`.

  Args:
    job: the job, whose folder gets the digests.
    part: (k, n): this command hashes every n-th block of images from the k-th,
      and waits for the others.
    processes: number of processes.
  """
  sizes = {split: job.source.info.splits[split] for split in job.splits}
  blocks = {
    job.state / 'digests' / f'{split}-{start:010}': (
      split,
      range(start, min(start + _BLOCK, images)),
    )
    for split, images in sizes.items()
    for start in range(0, images, _BLOCK)
  }
  mine = {
    item: len(item[1][1])
    for item in list(blocks.items())[part[0] :: part[1]]
    if not item[0].exists()
  }
  job_lib.run(_hash, job, mine, processes, 'Hashed')
  while missing := [path for path in blocks if not path.exists()]:
    logging.info('%d blocks of images are left to other parts.', len(missing))
    time.sleep(_WAIT_SEC)
  digests = {split: bytearray() for split in job.splits}
  for path, (split, _) in blocks.items():
    digests[split] += path.read_bytes()
  return {split: group(of) for split, of in digests.items()}


def group(digests: bytearray) -> tuple[np.ndarray, np.ndarray]:
  """Groups images by their digests, which follow each other.

  Returns:
    The images of all groups, int64 [images], concatenated: groups are in the
    order of their first images, and images ascend; and where each group ends,
    int64 [groups].
  """
  keys = np.frombuffer(digests, f'V{_DIGEST_BYTES}')
  _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
  owner = first[inverse]
  images = np.argsort(owner, kind='stable')
  return images, np.flatnonzero(np.diff(owner[images], append=-1)) + 1


def _hash(job: job_lib.Job, item: tuple[epath.Path, tuple[str, range]]) -> None:
  """Writes the digests of a block of images."""
  path, (split, images) = item
  digests = []
  records = job_lib.records(View(job.source, split), images)
  for index, record in zip(images, records, strict=True):
    # Unreadable images are told apart, so that each is reported.
    content = f'{split}/{index}'.encode()
    if not isinstance(record, OSError) and len(record.image):
      content = record.image
      if isinstance(content, np.ndarray):
        content = f'{content.shape}'.encode() + content.tobytes()
    digests.append(hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest())
  files.write_shared(path, b''.join(digests))
