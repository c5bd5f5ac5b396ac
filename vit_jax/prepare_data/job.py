"""What is to be prepared, and the files by which processes share the work."""

import dataclasses
import io
import json
import math
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from vit_jax.data import permutation
from vit_jax.data.source import Source
from vit_jax.prepare_data.images import Size
from vit_jax.runtime import json_text
from vit_jax.workdir import files

STATE = '.preparing'
INFO = 'dataset_info.json'
REPORT = 'report.json'
# A change of the written bytes needs another number.
_FORMAT = 1
_SEED = 0
# Shards keep one open file each. Larger ones take longer to make again.
_SHARD_BYTES = 256 * 2**20
_SHARD_RECORDS = 65_536
_MOST_SHARDS = 1024


@dataclasses.dataclass(frozen=True)
class Shard:
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
    version: TFDS's version of it.
    splits: the splits to prepare, in order.
    size: the largest size of stored images.
    max_pixels: images with more pixels are set aside.
    shuffled: whether records are in pseudo-random order, else the source's.
    merged: whether identical images become one record with several labels.
    shards: split -> number of files.
    damaged: what is wrong with the source; only reported.
  """

  source: Source
  root: str
  target: epath.Path
  name: str
  version: str
  splits: tuple[str, ...]
  size: Size
  max_pixels: int
  shuffled: bool
  merged: bool
  shards: dict[str, int] = dataclasses.field(default_factory=dict)
  damaged: Sequence[str] = ()

  @property
  def state(self) -> epath.Path:
    """The folder of the files that are only needed until the end."""
    return self.target / STATE

  @property
  def multi_label(self) -> bool:
    return self.merged or self.source.info.multi_label

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

  def relative(self, name: str) -> str:
    """Returns an image's name without the source's folder."""
    root = self.root.rstrip('/')
    rest = name.removeprefix(root)
    # `t` is no folder of `train/0`.
    is_inside = root and rest != name and rest[:1] in ('/', ':')
    return rest.lstrip('/:') if is_inside else name

  def path(self, shard: Shard) -> epath.Path:
    """Returns the file of a shard, named as TFDS does."""
    return self.target / (
      f'{self.name}-{shard.split}.array_record-{shard.index:05}-of-'
      f'{self.shards[shard.split]:05}'
    )


def shards(job: Job, records: dict[str, int]) -> list[Shard]:
  """Returns all shards; those of a split have equal numbers of places.

  Args:
    job: the job.
    records: split -> number of records.
  """
  found = []
  for split in job.splits:
    count = job.shards[split]
    bounds = [records[split] * i // count for i in range(count + 1)]
    found += [Shard(split, i, bounds[i], bounds[i + 1]) for i in range(count)]
  return found


def count_shards(num_bytes: float, records: int) -> int:
  """Returns into how many shards some bytes of records go."""
  count = math.ceil(max(num_bytes / _SHARD_BYTES, records / _SHARD_RECORDS))
  return max(1, min(count, _MOST_SHARDS, records))


def place(job: Job, position: int, records: int) -> int:
  """Returns which record is at a position of the order."""
  if not job.shuffled:
    return position
  return permutation.permute(position, records, _SEED)


def dataset_name(text: str) -> str:
  """Makes a TFDS name of a text: lower case, digits and underscores."""
  name = re.sub(r'[^a-z0-9]+', '_', text.lower()).strip('_')
  return name if name[:1].isalpha() else f'data_{name}'.strip('_')


def begin(job: Job) -> None:
  """Notes what is being prepared, or checks that the same job was begun.

  Raises:
    ValueError: the folder holds another data set, or another job was begun.
  """
  mine = json.loads(json.dumps(job.describe()))
  noted = job.state / 'job.json'
  if (job.target / REPORT).exists():
    begun = json_text.read(job.target / REPORT).get('job')
  elif noted.exists():
    begun = json_text.read(noted)
  elif (job.target / INFO).exists():
    raise ValueError(
      f'{job.target} holds a data set that this command has not written. Choose'
      ' another --to, --name or --version.'
    )
  else:
    write_json(noted, mine)  # This makes the folder, too.
    return
  if begun != mine:
    different = [
      f'{key}: {(begun or {}).get(key)!r} then, {value!r} now'
      for key, value in mine.items()
      if (begun or {}).get(key) != value
    ]
    raise ValueError(
      f'{job.target} was begun with other data or options:\n  '
      + '\n  '.join(different)
      + '\nChoose another --to, --name or --version, or delete that folder.'
    )


def is_done(job: Job) -> bool:
  """Returns whether the data set is complete."""
  return (job.target / INFO).exists() and not (job.state / 'job.json').exists()


def write_json(path: epath.Path, content: Any) -> None:
  """Writes JSON so that no reader sees a half of it."""
  files.write_shared(path, json.dumps(content, indent=1).encode())


def write_array(path: epath.Path, array: np.ndarray) -> None:
  """Writes an array so that no reader sees a half of it."""
  buffer = io.BytesIO()
  np.save(buffer, array)
  files.write_shared(path, buffer.getvalue())


def read_array(path: epath.Path) -> np.ndarray:
  """Reads an array; maps it into memory if it is local."""
  if '://' in os.fspath(path):
    return np.load(io.BytesIO(path.read_bytes()))
  return np.load(path, mmap_mode='r')
