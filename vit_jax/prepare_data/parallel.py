"""Runs tasks in processes, with progress; a killed command leaves none."""

import functools
import logging as std_logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import IO, Any

import numpy as np
from absl import logging
from etils import epath

from vit_jax.data.ops import decoding
from vit_jax.runtime import printable
from vit_jax.workdir import files

_LINE_SEC = 10.0
_CHECK_SEC = 0.5
# Arrays from this size on are mapped by the processes, not copied.
_MAPPED_BYTES = 2**20

# Of a worker process: what each task gets, and the count of records done.
_shared: Any = None
_counter: Any = None


def run(
  task: Callable[[Any, Any], Any],
  shared: Any,
  items: Sequence[Any],
  *,
  processes: int,
  records: int,
  what: str,
) -> Iterator[Any]:
  """Yields `task(shared, item)` of all items, in the order in which they end.

  Args:
    task: a function of a module; it calls `advance` for the records it does.
    shared: picklable; sent to each process once. The processes map its large
      arrays from files, as the names of millions of images take gigabytes.
    items: picklable.
    processes: number of processes; with 1, there are no others.
    records: number of records of all items, for the progress.
    what: what is done with records, for the progress.
  """
  if not items:
    return
  line = _Line(records, what)
  if processes == 1:
    global _counter
    _counter = _Alone(line)
    for item in items:
      yield task(shared, item)
    line.end(_counter.value)
    return
  pickled, kept = _store(shared)
  context = multiprocessing.get_context('spawn')
  counter = context.Value('q', 0)
  executor = futures.ProcessPoolExecutor(
    min(processes, len(items)),
    mp_context=context,
    initializer=_start,
    initargs=(pickled, [_path(file) for file in kept], counter),
  )
  try:
    pending = {executor.submit(functools.partial(_do, task), i) for i in items}
    while pending:
      done, pending = futures.wait(
        pending, timeout=_CHECK_SEC, return_when=futures.FIRST_COMPLETED
      )
      for one in done:
        yield one.result()
      line.show(counter.value)
    line.end(counter.value)
  except futures.process.BrokenProcessPool as error:
    raise ValueError(
      'A process ended by itself, perhaps for lack of memory. Start the same'
      ' command again, with fewer --processes; it goes on where it was.'
    ) from error
  finally:
    executor.shutdown(wait=False, cancel_futures=True)
    for process in multiprocessing.active_children():
      process.terminate()
    for file in kept:
      file.close()


def cores() -> int:
  """Returns how many cores this process may use, in a container too."""
  import joblib  # Imports for a sixth of a second.

  return joblib.cpu_count()


def advance(records: int) -> None:
  """Adds to the number of records that are done."""
  with _counter.get_lock():
    _counter.value += records


def _store(shared: Any) -> tuple[bytes, list[IO]]:
  """Pickles an object, but its large arrays become files without a name.

  Such a file is gone when the last process that uses it ends, however it ends.

  Returns:
    The pickle, and the files.
  """
  kept = []

  def keep(buffer: pickle.PickleBuffer) -> bool:
    """Stores a buffer; returns whether the pickle holds it instead."""
    content = buffer.raw()
    if content.nbytes < _MAPPED_BYTES or not os.path.exists('/proc/self/fd'):
      return True
    with files.disk_full_named(epath.Path(tempfile.gettempdir())):
      kept.append(tempfile.TemporaryFile())  # noqa: SIM115 (Used later.)
      kept[-1].write(content)
      kept[-1].flush()
    return False

  return pickle.dumps(shared, protocol=5, buffer_callback=keep), kept


def _path(file: IO) -> str:
  """Returns where other processes find an open file of this one."""
  return f'/proc/{os.getpid()}/fd/{file.fileno()}'


def _start(pickled: bytes, paths: Sequence[str], counter: Any) -> None:
  """Prepares a worker process: the pickle and the files of `_store`."""
  global _shared, _counter
  buffers = [np.memmap(path, np.uint8, 'r') for path in paths]
  _shared, _counter = pickle.loads(pickled, buffers=buffers), counter
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.
  std_logging.getLogger().setLevel(std_logging.WARNING)
  decoding.own_process()
  parent = multiprocessing.parent_process()

  def end_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=end_with_parent, daemon=True).start()


def _do(task: Callable[[Any, Any], Any], item: Any) -> Any:
  return task(_shared, item)


class _Alone:
  """Counts in a process that has no others."""

  def __init__(self, line: '_Line'):
    self._line, self._value = line, 0

  @property
  def value(self) -> int:
    return self._value

  @value.setter
  def value(self, value: int) -> None:
    self._value = value
    self._line.show(value)

  def get_lock(self):
    return threading.Lock()


class _Line:
  """Logs a line of progress now and then."""

  def __init__(self, records: int, what: str):
    self._records, self._what = records, what
    self._began = self._shown = time.monotonic()

  def show(self, done: int) -> None:
    now = time.monotonic()
    if now < self._shown + _LINE_SEC or not done:
      return
    self._shown = now
    rate = done / (now - self._began)
    logging.info(
      '%s %s of %s images (%.0f%%)  %s images/s  ETA %s',
      *(self._what, f'{done:,}', f'{self._records:,}'),
      100 * done / max(1, self._records),
      f'{rate:,.0f}',
      printable.duration((self._records - done) / rate),
    )

  def end(self, done: int) -> None:
    seconds = time.monotonic() - self._began
    logging.info(
      '%s %s images in %s (%s images/s).',
      *(self._what, f'{done:,}', printable.duration(seconds)),
      f'{done / max(seconds, 1e-9):,.0f}',
    )
