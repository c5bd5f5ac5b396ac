"""What the processes of the tests in this folder do: the first word says it."""

import hashlib
import json
import os
import signal
import sys
import threading
import time

import jax
import numpy as np

from tests import several
from vit_jax.runtime import distributed, errors, preemption

LOST = 5  # Seconds without a heartbeat.


def _steps():
  """Yields the sum of ones, one from each process, again and again."""
  mesh = jax.make_mesh((jax.process_count(),), ('data',))
  sharding = jax.sharding.NamedSharding(mesh, jax.P('data'))
  ones = jax.make_array_from_callback(
    (jax.process_count(),), sharding, lambda index: np.ones(1)
  )
  add = jax.jit(lambda x: x.sum())
  while True:
    yield float(add(ones))


def _agree(index):
  first = distributed.broadcast({'from': index, 'long': 'x' * 1000, 'n': None})
  flags = [distributed.any_true(index == i) for i in (0, 2, 9)]
  print('agreed', json.dumps([next(_steps()), first, flags]), flush=True)
  if index == 0:
    time.sleep(1)
    print('written', flush=True)


def _train(index, wait=0.01):
  with preemption.Notice() as notice:
    for step, _ in enumerate(_steps()):
      if step == 3:
        print('training', flush=True)
      time.sleep(wait * (1 + index))
      if notice.requested():
        raise notice.stopped(f'step {step}')


def _one_fails(index):
  next(_steps())
  if index == 1:
    raise ValueError('not a good config')
  while True:
    time.sleep(1)


def _all_fail(index):
  next(_steps())
  time.sleep(index)
  raise errors.NonFiniteError(f'NaN, says {index}')


# What one of several processes does.
TOGETHER = {
  'agree': _agree,
  'train': _train,
  'one fails': _one_fails,
  'all fail': _all_fail,
}


def _busy():
  """Gets a signal twice; the further words are the state and the signal."""
  state, name = sys.argv[2:]
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
  with preemption.Notice() as notice:
    notice.nothing_to_save = state == 'nothing'
    for delay in (0.3, 0.6):
      threading.Timer(
        delay, os.kill, (os.getpid(), signal.Signals[name])
      ).start()
    # For minutes no Python code runs in this thread, as in a compilation.
    hashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)


def main():
  # A process that a shell starts in the background ignores SIGINT.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  if sys.argv[1] == 'busy':
    return _busy()
  place = several.place()
  try:
    with distributed.connected(**place, start_timeout=60, lost_timeout=LOST):
      TOGETHER[sys.argv[1]](place['process_id'])
  except Exception as error:
    print(f'error: {error}', flush=True)
    sys.exit(errors.code_of(error))


if __name__ == '__main__':
  main()
