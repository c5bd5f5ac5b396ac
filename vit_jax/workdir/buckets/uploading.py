"""Uploads in the background; a failed upload does not end the run."""

import threading
from collections.abc import Callable

from absl import logging

from vit_jax.runtime import errors


class Uploader:
  """Calls a function regularly, while there is something to upload."""

  def __init__(self, upload: Callable[[], None], every: float, what: str):
    """Starts the thread.

    Args:
      upload: uploads everything that is new. If it raises, the thread logs a
        warning and calls it again later. Two calls never overlap.
      every: minimum seconds between two calls.
      what: the path, for the warning.
    """
    self._upload = upload
    self._every = every
    self._what = what
    self._failed = False
    self._taken_over: errors.TakenOverError | None = None
    self._new = threading.Event()
    self._end = threading.Event()
    self._one = threading.Lock()
    threading.Thread(target=self._work, name='upload', daemon=True).start()

  def soon(self) -> None:
    """Tells the thread that there is something to upload.

    Raises:
      TakenOverError: another run has the directory; uploads have stopped.
    """
    if self._taken_over:
      raise self._taken_over
    self._new.set()

  def now(self, timeout: float = -1) -> None:
    """Uploads in the calling thread; also raises the errors of `upload`.

    Args:
      timeout: seconds to wait for the other thread's upload; -1: no limit.

    Raises:
      TimeoutError: the other thread's upload has not ended in time.
    """
    if not self._one.acquire(timeout=timeout):
      raise TimeoutError(f'an upload has not ended for {timeout:g} s')
    try:
      self._upload()
    finally:
      self._one.release()

  def close(self) -> None:
    """Ends the thread after its current upload."""
    self._end.set()
    self._new.set()

  def _work(self) -> None:
    while self._new.wait() and not self._end.is_set():
      self._new.clear()
      try:
        self.now()
      except errors.TakenOverError as error:
        self._taken_over = error
        return
      except Exception as error:
        self._new.set()
        if not self._failed:
          logging.warning(
            '%s cannot be written: %s. The run goes on, and tries again.',
            *(self._what, ' '.join(str(error).split()) or type(error).__name__),
          )
        self._failed = True
      else:
        if self._failed:
          logging.warning('%s is written again; nothing is lost.', self._what)
        self._failed = False
      self._end.wait(self._every)
