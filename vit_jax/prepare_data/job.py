"""What is to be prepared, and its shards, each written by itself.

A shard has the same bytes whoever writes it. Beside it, in the folder STATE,
are its counts and the images that it lacks, until the report tells them.
"""

import collections
import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import fsspec
import joblib
import numpy as np
from absl import logging
from array_record.python import array_record_module
from etils import epath
from tensorflow_datasets.proto import tf_example_pb2

from vit_jax.data import permutation, retrying
from vit_jax.data.ops import decoding
from vit_jax.data.source import Record, Source, View
from vit_jax.prepare_data import images
from vit_jax.runtime import printable
from vit_jax.workdir import files

STATE = '.preparing'
VERSION = '1.0.0'  # TFDS wants one.
# A change of the written bytes needs another number.
_FORMAT = 1
# One record in each chunk, so that a read decompresses no other. Images are
# compressed already.
_OPTIONS = 'group_size:1,uncompressed'
_SEED = 0
_LINE_SEC = 10.0
# Records that are read at the same time if each is a round trip.
_AHEAD = 32


class Shard(NamedTuple):
  """Some places of a split's order, which one file holds."""

  split: str
  index: int
  start: int
  stop: int


@dataclasses.dataclass(frozen=True)
class Job:
  """All that the written files depend on; picklable.

  Attributes:
    source: the images.
    root: what is cut off from the beginning of the images' names.
    target: the folder of the version, local or remote.
    name: TFDS's name of the data set.
    splits: the splits to prepare, in order.
    size: the largest size of stored images.
    max_pixels: images with more pixels are set aside.
    shuffled: whether records are in pseudo-random order, else the source's.
    merged: whether equal images become one, with the labels of all copies.
    shards: split -> number of files.
  """

  source: Source
  root: str
  target: epath.Path
  name: str
  splits: tuple[str, ...]
  size: images.Size = images.Size()  # noqa: RUF009 (It is frozen.)
  max_pixels: int = decoding.MAX_PIXELS
  shuffled: bool = True
  merged: bool = False
  shards: dict[str, int] = dataclasses.field(default_factory=dict)

  def describe(self) -> dict[str, Any]:
    """Returns, JSON-able, what must not change when the job goes on."""
    info = self.source.info
    return {
      'format': _FORMAT,
      'source': info.spec,
      'splits': {split: info.splits[split] for split in self.splits},
      'facts': {split: self.source.facts(split) for split in self.splits},
      'classes': len(info.class_names),
      'size': dataclasses.asdict(self.size),
      'max_pixels': self.max_pixels,
      'order': 'shuffled' if self.shuffled else 'source',
      'merged': self.merged,
      'shards': self.shards,
    }

  def every(self) -> list[Shard]:
    """Returns all shards; those of a split have equal numbers of places."""
    found = []
    for split in self.splits:
      count, records = self.shards[split], self.source.info.splits[split]
      bounds = [records * i // count for i in range(count + 1)]
      found += [Shard(split, i, bounds[i], bounds[i + 1]) for i in range(count)]
    return found

  def missing(self) -> list[Shard]:
    """Returns the shards that are not written."""
    return [shard for shard in self.every() if not self.facts(shard).exists()]

  def path(self, shard: Shard) -> epath.Path:
    """Returns the file of a shard, named as TFDS does."""
    return self.target / (
      f'{self.name}-{shard.split}.array_record-{shard.index:05}-of-'
      f'{self.shards[shard.split]:05}'
    )

  def facts(self, shard: Shard) -> epath.Path:
    """Returns the file of a shard's facts, which is written after the shard.

    It holds `counts`, such as the number of `records`; and `set_aside`: name,
    class and reason of each image that is not stored.
    """
    return self.target / STATE / f'{shard.split}-{shard.index:05}.json'


def write(job: Job, shards: Sequence[Shard], processes: int) -> None:
  """Writes shards in parallel, and logs the progress."""
  if not shards:
    return
  # The processes map the job's large arrays from files, as the names of
  # millions of images take gigabytes.
  workers = joblib.Parallel(
    min(processes, len(shards)), return_as='generator_unordered'
  )
  calls = (joblib.delayed(_write)(job, shard, os.getpid()) for shard in shards)
  total = sum(shard.stop - shard.start for shard in shards)
  log_progress('Wrote', workers(calls), total)


def log_progress(what: str, sizes: Iterable[int], total: int) -> None:
  """Logs the progress of a loop over images, and the time that is left.

  Args:
    what: the past tense of what is done with images.
    sizes: the number of images of each step, once the step is done.
    total: the number of all images.
  """
  began = shown = time.monotonic()
  done = 0
  for size in sizes:
    done, now = done + size, time.monotonic()
    if done == total or now > shown + _LINE_SEC:
      shown, rate = now, done / (now - began)
      logging.info(
        '%s %s of %s images, %s images/s, %s left',
        *(what, f'{done:,}', f'{total:,}', f'{rate:,.0f}'),
        printable.duration((total - done) / max(rate, 1e-9)),
      )


def _write(job: Job, shard: Shard, parent: int) -> int:
  """Writes a shard, then its facts; returns the number of its images."""
  if os.getpid() != parent:
    decoding.own_process()
    signal.signal(
      signal.SIGINT, signal.SIG_IGN
    )  # The parent ends this process.
    if os.getppid() != parent:
      os._exit(1)  # The command was killed, and another may have begun.
  path, place = job.path(shard), None
  remote = '://' in os.fspath(path)
  if not remote:
    place = path.parent / STATE
    place.mkdir(parents=True, exist_ok=True)
  counts, set_aside = collections.Counter(), []
  with tempfile.TemporaryDirectory(dir=place) as folder:
    temporary = os.path.join(folder, path.name)
    writer = array_record_module.ArrayRecordWriter(temporary, _OPTIONS)
    for example in _examples(job, shard, counts, set_aside):
      writer.write(example)
    writer.close()
    if remote:
      system, place = fsspec.core.url_to_fs(os.fspath(path))
      system.put_file(temporary, place)
    else:
      os.replace(temporary, path)
  files.write_json(job.facts(shard), {'counts': counts, 'set_aside': set_aside})
  return shard.stop - shard.start


def _examples(
  job: Job, shard: Shard, counts: collections.Counter, set_aside: list
) -> Iterator[bytes]:
  """Yields the serialized examples of a shard, and fills in its facts."""
  rows = np.arange(shard.start, shard.stop)
  if job.shuffled and len(rows):
    size = job.source.info.splits[shard.split]
    rows = permutation.permute(rows, size, _SEED)
  names, root = job.source.info.class_names, job.root.rstrip('/')
  view = View(job.source, shard.split)
  for row, record in zip(
    rows.tolist(), records(view, rows.tolist()), strict=True
  ):
    name = view.name(row).removeprefix(f'{root}/').removeprefix(f'{root}:')
    try:
      if isinstance(record, OSError):
        raise decoding.CorruptImageError(record.strerror or str(record))
      options = record.name, job.size, job.max_pixels
      stored, notes = images.store(record.image, *options)
    except decoding.CorruptImageError as error:
      classes = ' '.join(names[i] for i in np.atleast_1d(view.label(row)))
      set_aside.append([name, classes, str(error)])
      continue
    counts.update(['records', *notes])
    counts['bytes'] += len(stored)
    counts['converted'] += stored is not record.image
    yield _serialize(stored, np.atleast_1d(record.label).tolist(), name)


def records(
  view: View, indices: Iterable[int], threads: int = 0
) -> Iterator[Record | OSError]:
  """Yields records in order, or why there is none; reads some ahead.

  Args:
    view: the records.
    indices: those to read.
    threads: how many read; 0 suits a process among others.

  Raises:
    ReadError: the source does not answer.
  """

  def read(index):
    try:
      return retrying.read(view, index)
    except OSError as error:
      return error

  threads = threads or (_AHEAD if view.source.info.is_remote else 1)
  pending = collections.deque()
  with futures.ThreadPoolExecutor(threads) as pool:
    for index in indices:
      pending.append(pool.submit(read, index))
      if len(pending) == 2 * threads:
        yield pending.popleft().result()
    for future in pending:
      yield future.result()


def _serialize(image: bytes, labels: Sequence[int], name: str) -> bytes:
  """Returns an example as TFDS serializes it, but equal in every process."""
  example = tf_example_pb2.Example()
  features = example.features.feature
  features['image'].bytes_list.value.append(image)
  features['label'].int64_list.value.extend(labels)
  features['file_name'].bytes_list.value.append(
    name.encode('utf-8', 'backslashreplace')
  )
  return example.SerializeToString(deterministic=True)
