"""Threads and worker processes that make batches ahead of time, in order.

A batch is made in pieces of at most 16 rows, so that all threads share each
batch and a slow record delays few others. All pieces are tasks in one queue.
Threads start at once; they decode outside of Python's lock, so a process makes
some thousand images a second with threads alone. Only if the loop waits for
batches, and there are cores for them, worker processes start in the background;
when all are ready, they take the tasks in place of the threads. They do not
import the main program, which those of `multiprocessing` would do. Those of
joblib's `loky` would restart whenever they grow by 300 MB, and the shared
memory of the batches counts.
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
  ' loader.serve({file})'
)


class _Piece(NamedTuple):
  """Rows start to stop - 1 of a batch, and the slot that holds the batch."""

  batch: int
  slot: int
  start: int
  stop: int


def _fill(piece: _Piece, make: Callable, slots: Slots) -> None:
  """Writes the rows of a piece to its slot."""
  arrays = slots.arrays(piece.slot)
  for row in range(piece.start, piece.stop):
    for key, value in make(piece.batch, row).items():
      arrays[key][row] = value


class _Threads:
  """Does tasks in their order; without threads, at once in the caller's.

  Unlike those of `futures.ThreadPoolExecutor`, these threads do not keep a
  program from ending while a read hangs.

  Attributes:
    tasks: (future, function, arguments) of each; None ends one who takes it.
  """

  def __init__(self, number: int):
    self.tasks = queue.SimpleQueue()
    self._retired = False
    self._threads = [
      threading.Thread(target=self._work, name=f'input {i}', daemon=True)
      for i in range(number)
    ]
    for thread in self._threads:
      thread.start()

  def submit(self, function: Callable, *args) -> futures.Future:
    task = futures.Future(), function, args
    if self._threads:
      self.tasks.put(task)
    else:
      _do(*task)
    return task[0]

  def retire(self) -> None:
    """Ends each thread after the next task that it takes."""
    self._retired = True

  def close(self) -> None:
    """Ends the threads after their current tasks; waits a while for them."""
    self.retire()
    for _ in self._threads:
      self.tasks.put(None)
    deadline = time.monotonic() + _END_SEC
    # A thread within a library of C++ when the interpreter ends would abort it.
    for thread in self._threads:
      thread.join(max(0.0, deadline - time.monotonic()))

  def _work(self) -> None:
    while not self._retired and (task := self.tasks.get()):
      _do(*task)
      del task  # It may hold the last reference to a batch.


def _do(future: futures.Future, function: Callable, args: tuple) -> None:
  try:
    future.set_result(function(*args))
  except Exception as error:
    future.set_exception(error)


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
    threads, cores = how.threads, joblib.cpu_count()
    workers = 0 if how.cache else how.workers
    if workers and not SHAREABLE:
      raise ValueError(
        f'workers={workers} needs Linux; leave data.workers unset, or set it to'
        ' 0'
      )
    self._most_workers = workers or 0
    if workers is None and SHAREABLE and threads != 0 and cores > 1:
      self._most_workers = min(_MOST_WORKERS, cores)
    reads = how.read_ahead
    if reads is None:
      source = getattr(make.view, 'source', None)
      reads = _READ_AHEAD if source and source.info.is_remote else 0
    # A thread reads a record and decodes it, so many reads need many threads.
    of_each = -(-reads // max(1, self._most_workers))
    self._turns = threads or 1  # In a worker, as the cores are shared.
    self._worker_threads = max(self._turns, of_each)
    if threads is None:
      threads = min(_MOST_THREADS, cores)
    if threads or workers:  # For the time until the workers are ready.
      threads = max(1, threads, reads)
    rows = len(make.rows)
    lanes = max(1, threads, self._most_workers * self._worker_threads)
    self._piece_rows = min(_PIECE_ROWS, max(1, rows // (_PIECES * lanes)))
    # Batches in progress or waiting, which keep all threads busy.
    prefetch = max(2, -(-2 * lanes // rows))
    self._make, self._rows, self._count = make, rows, count
    self._prefetch = prefetch if threads else 0
    self._slots = Slots(make.masked_row(), rows, prefetch + _HELD)
    self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for slot in range(self._slots.count):
      self._free.put(slot)
    # Batches in progress: their slots, and the futures of their pieces.
    self._pending = collections.deque()
    self._begun = 0
    self._threads = _Threads(threads)
    self._workers: list[_Workers] = []  # One, once they are started.
    self._observed = None  # (since, batches, seconds of waiting).
    # None of these refers to this, so it ends when nobody can ask for a batch.
    self._close = weakref.finalize(self, _close, self._workers, self._threads)
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
    if self._most_workers and not self._workers:
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
    return all(workers.ready.is_set() for workers in self._workers)

  def worker_ids(self) -> list[int]:
    """Returns the process ids of the workers."""
    return [p.pid for workers in self._workers for p in workers.processes]

  def _remaining(self) -> float:
    return float('inf') if self._count is None else self._count - self._begun

  def _begin(self, batches: int) -> None:
    """Hands out the pieces of further batches, if there are free slots."""
    while self._remaining() > 0 and len(self._pending) < batches:
      try:
        slot = self._free.get_nowait()
      except queue.Empty:
        return
      pieces = []
      for start in range(0, self._rows, self._piece_rows):
        stop = min(start + self._piece_rows, self._rows)
        piece = _Piece(self._begun, slot, start, stop)
        pieces.append(
          self._threads.submit(_fill, piece, self._make, self._slots)
        )
      self._pending.append((slot, pieces))
      self._begun += 1

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
        *(100 * waited / (now - since), now - since, self._most_workers),
      )
      self._start_workers()
    self._observed = now, 0, 0.0

  def _start_workers(self) -> None:
    """Starts the processes in the background; the threads go on until then."""
    task = self._make, self._slots, self._worker_threads, self._turns
    # One piece more than it works on, so that it need not wait for the next.
    most = self._worker_threads + 1
    workers = _Workers(self._threads, cloudpickle.dumps(task), most)
    self._workers.append(workers)  # So they end, even if one can't start.
    workers.start(self._most_workers)


class _Workers:
  """Processes that take the tasks of threads, when all of them are ready.

  Attributes:
    processes: the processes.
    ready: set when all of them have begun.
  """

  def __init__(self, threads: _Threads, task: bytes, most: int):
    """Prepares to start some; see `serve` for what they need.

    Args:
      threads: whose tasks they take; the first argument is a piece.
      task: what each needs.
      most: the most pieces that one has at a time.
    """
    self.processes: list[subprocess.Popen] = []
    self.ready = threading.Event()
    self._threads, self._task, self._most = threads, task, most
    self._number, self._begun = 0, []

  def start(self, number: int) -> None:
    """Starts the processes, and for each a thread that talks to it."""
    self._number = number
    for _ in range(number):
      ours, theirs = connection.Pipe()
      with theirs:
        code = _CODE.format(path=sys.path, file=theirs.fileno())
        process = subprocess.Popen(
          [sys.executable, '-c', code],
          stdin=subprocess.DEVNULL,
          pass_fds=[theirs.fileno()],
          # A terminal's Ctrl-C must not reach it: the parent still needs it for
          # what it does before it ends.
          process_group=0,
        )
      self.processes.append(process)
      threading.Thread(target=self._relay, args=(ours,), daemon=True).start()

  def close(self) -> None:
    """Ends the processes, and the threads that talk to them."""
    for process in self.processes:
      process.kill()  # It has nothing to lose, and may hang in a read.
      self._threads.tasks.put(None)
    deadline = time.monotonic() + _END_SEC
    for process in self.processes:  # What it holds is free when it has ended.
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))

  def _relay(self, worker: connection.Connection) -> None:
    tasks, sent = self._threads.tasks, {}
    try:
      worker.send_bytes(self._task)
      worker.recv()
      self._begun.append(worker)
      if len(self._begun) == self._number:
        self._task = b''  # It may hold the names of millions of files.
        self._threads.retire()
        self.ready.set()
        logging.info('%d worker processes make batches.', self._number)
      while self._pass_on(worker, sent):
        piece, error, messages = worker.recv()
        for message in messages:
          logging.warning('%s', message)
        future = sent.pop(piece)
        future.set_exception(error) if error else future.set_result(None)
    except Exception as error:
      failure = RuntimeError(
        'a data worker process did not start, or ended early. If memory was'
        ' short (SIGKILL), use fewer of them: --config.data.workers=N; 0 does'
        ' without them'
      )
      failure.__cause__ = error
      for future in sent.values():
        future.set_exception(failure)
      while task := tasks.get():  # So the next batch has the error.
        task[0].set_exception(failure)

  def _pass_on(
    self,
    worker: connection.Connection,
    sent: dict[_Piece, futures.Future],
  ) -> bool:
    """Gives a worker as many pieces as it may have; False after the last."""
    while len(sent) < self._most:
      try:
        task = self._threads.tasks.get(block=not sent)
      except queue.Empty:
        break
      if task is None:
        return False
      future, _, (piece, *_) = task
      sent[piece] = future
      # `send` would leave a view of a buffer in the traceback of an error.
      worker.send_bytes(pickle.dumps(piece))
    return True


def _close(workers: Sequence[_Workers], threads: _Threads) -> None:
  for each in (*workers, threads):
    each.close()


def serve(file: int) -> None:
  """Works in a worker process until the parent is gone, or kills it.

  Args:
    file: descriptor of the connection. The parent sends a tuple: what makes a
      row, the slots, the number of threads, and that of those that may decode
      at once; and then pieces. Each answer has the piece, an error or None,
      and warnings.
  """
  # Slurm signals every process of a step; the parent needs this one for what it
  # does before it ends.
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  decoding.own_process()
  parent, sending = connection.Connection(file), threading.Lock()
  messages = collections.deque()
  handler = logging.Handler(logging.WARNING)
  handler.emit = lambda record: messages.append(record.getMessage())
  logging.getLogger().handlers = [handler]

  def answer(piece):
    error, said = None, []
    try:
      _fill(piece, make, slots)
    except Exception as found:
      # The text alone, as other parts of an error may not survive pickling.
      if type(found) in (ValueError, errors.ReadError):
        error = type(found)(str(found))
      else:
        error = RuntimeError(f'{type(found).__name__}: {found}')
    with contextlib.suppress(IndexError):  # Other threads take some, too.
      while True:
        said.append(messages.popleft())
    with sending:
      parent.send_bytes(pickle.dumps((piece, error, said)))

  with contextlib.suppress(EOFError, ConnectionError):  # The parent is gone.
    # Any other error must be seen, such as one of opening the data.
    make, slots, number, turns = pickle.loads(parent.recv_bytes())
    decoding.TURNS = threading.Semaphore(turns)
    threads = _Threads(number)
    parent.send(None)
    while True:
      threads.submit(answer, parent.recv())
  os._exit(0)  # Threads may be busy.
