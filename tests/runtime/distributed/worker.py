"""One process of a run in `test_connected`.

It meets the others, adds numbers with them, and ends as the test requires.
The command line must be the same in all processes. So the environment variable
WORKER holds what differs: a JSON object with the arguments of `connected`, and
`does`, a key of `_BODIES`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import logging

from vit_jax.runtime import distributed, errors, preemption


def _sums() -> Iterator[float]:
  """Yields the sum of ones, one from each process."""
  mesh = jax.make_mesh((jax.process_count(),), ('data',))
  sharding = jax.sharding.NamedSharding(mesh, jax.P('data'))
  ones = jax.make_array_from_callback(
    (jax.process_count(),), sharding, lambda index: np.ones(1)
  )
  add = jax.jit(lambda x: x.sum())
  while True:
    yield float(add(ones))


def _agree(process_id):
  first = distributed.broadcast({'from': process_id, 'none': None})
  flags = [distributed.any_true(process_id == i) for i in (0, 1, 9)]
  print('agreed', json.dumps([next(_sums()), first, flags]), flush=True)
  if process_id == 0:
    time.sleep(2)
    print('written', flush=True)


def _agree_late(process_id):
  print('waiting', flush=True)
  if process_id == 1:
    time.sleep(600)
  distributed.barrier()


def _disagree(process_id):
  if process_id == 0:
    distributed.any_true(True)
  else:
    distributed.broadcast(1)


def _forever(process_id):
  for i, _ in enumerate(_sums()):
    if i == 3:
      print('adding', flush=True)


def _one_fails(process_id):
  for i, _ in enumerate(_sums()):
    if i == 3 and process_id == 1:
      raise ValueError('not a good config\nand more lines')


def _all_fail(process_id):
  next(_sums())
  time.sleep(process_id)
  raise errors.NonFiniteError(f'loss is NaN, says {process_id}')


def _preempted(process_id):
  next(_sums())
  time.sleep(process_id)
  raise errors.PreemptedError(f'saved, says {process_id}')


def _one_preempted(process_id):
  for i, _ in enumerate(_sums()):
    if i == 3 and process_id == 0:
      raise errors.PreemptedError('saved')


def _until_preempted(process_id):
  with preemption.Notice() as notice:
    for i, _ in enumerate(_sums()):
      if i == 3:
        print('adding', flush=True)
      if notice.requested():
        raise errors.PreemptedError(f'at step {i}')
      time.sleep(0.01)


def _prepare(process_id):
  with preemption.Notice() as notice:
    notice.begin()
    print('preparing', flush=True)
    time.sleep(600)  # Stands for a compilation.


def _exit(process_id):
  next(_sums())
  sys.exit()


_BODIES: dict[str, Callable[[int], None]] = {
  'agree': _agree,
  'agree late': _agree_late,
  'disagree': _disagree,
  'forever': _forever,
  'one fails': _one_fails,
  'all fail': _all_fail,
  'preempted': _preempted,
  'one preempted': _one_preempted,
  'until preempted': _until_preempted,
  'prepare': _prepare,
  'exit': _exit,
}


def main():
  logging.use_absl_handler()
  arguments = json.loads(os.environ['WORKER'])
  body = _BODIES[arguments.pop('does')]
  print('begins', flush=True)
  try:
    with distributed.connected(**arguments):
      body(arguments['process_id'])
  except (ValueError, OSError, RuntimeError) as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(getattr(error, 'exit_code', 1))


if __name__ == '__main__':
  main()
