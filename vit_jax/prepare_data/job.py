"""What is to be prepared, and how processes and machines share the work."""

import collections
import dataclasses
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, NamedTuple

import joblib
import numpy as np
from absl import logging
from etils import epath
from joblib.externals.loky import process_executor

from vit_jax.data import retrying
from vit_jax.data.ops import decoding
from vit_jax.data.source import Record, Source, View
from vit_jax.prepare_data.images import Size
from vit_jax.runtime import json_text, printable
from vit_jax.workdir import files

STATE = '.preparing'
INFO = 'dataset_info.json'
REPORT = 'report.json'
VERSION = '1.0.0'  # TFDS wants one.
# A change of the written bytes needs another number.
_FORMAT = 1
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
    merged: whether identical images become one record with several labels.
    size: the largest size of stored images.
    max_pixels: images with more pixels are set aside.
    shuffled: whether records are in pseudo-random order, else the source's.
    shards: split -> number of files.
    groups: split -> equal images, see `shards.group`; empty if not `merged`.
  """

  source: Source
  root: str
  target: epath.Path
  name: str
  splits: tuple[str, ...]
  merged: bool
  size: Size = Size()  # noqa: RUF009 (It is frozen.)
  max_pixels: int = decoding.MAX_PIXELS
  shuffled: bool = True
  shards: dict[str, int] = dataclasses.field(default_factory=dict)
  groups: dict[str, tuple[np.ndarray, np.ndarray]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def state(self) -> epath.Path:
    """The folder of the files that are only needed until the end."""
    return self.target / STATE

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
    return name.removeprefix(f'{root}/').removeprefix(f'{root}:')

  def path(self, shard: Shard) -> epath.Path:
    """Returns the file of a shard, named as TFDS does."""
    return self.target / (
      f'{self.name}-{shard.split}.array_record-{shard.index:05}-of-'
      f'{self.shards[shard.split]:05}'
    )


def begin(job: Job) -> bool:
  """Notes what is being prepared, or checks that the same job was begun.

  Returns:
    Whether the job is done.

  Raises:
    ValueError: the folder holds another data set, or another job was begun.
  """
  mine, path = json.loads(json.dumps(job.describe())), job.target / REPORT
  if not path.exists():
    if (job.target / INFO).exists():
      raise ValueError(
        f'{job.target} holds a data set that this command has not written.'
        ' Choose another --to or --name.'
      )
    write_json(path, {'job': mine})  # This makes the folder, too.
  noted = json_text.read(path)
  begun = noted.get('job', {})
  if begun != mine:
    different = [
      f'{key}: {begun.get(key)!r} then, {value!r} now'
      for key, value in mine.items()
      if begun.get(key) != value
    ]
    raise ValueError(
      f'{job.target} was begun with other data or options:\n  '
      + '\n  '.join(different)
      + '\nChoose another --to or --name, or delete that folder.'
    )
  return 'splits' in noted


def run(
  task: Callable[[Any, Any], None],
  shared: Any,
  items: Mapping[Any, int],
  processes: int,
  what: str,
) -> None:
  """Calls `task(shared, item)` for all items, and logs the progress.

  Args:
    task: a function of a module.
    shared: picklable. The processes map its large arrays from files, as the
      names of millions of images take gigabytes.
    items: picklable -> the number of its records.
    processes: number of processes; with 1, there are no others.
    what: what is done with records, for the progress.
  """
  if not items:
    return
  began = shown = time.monotonic()
  done, total = 0, sum(items.values())
  calls = (
    joblib.delayed(_do)(task, shared, item, size, os.getpid())
    for item, size in items.items()
  )
  processes = min(processes, len(items))
  workers = joblib.Parallel(processes, return_as='generator_unordered')
  try:
    for size in workers(calls):
      done, now = done + size, time.monotonic()
      if done == total or now > shown + _LINE_SEC:
        shown, rate = now, done / (now - began)
        logging.info(
          '%s %s of %s images, %s images/s, %s left',
          *(what, f'{done:,}', f'{total:,}', f'{rate:,.0f}'),
          printable.duration((total - done) / max(rate, 1e-9)),
        )
  except process_executor.TerminatedWorkerError as error:
    raise ValueError(
      'A process ended by itself, perhaps for lack of memory. Start the same'
      ' command again, with fewer --processes; it goes on where it was.'
    ) from error


def _do(task: Callable, shared: Any, item: Any, size: int, parent: int) -> int:
  if os.getpid() != parent:
    _set_up(parent)
  task(shared, item)
  return size


@functools.cache
def _set_up(parent: int) -> None:
  """Sets up a worker process, which ends when its parent is killed."""
  decoding.own_process()
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.

  def end_with_parent():
    while os.getppid() == parent:
      time.sleep(0.5)
    os._exit(1)

  threading.Thread(target=end_with_parent, daemon=True).start()


def records(view: View, indices: Iterable[int]) -> Iterator[Record | OSError]:
  """Yields records in order, or why there is none; reads some ahead.

  Raises:
    ReadError: the source does not answer.
  """

  def read(index):
    try:
      return retrying.read(view, index)
    except OSError as error:
      return error

  threads = _AHEAD if view.source.info.is_remote else 1
  pending = collections.deque()
  with futures.ThreadPoolExecutor(threads) as pool:
    for index in indices:
      pending.append(pool.submit(read, index))
      if len(pending) == 2 * threads:
        yield pending.popleft().result()
    for future in pending:
      yield future.result()


def write_json(path: epath.Path, content: Any) -> None:
  """Writes JSON so that no reader sees a half of it."""
  files.write_shared(path, json.dumps(content, indent=1).encode())
