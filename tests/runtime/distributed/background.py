"""A thread in which the coroutines of a test run."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Loop:
  """See `background`."""

  def __init__(self, loop: asyncio.AbstractEventLoop):
    self._loop = loop

  def start(self, coroutine):
    """Returns a future of another thread."""
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
