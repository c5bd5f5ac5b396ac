"""Threads and worker processes that make batches ahead of time, in order.

A batch is made in pieces of at most 16 rows, so that all threads share each
batch and a slow record delays few others. Threads start at once; they decode
outside of Python's lock, so a process makes some thousand images a second with
threads alone. Only if the loop waits for batches, and there are cores for them,
worker processes (those of joblib's `loky`) start in the background and take
over. They import neither JAX nor the main program.
"""

import collections
import contextlib
import functools
import logging
import os
import pickle
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple, Protocol

import cloudpickle
from joblib.externals import loky

from vit_jax.data.batches.slots import Batch, Slots

# Pieces of a batch per thread, so that none waits long for the slowest; and the
# most rows of a piece. A piece of a worker costs this process 0.3 ms.
_PIECES = 2
_PIECE_ROWS = 16
# Batches that the caller may hold while others are being made. If it holds
# more, it gets copies.
_HELD = 2
_MOST_THREADS = 16
_MOST_WORKERS = 64
# Workers start if the loop waited this share of this many seconds, and would go
# on for this many more. Each takes half a second of a core to start.
_WAITED = 0.05
_OBSERVED_SEC = 2.0
_REMAINING_SEC = 10.0
_END_SEC = 5.0  # The most that ending threads takes.


class Rows(Protocol):
  """Makes any row of any batch; picklable if there are workers."""

  def __call__(
    self, batch: int, row: int, read: futures.Future | None
  ) -> Batch:
    """Returns a row; `read` is the future of what `read` below returns."""
    ...

  def read(self, batch: int, row: int) -> object:
    """Reads the record of a row."""
    ...


class _Piece(NamedTuple):
  """Rows start to stop - 1 of a batch, and the slot that holds the batch."""

  batch: int
  slot: int
  start: int
  stop: int


def _fill(
  make: Rows,
  slots: Slots,
  piece: _Piece,
  reads: Sequence[futures.Future | None],
) -> float:
  """Writes the rows of a piece to its slot; returns the seconds it took."""
  before = time.perf_counter()
  arrays = slots.arrays(piece.slot)
  for row, read in zip(range(piece.start, piece.stop), reads, strict=True):
    for key, value in make(piece.batch, row, read).items():
      arrays[key][row] = value
  return time.perf_counter() - before


class _Threads:
  """Does tasks in their order; without threads, at once in the caller's.

  Unlike those of `futures.ThreadPoolExecutor`, these threads do not keep a
  program from ending while a read hangs.
  """

  def __init__(self, number: int):
    self._tasks = queue.SimpleQueue()
    self._closed = False
    self._threads = [
      threading.Thread(target=self._work, name=f'input {i}', daemon=True)
      for i in range(number)
    ]
    for thread in self._threads:
      thread.start()

  def submit(self, function: Callable, *args) -> futures.Future:
    task = futures.Future(), function, args
    if self._threads:
      self._tasks.put(task)
    else:
      _do(*task)
    return task[0]

  def close(self) -> None:
    """Ends the threads after their current tasks; waits a while for them."""
    self._closed = True
    for _ in self._threads:
      self._tasks.put(None)
    deadline = time.monotonic() + _END_SEC
    # A thread within a library of C++ when the interpreter ends would abort it.
    for thread in self._threads:
      thread.join(max(0.0, deadline - time.monotonic()))

  def _work(self) -> None:
    while (task := self._tasks.get()) and not self._closed:
      _do(*task)
      del task  # It may hold the last reference to a batch.


def _do(future: futures.Future, function: Callable, args: tuple) -> None:
  try:
    future.set_result(function(*args))
  except Exception as error:
    future.set_exception(error)


def _reads(make: Rows, piece: _Piece, readers: _Threads | None):
  """Begins to read the records of a piece, if there are threads for that."""
  rows = range(piece.start, piece.stop)
  if readers is None:
    return [None] * len(rows)
  return [readers.submit(make.read, piece.batch, row) for row in rows]


