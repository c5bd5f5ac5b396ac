"""Threads and worker processes that make batches ahead of time, in order.

All threads and processes take pieces of a batch from one queue. So they share
each batch, and a record that takes long delays no rows but those of its own
piece.

Threads start at once. They decode outside of Python's lock, so a process makes
some thousand images a second with threads alone. Only if the loop waits for
batches, and there are cores for them, worker processes start in the background,
and the threads go on until all of them are ready.
"""

import collections
import dataclasses
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

from absl import logging

from vit_jax.data import worker as worker_lib
from vit_jax.data.slots import Batch, Slots
from vit_jax.data.worker import Done, Piece

# Pieces of a batch per thread, so that none waits long for the slowest; and the
# most rows of a piece. A piece of a worker costs this process 0.1 ms.
_PIECES = 2
_PIECE_ROWS = 16
# Batches that the caller may hold while `prefetch` others are being made. If it
# holds more, it gets copies.
_HELD = 2

_MOST_THREADS = 16
_MOST_WORKERS = 64
# Workers start if the loop waited this share of this many seconds, and would go
# on for this many more. Each takes half a second of a core to start.
_WAITED = 0.05
_OBSERVED_SEC = 2.0
_REMAINING_SEC = 10.0
_END_SEC = 5.0  # The most that ending workers takes.


