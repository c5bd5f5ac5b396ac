"""A process that fills rows of batches for another process.

The parent starts it with a connection and with the memory of the batches
(`slots.Slots`). Over the connection go pieces of work, a few bytes each, and
what came of them. It imports neither JAX nor the parent's main program, so it
starts in half a second and cannot touch an accelerator.
"""

import contextlib
import itertools
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
from collections.abc import Callable, Sequence
from concurrent import futures
from multiprocessing import connection as connections
from typing import NamedTuple

import cloudpickle

from vit_jax.data.slots import Batch, Slots

_CODE = (
  'import sys; sys.path[:] = {path!r}; from vit_jax.data import worker;'
  ' worker.serve({connection}, {memory}, {life})'
)


class Piece(NamedTuple):
  """Some rows of a batch.

  Attributes:
    batch: 0-based, in the order in which batches are yielded.
    slot: the slot that holds the batch.
    start: the first row.
    stop: the row after the last.
  """

  batch: int
  slot: int
  start: int
  stop: int


class Done(NamedTuple):
  """What came of a piece.

  Attributes:
    piece: the piece.
    sec: seconds that it took.
    error: what went wrong, or None.
  """

  piece: Piece
  sec: float
  error: Exception | None = None


def fill(
  load: Callable,
  slots: Slots,
  piece: Piece,
  reads: Sequence[futures.Future | None] = (),
  least_sec: float = 0.0,
) -> Done:
  """Writes the rows of a piece to its slot.

  Args:
    load: see `makers.make_batches`.
    slots: the memory.
    piece: the rows.
    reads: what `ReadAhead` has read for them.
    least_sec: the seconds to report if it took fewer.
  """
  before = time.perf_counter()
  batch = slots.arrays(piece.slot)
  rows = range(piece.start, piece.stop)
  try:
    for row, read in zip(rows, reads or [None] * len(rows), strict=True):
      for key, value in load(piece.batch, row, read).items():
        batch[key][row] = value
    error = None
  except Exception as e:
    error = e
  return Done(piece, max(least_sec, time.perf_counter() - before), error)


class ReadAhead:
  """Reads the records of pieces at the same time, in threads of its own.

  Attributes:
    ready: further arguments of `fill` for pieces whose records are all read;
      None after the end.
    threads: the threads.
  """

  def __init__(self, read: Callable, rows: int, lanes: int):
    """Starts the threads.

    Args:
      read: (batch, row) -> what `load` needs of a row's record.
      rows: number of rows that are read at the same time.
      lanes: number of threads that make pieces of what is read.
    """
    self.ready: queue.SimpleQueue[tuple[Piece, list, float] | None] = (
      queue.SimpleQueue()
    )
    # Where reading limits, this is how long a lane waits for a second of it.
    self._wait = lanes / rows
    self._read = read
    self._closed = False
    self._rows = queue.SimpleQueue()
    # An executor's threads would keep a program from ending while one hangs.
    self.threads = [
      threading.Thread(target=self._work, name='reading', daemon=True)
      for _ in range(rows)
    ]
    for thread in self.threads:
      thread.start()

  def begin(self, piece: Piece) -> None:
    """Begins to read the records of a piece."""
    rows = range(piece.start, piece.stop)
    reads = [futures.Future() for _ in rows]
    finished = itertools.count(1)  # Threads draw different numbers from it.

    def finish(_):
      if next(finished) == len(rows):
        sec = sum(read.sec for read in reads)
        self.ready.put((piece, reads, self._wait * sec))

    for row, read in zip(rows, reads, strict=True):
      read.add_done_callback(finish)
      self._rows.put((piece.batch, row, read))

  def close(self) -> None:
    """Ends the threads when what they read now has come."""
    self._closed = True
    self.ready.put(None)
    for _ in self.threads:
      self._rows.put(None)

  def _work(self) -> None:
    while (task := self._rows.get()) and not self._closed:
      batch, row, read = task
      before = time.perf_counter()
      try:
        result, finish = self._read(batch, row), read.set_result
      except Exception as error:
        result, finish = error, read.set_exception
      read.sec = time.perf_counter() - before
      finish(result)


