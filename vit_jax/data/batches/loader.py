"""Threads and worker processes that make batches ahead of time, in order.

A batch is made in pieces of at most 16 rows, so that all threads share each
batch and a slow record delays few others. Threads start at once; they decode
outside of Python's lock, so a process makes some thousand images a second with
threads alone. Only if the loop waits for batches, and there are cores for them,
worker processes start in the background and take over. They do not import the
main program, which those of `multiprocessing` would do. Those of joblib's
`loky` would restart whenever they grow by 300 MB, and the shared memory of the
batches counts.
"""

import collections
import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from multiprocessing import connection
from typing import NamedTuple

import cloudpickle
import joblib

from vit_jax.data.batches.rows import Reading, Rows
from vit_jax.data.batches.slots import SHAREABLE, Batch, Slots
from vit_jax.data.ops import decoding
from vit_jax.runtime import errors

# Pieces of a batch per thread, so that none waits long for the slowest; and the
# most rows of a piece.
_PIECES = 2
_PIECE_ROWS = 16
# Batches that the caller may hold while others are being made. If it holds
# more, it gets copies.
_HELD = 2
_MOST_THREADS = 16
_MOST_WORKERS = 64
# Pieces that all workers have at once, as each keeps a file open; a process may
# often open 1024, and an evaluation has workers of its own.
_MOST_LANES = 256
# At 0.1 s a read, which is a bucket's, 5,000 images a second.
_READ_AHEAD = 500
# Workers start if the loop waited this share of this many seconds, and would go
# on for this many more. Each takes half a second of a core to start.
_WAITED = 0.05
_OBSERVED_SEC = 2.0
_REMAINING_SEC = 10.0
_END_SEC = 5.0  # The most that ending threads takes.
_CODE = (
  'import sys; sys.path[:] = {path!r}; from vit_jax.data.batches import loader;'
  ' loader.serve({files})'
)


class _Piece(NamedTuple):
  """Rows start to stop - 1 of a batch, and the slot that holds the batch."""

  batch: int
  slot: int
  start: int
  stop: int


def _fill(
  make: Callable,
  slots: Slots,
  piece: _Piece,
  reads: Sequence[futures.Future | None],
) -> None:
  """Writes the rows of a piece to its slot."""
  arrays = slots.arrays(piece.slot)
  for row, read in zip(range(piece.start, piece.stop), reads, strict=True):
    for key, value in make(piece.batch, row, read).items():
      arrays[key][row] = value


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


def _reads(make: Callable, piece: _Piece, readers: _Threads | None):
  """Begins to read the records of a piece, if there are threads for that."""
  rows = range(piece.start, piece.stop)
  if readers is None:
    return [None] * len(rows)
  return [readers.submit(make.read, piece.batch, row) for row in rows]