def make_batches(
  load: Callable[..., Batch],
  row: Batch,
  *,
  rows: int,
  count: int | None,
  threads: int | None,
  workers: int | None,
  prefetch: int | None,
  read_ahead: int = 0,
  files: Sequence[int] = (),
) -> 'Batches':
  """Starts to make batches.

  Args:
    load: (batch, row, read) -> that row; picklable if there are workers. `read`
      is None, or the future of what `load.read(batch, row)` returns.
    row: a row with the shapes and dtypes of all.
    rows: rows of a batch.
    count: number of batches; None makes them endlessly.
    threads: see `pipeline.train_batches`, as for `workers` and `prefetch`.
    workers: number of worker processes; None starts them when they help.
    prefetch: number of batches in progress or waiting.
    read_ahead: number of rows that `load.read` reads at the same time; 0 does
      not call it.
    files: descriptors of files that `load` uses in workers.
  """
  if workers and not hasattr(os, 'memfd_create'):
    raise ValueError(
      f'workers={workers} needs Linux; leave data.workers unset, or set it to 0'
    )
  asked = workers is not None
  if not asked:
    workers = _spare_workers() if threads != 0 else 0
  each = 1 if threads is None else max(1, threads)  # Threads of a worker.
  if threads is None:
    threads = min(_MOST_THREADS, _cores())
  if workers:
    threads = max(1, threads)  # For the time until the workers are ready.
  lanes = max(1, threads, workers * each)
  piece = min(_PIECE_ROWS, max(1, rows // (_PIECES * lanes)))
  if prefetch is None:
    prefetch = max(2, -(-2 * lanes // rows))
    if read_ahead:
      prefetch = max(prefetch, 1 + -(-read_ahead // rows))
  slots = Slots(row, rows, prefetch + _HELD, shared=workers > 0)
  makers = _Makers(load, slots, files, rows, count, prefetch, piece, read_ahead)
  makers.start_threads(threads)
  start_workers = functools.partial(
    makers.start_workers, workers, each, (row, rows, slots.count)
  )
  if workers and asked:
    start_workers()
  return Batches(makers, workers, None if asked else start_workers)


def _cores() -> int:
  """Returns how many cores this process may use, in a container too."""
  import joblib  # Imports for a sixth of a second.

  return joblib.cpu_count()


def _spare_workers() -> int:
  """Returns how many worker processes may start if the loop waits."""
  cores = _cores()
  if cores == 1 or not hasattr(os, 'memfd_create'):
    return 0
  return min(_MOST_WORKERS, cores)


class Batches(Iterator[Batch]):
  """An iterator of batches; `make_batches` makes it."""

  def __init__(
    self,
    makers: '_Makers',
    workers: int,
    start_workers: Callable[[], None] | None,
  ):
    """Iterates.

    Args:
      makers: they make the batches.
      workers: number of workers that `start_workers` starts.
      start_workers: called if the loop waits for batches; None: never.
    """
    self._makers = makers
    self._workers = workers
    self._start_workers = start_workers if workers else None
    self._observed = None  # (when, batches, seconds of waiting since).
    # Threads refer to the makers, but not to this, so this is collected when
    # nobody can ask for a batch any more. It ends them before the interpreter
    # tears modules down.
    self._close = weakref.finalize(self, makers.close)

  def __next__(self) -> Batch:
    before = time.monotonic()
    try:
      batch = self._makers.next_batch()
    except BaseException:
      self.close()
      raise
    if batch is None:
      self.close()
      raise StopIteration
    if self._start_workers:
      self._observe(before, time.monotonic())
    return batch

  def close(self) -> None:
    """Ends the threads and processes; there are no more batches."""
    self._close()

  def images_per_sec(self) -> float:
    """Returns how many rows a second are made while nothing else waits."""
    return self._makers.rows_per_sec()

  def ready(self) -> bool:
    """Whether all workers have started that were asked for."""
    return self._makers.ready()

  def worker_ids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return self._makers.worker_ids()

  def _observe(self, before: float, now: float) -> None:
    """Starts the workers if the loop waits for batches."""
    if self._observed is None:
      self._observed = now, 0, 0.0
      return
    since, batches, waited = self._observed
    batches, waited = batches + 1, waited + now - before
    self._observed = since, batches, waited
    if now - since < _OBSERVED_SEC:
      return
    remaining = self._makers.remaining() * (now - since) / batches
    if waited > _WAITED * (now - since) and remaining > _REMAINING_SEC:
      logging.info(
        'Input limits the loop, which waited %.0f%% of the last %.1f s; %d'
        ' worker processes start.',
        *(100 * waited / (now - since), now - since, self._workers),
      )
      self._start_workers()
      self._start_workers = None
    self._observed = now, 0, 0.0


@dataclasses.dataclass
class _Pending:
  """A batch in progress: its slot, what is missing, and errors by row."""

  slot: int
  pieces: int
  errors: dict[int, Exception] = dataclasses.field(default_factory=dict)


class _Makers:
  """The threads and processes, and the batches that they work on."""

  def __init__(
    self,
    load: Callable[..., Batch],
    slots: Slots,
    files: Sequence[int],
    rows: int,
    count: int | None,
    prefetch: int,
    piece: int,
    read_ahead: int,
  ):
    self._load = load
    self._slots = slots
    self._files = tuple(files)
    self._rows = rows
    self._count = count
    self._prefetch = prefetch
    self._piece = piece
    self._read_ahead = read_ahead
    self._threads: list[threading.Thread] = []
    self._ahead: worker_lib.ReadAhead | None = None  # For these threads.
    self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
    self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(slots.count):
      self._free.put(slot)
    self._changed = threading.Condition()
    self._pending: collections.OrderedDict[int, _Pending] = (
      collections.OrderedDict()
    )
    self._begun = 0  # Batches that are or were in progress.
    self._failure: Exception | None = None
    self._closed = False
    self._lanes = 0  # Threads here or in workers that take pieces.
    self._made, self._busy_sec = 0, 0.0  # Rows, and seconds of lanes.
    self._starting = 0  # Workers that are not ready.
    self._workers: list[worker_lib.Worker] = []

  def next_batch(self) -> Batch | None:
    """Waits for the next batch; None after the last, and after `close`."""
    if self._closed:
      return None
    self._begin()
    if not self._pending:
      return None
    number, pending = next(iter(self._pending.items()))
    while not self._lanes and pending.pieces:  # No threads: make it here.
      self._finish(worker_lib.fill(self._load, self._slots, self._take()))
    with self._changed:
      self._changed.wait_for(lambda: not pending.pieces or self._failure)
      del self._pending[number]
    if pending.errors:
      raise pending.errors[min(pending.errors)]
    if pending.pieces:
      raise self._failure
    if self._free.empty():
      batch = {
        key: value.copy()
        for key, value in self._slots.arrays(pending.slot).items()
      }
      self._free.put(pending.slot)
    else:
      batch = self._slots.lend(pending.slot, self._free.put)
    self._begin()
    return batch

  def remaining(self) -> float:
    """Returns the number of batches that are not yet begun."""
    return float('inf') if self._count is None else self._count - self._begun

  def rows_per_sec(self) -> float:
    with self._changed:
      return self._lanes * self._made / max(self._busy_sec, 1e-9)

  def ready(self) -> bool:
    return not self._starting

  def worker_ids(self) -> list[int]:
    return [worker.pid for worker in self._workers]

  def start_threads(self, number: int) -> None:
    self._lanes += number
    if self._read_ahead and number:
      self._ahead = worker_lib.ReadAhead(
        self._load.read, self._read_ahead, number
      )
    self._threads = [
      threading.Thread(target=self._work, name=f'input {index}', daemon=True)
      for index in range(number)
    ]
    for thread in self._threads:
      thread.start()
    self._begin()

  def start_workers(self, number: int, threads: int, row_and_slots) -> None:
    """Starts worker processes in the background, each with some threads."""
    self._starting = number
    threading.Thread(
      target=self._start_workers,
      args=(number, threads, row_and_slots),
      name='workers',
      daemon=True,
    ).start()

  def close(self) -> None:
    self._closed = True
    self._pieces.put(None)
    if self._ahead:
      self._ahead.close()
    for worker in self._workers:
      worker.end()
    deadline = time.monotonic() + _END_SEC
    for worker in self._workers:
      worker.wait(max(0.0, deadline - time.monotonic()))
    # A thread within a library of C++ when the interpreter ends would abort it.
    for thread in self._threads + (self._ahead.threads if self._ahead else []):
      if thread is not threading.current_thread():
        thread.join(max(0.0, deadline - time.monotonic()))

  def _begin(self) -> None:
    """Hands out the pieces of further batches, if there are free slots."""
    while self.remaining() > 0 and len(self._pending) < self._prefetch:
      try:
        slot = self._free.get_nowait()
      except queue.Empty:
        return
      starts = range(0, self._rows, self._piece)
      ahead = self._ahead and not self._workers_work()
      hand_out = self._ahead.begin if ahead else self._pieces.put
      number = self._begun
      with self._changed:
        self._pending[number] = _Pending(slot, len(starts))
      self._begun += 1
      for start in starts:
        stop = min(start + self._piece, self._rows)
        hand_out(Piece(number, slot, start, stop))

  def _take(self, block: bool = True) -> Piece | None:
    """Returns a piece, None at the end; raises `Empty` if it may not wait."""
    piece = self._pieces.get(block)
    if piece is None:
      self._pieces.put(None)
    return None if self._closed else piece

  def _finish(self, done: Done) -> None:
    piece = done.piece
    with self._changed:
      self._made += piece.stop - piece.start
      self._busy_sec += done.sec
      pending = self._pending.get(piece.batch)
      if pending is None:
        return  # An error of the batch has been raised.
      if done.error:
        pending.errors[piece.start] = done.error
      pending.pieces -= 1
      if not pending.pieces:
        self._changed.notify_all()

  def _fail(self, error: Exception) -> None:
    with self._changed:
      self._failure = self._failure or error
      self._changed.notify_all()

  def _workers_work(self) -> bool:
    """Whether all workers are ready, so that they make the batches."""
    return bool(self._workers) and not self._starting

  def _work(self) -> None:
    """Makes pieces in a thread, until workers do."""
    while task := self._take_read():
      self._finish(worker_lib.fill(self._load, self._slots, *task))
      # They do not know what is being read here.
      if self._workers_work() and not self._ahead:
        return

  def _take_read(self) -> tuple | None:
    """Returns further arguments of `fill`, or None at the end."""
    if not self._ahead:
      piece = self._take()
      return piece and (piece,)
    task = self._ahead.ready.get()
    if task is None:
      self._ahead.ready.put(None)
    return None if self._closed else task

  def _start_workers(self, number: int, threads: int, row_and_slots) -> None:
    try:
      rows = -(-self._read_ahead // number)  # Each reads its share.
      task = worker_lib.pack(self._load, *row_and_slots, threads, rows)
      # One more than it works on, so that it need not wait for this process.
      most = max(threads + 1, -(-rows // self._piece))
      for index in range(number):
        if self._closed:
          return
        worker = worker_lib.Worker(task, self._slots, self._files)
        self._workers.append(worker)
        threading.Thread(
          target=self._tend,
          args=(worker, threads, most),
          name=f'worker {index}',
          daemon=True,
        ).start()
    except Exception as error:
      self._fail(
        RuntimeError(
          f'a data worker process did not start: {type(error).__name__}:'
          f' {error}; --config.data.workers=0 does without them'
        )
      )

  def _tend(self, worker: worker_lib.Worker, threads: int, most: int) -> None:
    """Gives a worker at most so many pieces, and takes in what it sends."""
    given = 0
    try:
      while message := worker.receive():
        logging.warning('%s', message.getMessage())
      self._welcome(threads)
      while True:
        while given < most:
          try:
            piece = self._take(block=not given)
          except queue.Empty:
            break
          if piece is None:
            return
          worker.send(piece)
          given += 1
        message = worker.receive()
        if isinstance(message, Done):
          self._finish(message)
          given -= 1
        else:
          logging.warning('%s', message.getMessage())
    except (EOFError, OSError):
      if not self._closed:
        self._fail(
          RuntimeError(
            'a data worker process ended with exit code'
            f' {worker.wait(_END_SEC)}; -9 is often a lack of memory, which'
            ' fewer of them need: --config.data.workers=N'
          )
        )

  def _welcome(self, threads: int) -> None:
    """Notes that one more worker is ready; each has some threads."""
    with self._changed:
      self._starting -= 1
      if not self._starting:
        # From now on they are all that works.
        self._lanes = len(self._workers) * threads
        self._made, self._busy_sec = 0, 0.0
        logging.info('%d worker processes make batches.', len(self._workers))
