"""Writes the shards, each by itself and with the same bytes every time."""

import collections
import dataclasses
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2

from vit_jax.data.source import View
from vit_jax.prepare_data import identical, images, parallel, reading
from vit_jax.prepare_data import job as job_lib
from vit_jax.runtime import json_text

# One record in each chunk, so that a read decompresses no other. Images are
# compressed already.
_OPTIONS = 'group_size:1,uncompressed'
# Most examples of each note that a report names.
_EXAMPLES = 5


@dataclasses.dataclass
class Facts:
  """What became of the images of a shard, or of many shards.

  Attributes:
    records: number of records.
    num_bytes: bytes of the images in them.
    converted: number of images whose bytes were changed.
    classes: class -> number of labels.
    notes: what is unusual -> (number of images, names of some).
    set_aside: (name, class, reason) of each image that is not stored.
    copies: (name, class, name of the stored image) of each image that was
      merged with another.
    sha256: of the file; '' for many shards.
  """

  records: int = 0
  num_bytes: int = 0
  converted: int = 0
  classes: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )
  notes: dict[str, list] = dataclasses.field(default_factory=dict)
  set_aside: list[list[str]] = dataclasses.field(default_factory=list)
  copies: list[list[str]] = dataclasses.field(default_factory=list)
  sha256: str = ''

  def note(self, text: str, count: int, names: list[str]) -> None:
    found = self.notes.setdefault(text, [0, []])
    found[0] += count
    found[1] += names[: _EXAMPLES - len(found[1])]

  def add(self, other: 'Facts') -> None:
    """Adds the facts of another shard."""
    self.records += other.records
    self.num_bytes += other.num_bytes
    self.converted += other.converted
    self.classes.update(other.classes)
    self.set_aside += other.set_aside
    self.copies += other.copies
    for text, (count, names) in other.notes.items():
      self.note(text, count, names)

  @classmethod
  def from_json(cls, content: dict[str, Any]) -> 'Facts':
    classes = {int(k): n for k, n in content.pop('classes').items()}
    return cls(**content, classes=collections.Counter(classes))


def facts_path(job: job_lib.Job, shard: job_lib.Shard):
  """Returns the path of the facts of a shard, which exist when it does."""
  return job.state / f'{shard.split}-{shard.index:05}.json'


def read_facts(job: job_lib.Job, shard: job_lib.Shard) -> Facts:
  """Reads the facts of a shard that is written."""
  return Facts.from_json(json_text.read(facts_path(job, shard)))


def is_written(job: job_lib.Job, shard: job_lib.Shard) -> bool:
  return facts_path(job, shard).exists() and job.path(shard).exists()


def records_of(job: job_lib.Job, split: str) -> int:
  """Returns the number of records of a split, if all images can be stored."""
  if job.merged:
    return len(_groups(job.state, split))
  return job.source.info.splits[split]


def write(job: job_lib.Job, shard: job_lib.Shard) -> Facts:
  """Writes a shard, then its facts; what was there before is replaced."""
  facts = Facts()
  remote = '://' in os.fspath(job.target)
  folder = None if remote else os.fspath(job.state)
  handle, temporary = tempfile.mkstemp(suffix='.tmp', dir=folder)
  os.close(handle)
  try:
    writer = array_record_module.ArrayRecordWriter(temporary, _OPTIONS)
    for serialized in _examples(job, shard, facts):
      writer.write(serialized)
    writer.close()
    facts.sha256 = _sha256(temporary)
    os.chmod(temporary, 0o666 & ~_umask())
    if remote:
      system, path = fsspec.core.url_to_fs(os.fspath(job.path(shard)))
      system.put_file(temporary, path)
    else:
      os.replace(temporary, job.path(shard))
  finally:
    if os.path.exists(temporary):
      os.unlink(temporary)
  job_lib.write_json(facts_path(job, shard), vars(facts))
  return facts


def _examples(
  job: job_lib.Job, shard: job_lib.Shard, facts: Facts
) -> Iterator[bytes]:
  """Yields the serialized examples of a shard, and fills in its facts."""
  total = records_of(job, shard.split)
  rows = [
    job_lib.place(job, position, total)
    for position in range(shard.start, shard.stop)
  ]
  groups = _groups(job.state, shard.split) if job.merged else None
  images_of = groups.images_of if groups else lambda row: [row]
  read = reading.records(
    View(job.source, shard.split), (images_of(row)[0] for row in rows)
  )
  for place, record in read:
    parallel.advance(1)
    equal = images_of(rows[place])
    image = _image(job, shard.split, equal, record, facts)
    if image is None:
      continue
    label = groups.labels_of(rows[place]) if groups else record.label
    label = list(map(int, label)) if np.ndim(label) else int(label)
    name = job.relative(record.name)
    facts.records += 1
    facts.num_bytes += len(image)
    facts.classes.update([label] if isinstance(label, int) else label)
    facts.copies += [
      [*_name_and_class(job, shard.split, index), name] for index in equal[1:]
    ]
    yield serialize(image, label, name)


def _image(job, split, equal, record, facts: Facts) -> bytes | None:
  """Returns the bytes to store of some equal images, or None."""
  try:
    if isinstance(record, OSError):
      raise images.SetAsideError(record.strerror or str(record))
    name = record.name
    stored = images.store(record.image, name, job.size, job.max_pixels)
  except images.SetAsideError as error:
    facts.set_aside += [
      [*_name_and_class(job, split, index), str(error)] for index in equal
    ]
    return None
  facts.converted += stored.converted
  for text in stored.notes:
    facts.note(text, 1, [job.relative(name)])
  return stored.image


def _name_and_class(job, split: str, index: int) -> tuple[str, str]:
  label = job.source.label(split, index)
  names = job.source.info.class_names
  classes = ' '.join(names[one] for one in np.atleast_1d(label))
  return job.relative(job.source.name(split, index)), classes


def serialize(image: bytes, label: int | list[int], name: str) -> bytes:
  """Returns an example as TFDS serializes it, but equal in every process."""
  example = tf_example_pb2.Example()
  features = example.features.feature
  features['image'].bytes_list.value.append(image)
  labels = [label] if isinstance(label, int) else label
  features['label'].int64_list.value.extend(labels)
  features['file_name'].bytes_list.value.append(
    name.encode('utf-8', 'backslashreplace')
  )
  return example.SerializeToString(deterministic=True)


# Mapped arrays, which a process need not open for each shard.
_groups = functools.lru_cache(4)(identical.load)


@functools.cache
def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _sha256(path: str) -> str:
  with open(path, 'rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()
