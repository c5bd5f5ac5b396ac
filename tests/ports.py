"""Ports of this machine for the tests that start several processes."""

import contextlib
import random
import socket


def free_port() -> int:
  """Returns a port that is free, and whose next higher port is free, too.

  It is below the ports that the system gives to outgoing connections.
  """
  while True:
    port = random.randrange(20000, 30000)
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
      for number in (port, port + 1):
        address = ('127.0.0.1', number)
        stack.enter_context(socket.create_server(address))
      return port
