"""Shares what each process found, so that all processes decide alike."""

import jax
import numpy as np
from jax.experimental import multihost_utils

_TEXT_BYTES = 1024
_STEPS = 256


def gather(code: int, text: str = '') -> list[tuple[int, str]]:
  """Returns every process's (code, text), in the order of the processes.

  All processes must call this.

  Args:
    code: 0 to 255.
    text: cut after 1024 bytes if there are several processes.
  """
  if jax.process_count() == 1:
    return [(code, text)]
  message = np.zeros(1 + _TEXT_BYTES, np.uint8)
  message[0] = code
  encoded = np.frombuffer(text.encode()[:_TEXT_BYTES], np.uint8)
  message[1 : 1 + encoded.size] = encoded
  rows = multihost_utils.process_allgather(message)  # [processes, bytes]
  return [
    (int(row[0]), row[1:].tobytes().rstrip(b'\0').decode(errors='replace'))
    for row in np.asarray(rows)
  ]


def same_steps(steps: list[int]) -> list[int]:
  """Returns process 0's last 256 steps. All processes must call this."""
  if jax.process_count() == 1:
    return steps
  numbers = np.full(_STEPS, -1, np.int32)
  numbers[: len(steps[-_STEPS:])] = steps[-_STEPS:]
  common = np.asarray(multihost_utils.broadcast_one_to_all(numbers))
  return [int(step) for step in common if step >= 0]