class Batches(Iterator[Batch]):
  """An iterator of batches."""

  def __init__(
    self,
    make: Rows,
    row: Batch,
    *,
    rows: int,
    count: int | None,
    threads: int | None = None,
    workers: int | None = None,
    prefetch: int | None = None,
    read_ahead: int = 0,
  ):
    """Starts to make batches.

    Args:
      make: makes the rows.
      row: a row with the shapes and dtypes of all.
      rows: rows of a batch.
      count: number of batches; None makes them endlessly.
      threads: see `pipeline.train_batches`, as for the following arguments.
      workers: number of worker processes; None starts them when they help.
      prefetch: number of batches in progress or waiting.
      read_ahead: number of rows that `make.read` reads at the same time; 0
        does not call it.
    """
    shareable = hasattr(os, 'memfd_create')
    if workers and not shareable:
      raise ValueError(
        f'workers={workers} needs Linux; leave data.workers unset, or set it to'
        ' 0'
      )
    cores = loky.cpu_count()
    asked = bool(workers)
    if workers is None:
      helpful = shareable and threads != 0 and cores > 1
      workers = min(_MOST_WORKERS, cores) if helpful else 0
    self._worker_threads = threads or 1
    if threads is None:
      threads = min(_MOST_THREADS, cores)
    if asked:
      threads = max(1, threads)  # For the time until the workers are ready.
    lanes = max(1, threads, workers * self._worker_threads)
    self._piece_rows = min(_PIECE_ROWS, max(1, rows // (_PIECES * lanes)))
    if prefetch is None:
      prefetch = max(2, -(-2 * lanes // rows))
      if read_ahead:
        prefetch = max(prefetch, 1 + -(-read_ahead // rows))
    self._make, self._row, self._rows, self._count = make, row, rows, count
    self._read_ahead, self._workers = read_ahead, workers
    self._prefetch = prefetch if threads else 0
    self._slots = Slots(row, rows, prefetch + _HELD, shared=workers > 0)
    self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(self._slots.count):
      self._free.put(slot)
    # Batches in progress: their slots, and their pieces' sizes and futures.
    self._pending = collections.deque()
    self._begun = 0
    self._lanes, self._made, self._busy_sec = max(1, threads), 0, 0.0
    self._pool = _Threads(threads)
    self._readers = _Threads(read_ahead) if read_ahead and threads else None
    self._processes: loky.ProcessPoolExecutor | None = None
    self._starting: futures.Future | None = None
    self._observed = None  # (since, batches, seconds of waiting).
    # None of these refers to this, so it ends when nobody can ask for a batch.
    self._ends = [self._pool.close]
    if self._readers:
      self._ends.append(self._readers.close)
    self._close = weakref.finalize(self, _close, self._ends)
    if asked:
      self._start_workers()
    self._begin(self._prefetch)

  def __next__(self) -> Batch:
    if not self._close.alive:
      raise StopIteration
    self._begin(max(1, self._prefetch))
    if not self._pending:
      self.close()
      raise StopIteration
    before = time.monotonic()
    slot, pieces = self._pending.popleft()
    try:
      for rows, future in pieces:
        self._busy_sec += self._result(future)
        self._made += rows
    except BaseException:
      self.close()
      raise
    if self._processes is None and self._workers:
      self._observe(before, time.monotonic())
    if self._free.empty():
      arrays = self._slots.arrays(slot)
      batch = {key: value.copy() for key, value in arrays.items()}
      self._free.put(slot)
    else:
      batch = self._slots.lend(slot, self._free.put)
    self._begin(self._prefetch)
    return batch

  def close(self) -> None:
    """Ends the threads and processes; there are no more batches."""
    self._close()

  def images_per_sec(self) -> float:
    """Returns how many rows a second are made while nothing else waits."""
    return self._lanes * self._made / max(self._busy_sec, 1e-9)

  def ready(self) -> bool:
    """Whether the workers make the batches, if they were asked for."""
    return self._starting is None or self._starting.done()

  def worker_ids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return list(self._processes._processes) if self._processes else []

  def _remaining(self) -> float:
    return float('inf') if self._count is None else self._count - self._begun

  def _begin(self, batches: int) -> None:
    """Hands out the pieces of further batches, if there are free slots."""
    if self._starting and self._starting.done():
      self._result(self._starting)
      self._starting = None
      self._lanes, self._made, self._busy_sec = self._workers, 0, 0.0
      logging.info('%d worker processes make batches.', self._workers)
    while self._remaining() > 0 and len(self._pending) < batches:
      try:
        slot = self._free.get_nowait()
      except queue.Empty:
        return
      pieces = []
      for start in range(0, self._rows, self._piece_rows):
        stop = min(start + self._piece_rows, self._rows)
        piece = _Piece(self._begun, slot, start, stop)
        pieces.append((stop - start, self._submit(piece)))
      self._pending.append((slot, pieces))
      self._begun += 1

  def _submit(self, piece: _Piece) -> futures.Future:
    if self._processes and not self._starting:
      return self._processes.submit(_work, piece)
    reads = _reads(self._make, piece, self._readers)
    return self._pool.submit(_fill, self._make, self._slots, piece, reads)

  def _result(self, future: futures.Future) -> float:
    """Waits for a piece, and logs what a worker had to say."""
    try:
      result = future.result()
    except futures.process.BrokenProcessPool as error:
      raise RuntimeError(
        'a data worker process did not start, or ended early:'
        f' {error}. If memory was short (SIGKILL), use fewer of them:'
        ' --config.data.workers=N; 0 does without them'
      ) from error
    if isinstance(result, float):
      return result
    sec, messages = result
    for message in messages:
      logging.warning('%s', message)
    return sec

  def _observe(self, before: float, now: float) -> None:
    """Starts the workers if the loop waits for batches."""
    if self._observed is None:  # The first batch is always waited for.
      self._observed = now, 0, 0.0
      return
    since, batches, waited = self._observed
    batches, waited = batches + 1, waited + now - before
    self._observed = since, batches, waited
    if now - since < _OBSERVED_SEC:
      return
    remaining = self._remaining() * (now - since) / batches
    if waited > _WAITED * (now - since) and remaining > _REMAINING_SEC:
      logging.info(
        'Input limits the loop, which waited %.0f%% of the last %.1f s; %d'
        ' worker processes start.',
        *(100 * waited / (now - since), now - since, self._workers),
      )
      self._start_workers()
    self._observed = now, 0, 0.0

  def _start_workers(self) -> None:
    """Starts the processes in the background; the threads go on until then."""
    each = -(-self._read_ahead // self._workers)
    task = cloudpickle.dumps(
      (self._make, self._slots, self._worker_threads, each)
    )
    pool = loky.ProcessPoolExecutor(
      self._workers, initializer=_begin_work, initargs=(task, os.getpid())
    )
    self._processes, self._starting = pool, futures.Future()
    self._ends.append(functools.partial(_kill, pool))
    threading.Thread(
      target=_wait_for, args=(pool, self._starting), daemon=True
    ).start()


def _close(ends: list[Callable[..., None]]) -> None:
  for end in ends:
    end()


def _kill(pool: loky.ProcessPoolExecutor) -> None:
  # A clean shutdown would wait for a read that hangs.
  for pid in list(pool._processes):
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)


def _wait_for(pool: loky.ProcessPoolExecutor, ready: futures.Future) -> None:
  """Starts a pool, which takes a while, and tells when it works."""
  try:
    ready.set_result(pool.submit(float).result())
  except Exception as error:
    ready.set_exception(error)


# In a worker process. ---------------------------------------------------------

_task: list = []  # What `_begin_work` was given; what it made of that.
_messages: queue.SimpleQueue[str] = queue.SimpleQueue()


def _begin_work(task: bytes, parent: int) -> None:
  """Prepares a worker process."""
  # The parent needs it for what it does after a terminal's Ctrl-C.
  os.setpgid(0, 0)
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)

  def end_with_parent():
    while os.getppid() == parent:
      time.sleep(1)
    os._exit(0)

  threading.Thread(target=end_with_parent, daemon=True).start()

  class Collect(logging.Handler):
    def emit(self, record):
      _messages.put(record.getMessage())

  logging.getLogger().handlers = [Collect(logging.WARNING)]
  make, slots, threads, read_ahead = pickle.loads(task)
  readers = _Threads(read_ahead) if read_ahead else None
  pool = _Threads(threads if threads > 1 else 0)
  _task[:] = make, slots, pool, readers


def _work(piece: _Piece) -> tuple[float, list[str]]:
  """Does what `_fill` does; returns the seconds, and messages to log."""
  make, slots, pool, readers = _task
  before = time.perf_counter()
  rows = range(piece.start, piece.stop)
  parts = [piece._replace(start=row, stop=row + 1) for row in rows]
  reads = _reads(make, piece, readers)
  for future in [
    pool.submit(_fill, make, slots, part, [read])
    for part, read in zip(parts, reads, strict=True)
  ]:
    future.result()
  messages = []
  while not _messages.empty():
    messages.append(_messages.get())
  return time.perf_counter() - before, messages