class Worker:
  """The parent's end of a worker process."""

  def __init__(self, task: bytes, slots: Slots, files: Sequence[int] = ()):
    """Starts the process; does not wait for it.

    Args:
      task: from `pack`.
      slots: shared memory.
      files: descriptors of further files that it inherits.
    """
    self._connection, theirs = connections.Pipe()
    # Nothing is ever written here. It closes when this process is gone.
    life, self._life = os.pipe()
    weakref.finalize(self, os.close, self._life).atexit = False
    code = _CODE.format(
      path=sys.path, connection=theirs.fileno(), memory=slots.file, life=life
    )
    try:
      self._process = subprocess.Popen(
        [sys.executable, '-c', code],
        stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(), slots.file, life, *files),
        # A terminal's Ctrl-C must not reach it: the parent still needs its
        # workers for what it does before it ends.
        process_group=0,
      )
    finally:
      theirs.close()
      os.close(life)
    self._connection.send_bytes(task)

  @property
  def pid(self) -> int:
    return self._process.pid

  def send(self, piece: Piece) -> None:
    """Hands over a piece, of which it may have several.

    Raises:
      OSError: the process has ended.
    """
    self._connection.send_bytes(pickle.dumps(tuple(piece)))

  def receive(self) -> Done | logging.LogRecord | None:
    """Waits for the next result or log message; None: the worker is ready.

    Raises:
      EOFError, OSError: the process has ended.
    """
    message = pickle.loads(self._connection.recv_bytes())
    if isinstance(message, tuple):
      piece, sec, error = message
      return Done(Piece(*piece), sec, error)
    return message

  def end(self) -> None:
    """Ends the process; does not wait for it."""
    self._process.kill()  # It has nothing to lose.

  def wait(self, sec: float) -> int | None:
    """Returns the exit code, or None if the process still is there."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      return self._process.wait(sec)
    return None


def pack(
  load: Callable,
  row: Batch,
  rows: int,
  count: int,
  threads: int,
  read_ahead: int,
) -> bytes:
  """Returns what a worker process needs to begin.

  Args:
    load: see `fill`; picklable, by value if it is defined in the main program.
    row: any row; see `Slots`.
    rows: rows of a batch.
    count: number of slots.
    threads: number of threads.
    read_ahead: number of rows that are read at the same time; 0: each thread
      reads a row when it makes it.
  """
  return cloudpickle.dumps((load, row, rows, count, threads, read_ahead))


def serve(connection_file: int, memory_file: int, life_file: int) -> None:
  """Works until the parent is gone, or kills this process."""
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)  # The parent needs it for its save.

  def end_with_parent():
    os.read(life_file, 1)
    os._exit(0)

  threading.Thread(target=end_with_parent, daemon=True).start()
  connection = connections.Connection(connection_file)
  sending, receiving = threading.Lock(), threading.Lock()

  def send(message):
    with sending:
      connection.send_bytes(message)

  class Forward(logging.Handler):
    def emit(self, record):
      record.msg, record.args, record.exc_info = record.getMessage(), (), None
      send(pickle.dumps(record))

  logging.getLogger().handlers = [Forward(logging.WARNING)]
  load, row, rows, count, threads, read_ahead = pickle.loads(
    connection.recv_bytes()
  )
  slots = Slots(row, rows, count, file=memory_file)
  ahead = ReadAhead(load.read, read_ahead, threads) if read_ahead else None

  def receive():
    with receiving:
      return Piece(*pickle.loads(connection.recv_bytes()))

  def work():
    while True:
      task = ahead.ready.get() if ahead else (receive(),)
      send(_packed(fill(load, slots, *task)))

  for _ in range(threads if ahead else threads - 1):
    threading.Thread(target=work, daemon=True).start()
  try:
    send(pickle.dumps(None))
    while ahead:
      ahead.begin(receive())
    work()
  except (EOFError, OSError):
    os._exit(0)  # The parent is gone, and other threads may be busy.


def _packed(done: Done) -> bytes:
  """Returns a result as bytes; some errors need another type for that."""
  piece, sec, error = done
  try:
    packed = pickle.dumps((tuple(piece), sec, error))
    if error:
      pickle.loads(packed)
    return packed
  except Exception:
    error = RuntimeError(f'{type(error).__name__}: {error}')
    return pickle.dumps((tuple(piece), sec, error))