class Batches(Iterator[Batch]):
  """An iterator of batches."""

  def __init__(self, make: Rows, count: int | None, how: Reading):
    """Starts to make batches.

    Args:
      make: makes a row; picklable if there are workers.
      count: number of batches; None makes them endlessly.
      how: the number of threads, and so on.
    """
    decoding.own_process()
    threads, workers, cores = how.threads, how.workers, joblib.cpu_count()
    if workers and not SHAREABLE:
      raise ValueError(
        f'workers={workers} needs Linux; leave data.workers unset, or set it to'
        ' 0'
      )
    self._worker_threads = threads or 1
    helpful = SHAREABLE and threads != 0 and cores > 1
    if workers is None:
      self._workers = min(_MOST_WORKERS, cores) if helpful else 0
    else:
      self._workers = workers
    if threads is None:
      threads = min(_MOST_THREADS, cores)
    if workers:
      threads = max(1, threads)  # For the time until the workers are ready.
    self._read_ahead = how.read_ahead or 0
    if how.read_ahead is None:
      source = getattr(make.view, 'source', None)
      self._read_ahead = _READ_AHEAD if source and source.info.is_remote else 0
    rows = len(make.rows)
    lanes = max(1, threads, self._workers * self._worker_threads)
    self._piece_rows = min(_PIECE_ROWS, max(1, rows // (_PIECES * lanes)))
    prefetch = how.prefetch
    if prefetch is None:
      prefetch = max(2, -(-2 * lanes // rows))
      if self._read_ahead:
        prefetch = max(prefetch, 1 + -(-self._read_ahead // rows))
    self._make, self._rows, self._count = make, rows, count
    self._prefetch = prefetch if threads else 0
    self._slots = Slots(make.masked_row(), rows, prefetch + _HELD)
    self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(self._slots.count):
      self._free.put(slot)
    # Batches in progress: their slots, and the futures of their pieces.
    self._pending = collections.deque()
    self._begun = 0
    self._pool = _Threads(threads)
    readers = self._read_ahead and threads and _Threads(self._read_ahead)
    self._readers = readers or None
    self._processes: list[_Worker] = []
    self._starting: futures.Future | None = None
    self._observed = None  # (since, batches, seconds of waiting).
    # None of these refers to this, so it ends when nobody can ask for a batch.
    self._pools = [self._pool, *filter(None, [self._readers])]
    self._close = weakref.finalize(self, _close, self._processes, self._pools)
    if workers:
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
      for piece in pieces:
        piece.result()
    except BaseException:
      self.close()
      raise
    if self._workers and not self._processes:
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

  def ready(self) -> bool:
    """Whether the workers make the batches, if they were asked for."""
    return self._starting is None or self._starting.done()

  def worker_ids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return [worker.process.pid for worker in self._processes]

  def _remaining(self) -> float:
    return float('inf') if self._count is None else self._count - self._begun

  def _begin(self, batches: int) -> None:
    """Hands out the pieces of further batches, if there are free slots."""
    if self._starting and self._starting.done():
      self._starting.result()
      self._starting, self._pool = None, self._pools[-1]
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
        pieces.append(self._submit(piece))
      self._pending.append((slot, pieces))
      self._begun += 1

  def _submit(self, piece: _Piece) -> futures.Future:
    if self._processes and not self._starting:
      return self._pool.submit(_ask, self._idle, piece)
    reads = _reads(self._make, piece, self._readers)
    return self._pool.submit(_fill, self._make, self._slots, piece, reads)

  def _observe(self, before: float, now: float) -> None:
    """Starts the workers if the loop waits for batches."""
    # The first batch is always waited for.
    since, batches, waited = self._observed or (now, -1, before - now)
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
    reads = -(-self._read_ahead // self._workers)
    threads = self._worker_threads
    lanes = min(-(-reads // self._piece_rows), _MOST_LANES // self._workers)
    # One piece more than it works on, so that it need not wait for the next.
    lanes = max(threads + 1, lanes)
    task = cloudpickle.dumps((self._make, self._slots, threads, reads))
    for _ in range(self._workers):
      self._processes.append(_Worker(lanes))
    self._idle: queue.SimpleQueue[connection.Connection] = queue.SimpleQueue()
    # The first task of these threads that ask the workers is to start them.
    self._pools.append(_Threads(self._workers * lanes))
    self._starting = self._pools[-1].submit(
      _begin_work, self._processes, task, self._idle
    )


class _Worker:
  """A process that makes pieces of batches.

  Attributes:
    process: the process.
    control: carries what it needs; closes when either end is gone.
    lanes: each carries a piece at a time, and what came of it.
  """

  def __init__(self, lanes: int):
    pipes = [connection.Pipe() for _ in range(1 + lanes)]
    (self.control, *self.lanes), theirs = zip(*pipes, strict=True)
    files = [one.fileno() for one in theirs]
    self.process = subprocess.Popen(
      [sys.executable, '-c', _CODE.format(path=sys.path, files=files)],
      stdin=subprocess.DEVNULL,
      pass_fds=files,
      # A terminal's Ctrl-C must not reach it: the parent still needs it for
      # what it does before it ends.
      process_group=0,
    )
    for one in theirs:
      one.close()


def _begin_work(
  workers: Sequence[_Worker], task: bytes, idle: queue.SimpleQueue
) -> None:
  """Waits until all workers are ready, and puts their lanes into a queue."""
  with _ended_early():
    for worker in workers:
      worker.control.send_bytes(task)
    for worker in workers:
      worker.control.recv()
  for lanes in zip(*(worker.lanes for worker in workers), strict=True):
    for lane in lanes:
      idle.put(lane)


def _ask(idle: queue.SimpleQueue, piece: _Piece) -> None:
  """Lets an idle worker do what `_fill` does, and logs what it had to say."""
  lane = idle.get()
  try:
    with _ended_early():
      # `send` would leave a view of a buffer in the traceback of an error.
      lane.send_bytes(pickle.dumps(piece))
      error, messages = lane.recv()
  finally:
    idle.put(lane)
  for message in messages:
    logging.warning('%s', message)
  if error:
    raise error


@contextlib.contextmanager
def _ended_early():
  try:
    yield
  except (EOFError, OSError) as error:
    raise RuntimeError(
      'a data worker process did not start, or ended early. If memory was'
      ' short (SIGKILL), use fewer of them: --config.data.workers=N; 0 does'
      ' without them'
    ) from error


def _close(workers: Sequence[_Worker], pools: Sequence[_Threads]) -> None:
  for worker in workers:
    worker.process.kill()  # It has nothing to lose, and may hang in a read.
  for pool in pools:
    pool.close()
  deadline = time.monotonic() + _END_SEC
  for worker in workers:  # What a killed one holds is free when it has ended.
    with contextlib.suppress(subprocess.TimeoutExpired):
      worker.process.wait(max(0.0, deadline - time.monotonic()))


# In a worker process. ---------------------------------------------------------


def serve(files: Sequence[int]) -> None:
  """Works until the parent is gone, or kills this process."""
  # Slurm signals every process of a step; the parent needs this one for what it
  # does before it ends.
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  decoding.own_process()
  control, *lanes = map(connection.Connection, files)
  messages = collections.deque()
  handler = logging.Handler(logging.WARNING)
  handler.emit = lambda record: messages.append(record.getMessage())
  logging.getLogger().handlers = [handler]
  make, slots, threads, read_ahead = pickle.loads(control.recv_bytes())
  readers = _Threads(read_ahead) if read_ahead else None
  busy = threading.Semaphore(threads)

  def answer(lane):
    while True:
      try:
        piece = lane.recv()
      except (EOFError, OSError):  # The parent is gone.
        return
      reads = _reads(make, piece, readers)
      error, said = None, []
      try:
        with busy:
          _fill(make, slots, piece, reads)
      except (ValueError, errors.ReadError) as found:
        error = found
      except Exception as found:  # It may not survive pickling.
        error = RuntimeError(f'{type(found).__name__}: {found}')
      with contextlib.suppress(IndexError):  # Other threads take some, too.
        while True:
          said.append(messages.popleft())
      lane.send_bytes(pickle.dumps((error, said)))

  for lane in lanes:
    threading.Thread(target=answer, args=(lane,), daemon=True).start()
  with contextlib.suppress(EOFError, OSError):
    control.send(None)
    control.recv()
  os._exit(0)  # The parent is gone, and threads may be busy.
