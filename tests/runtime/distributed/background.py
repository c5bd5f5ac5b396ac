"""Runs the coroutines of a test in a thread."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Loop:
  """The event loop of the thread of `background`."""

  def __init__(self, loop: asyncio.AbstractEventLoop):
    self._loop = loop

  def start(self, coroutine):
    """Starts a coroutine in the thread and returns its future."""
    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

  def call(self, coroutine, timeout=20):
    return self.start(coroutine).result(timeout)


@contextlib.contextmanager
def background() -> Iterator[Loop]:
  started = threading.Event()
  found = []

  async def stay():
    end = asyncio.Event()
    found.extend([asyncio.get_running_loop(), end])
    started.set()
    await end.wait()

  thread = threading.Thread(target=asyncio.run, args=[stay()])
  thread.start()
  started.wait()
  loop, end = found
  try:
    yield Loop(loop)
  finally:
    loop.call_soon_threadsafe(end.set)
    thread.join(20)
