"""Several processes as one run, on JAX's own coordination service.

`connected` finds out whether this process is one of several and starts
`jax.distributed`, which waits for all of them, watches over them with
heartbeats, and aborts the others (exit code 134) when one is lost. `broadcast`
and `any_true` let the processes agree on small values, and `check_same` refuses
processes that do not fit together. docs/pods.md says what ends a run.
"""

import atexit
import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import traverse_util
from jax.experimental import multihost_utils

from vit_jax.runtime import errors, installed, jax_internals

# Flags whose values differ between the processes of a run.
_PLACE_FLAGS = ('coordinator_address', 'num_processes', 'process_id')
# Seconds. JAX's shutdown waits so long for the slowest process.
_SHUTDOWN = 60
# The most seconds that process 0 stays after an error. It holds JAX's service,
# whose end aborts the others, which may be about to end with the same error.
_LINGER = 5.0
_FLUSH = 2.0  # For writing the logs and the output.
# How the errors of a device or of a collective begin.
STATUS = re.compile(
  '(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): '
)
# How many differences between two processes an error lists.
_SHOWN = 3


@contextlib.contextmanager
def connected(
  coordinator_address: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  start_timeout: float = 300.0,
  lost_timeout: float = 30.0,
) -> Iterator[None]:
  """Makes this process part of a run; does nothing if it is the only process.

  Enter this before JAX's devices are first used. When the body raises, this
  process ends with the error's exit code, and JAX aborts the others.

  Args:
    coordinator_address: HOST:PORT of JAX's coordination service, in process 0.
      None: the cluster tells it (Cloud TPU, also several slices, GKE, Slurm,
      Open MPI), as for `jax.distributed.initialize`. The same holds for the
      next two arguments.
    num_processes: the number of processes.
    process_id: the id of this process, from 0.
    start_timeout: seconds for all processes to join; then JAX aborts this one.
    lost_timeout: seconds without a heartbeat after which a process is lost.

  Raises:
    ValueError: the arguments are wrong, or the processes differ in their
      command lines, code or versions.
    HostLostError: a collective failed, which mostly means that another process
      was lost; or JAX's service did not start.
  """
  place = _find(coordinator_address, num_processes, process_id, start_timeout)
  if place is None:
    yield
    return
  try:
    jax.distributed.initialize(
      **place,
      cluster_detection_method='deactivate',
      initialization_timeout=round(start_timeout),
      heartbeat_timeout_seconds=max(1, round(lost_timeout)),
      shutdown_timeout_seconds=_SHUTDOWN,
    )
  except jax.errors.JaxRuntimeError as error:
    raise errors.HostLostError(
      f"JAX's service at {place['coordinator_address']} did not start: {error}"
    ) from error
  try:
    logging.info('All %d processes are there.', jax.process_count())
    check_same(_facts())
    yield
    barrier()
  except errors.PreemptedError:  # All processes raise it after the same step.
    jax.distributed.shutdown()
    raise
  except BaseException as error:
    lost = STATUS.match(str(error)) and not hasattr(error, 'exit_code')
    # JAX's own exit handler would wait for the others, and then abort.
    code = errors.HostLostError.exit_code if lost else errors.code_of(error)
    atexit.register(_leave, code, min(_LINGER, lost_timeout / 2))
    if not lost:
      raise
    raise errors.HostLostError(
      'A computation over several processes failed, probably because one of'
      f' them was lost: {error}'
    ) from error
  jax.distributed.shutdown()


def _find(
  address: str | None,
  num_processes: int | None,
  process_id: int | None,
  timeout: float,
) -> dict[str, Any] | None:
  """Returns arguments of `jax.distributed.initialize`; None if alone."""
  devices = None
  if num_processes != 1 and None in (address, num_processes, process_id):
    address, num_processes, process_id, devices = jax_internals.detect_cluster(
      address or os.environ.get('JAX_COORDINATOR_ADDRESS'),
      num_processes,
      process_id,
      round(timeout),
    )
  if num_processes == 1 or (address, num_processes, process_id) == (None,) * 3:
    return None
  return {
    'coordinator_address': address,
    'num_processes': num_processes,
    'process_id': process_id,
    'local_device_ids': devices,
  }


def _facts() -> dict[str, Any]:
  """Returns what must be the same in all processes, by name."""
  place = '|'.join(_PLACE_FLAGS)
  digest = hashlib.sha256()
  package = pathlib.Path(__file__).parents[1]
  for file in sorted(package.rglob('*.py')):
    digest.update(f'{file.relative_to(package)}\n'.encode())
    digest.update(file.read_bytes())
  return {
    'command line': re.sub(
      rf'--?({place})[= ]\S+ *', '', ' '.join(sys.argv[1:])
    ).strip(),
    'versions': installed.versions(),
    'vit_jax source (SHA-256)': digest.hexdigest()[:12],
  }


# ---- Agreements --------------------------------------------------------------


def broadcast(value: Any) -> Any:
  """Returns process 0's value in all processes; all must call this.

  Args:
    value: see `gather`. Only process 0's counts.
  """
  return gather(value if jax.process_index() == 0 else None)[0]


def gather(value: Any) -> list[Any]:
  """Returns the values of all processes, in their order; all must call this.

  It runs on the devices, after the work that is under way there. All processes
  must keep the same order of these calls and of their other collectives.

  Args:
    value: a JSON value (tuples come back as lists).
  """
  if jax.process_count() == 1:
    return [value]
  text = np.frombuffer(json.dumps(value).encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(text.size))
  # One program for each power of two, not for each length.
  padded = np.zeros(1 << max(8, int(sizes.max() - 1).bit_length()), np.uint8)
  padded[: text.size] = text
  rows = multihost_utils.process_allgather(padded)  # [processes, bytes]
  return [
    json.loads(np.asarray(row)[:size].astype(np.uint8).tobytes())
    for row, size in zip(rows, sizes, strict=True)
  ]


def any_true(flag: bool) -> bool:
  """Returns whether any process gives True; all must call this."""
  return any(gather(bool(flag)))


def barrier() -> None:
  """Waits until all processes have called this."""
  any_true(False)


def check_same(values: Mapping[str, Any]) -> None:
  """Raises ValueError in all processes if the values of any two differ.

  Without this check, hosts with different copies of a data set would silently
  train on a mixture of two orders.

  Args:
    values: what must be equal, by name; JSON-able.
  """
  own = json.loads(json.dumps(values, default=str))
  found = differences(own, broadcast(own), 'here', 'in process 0')
  if not any_true(bool(found)):
    return
  raise ValueError(
    f'Process {jax.process_index()} differs from process 0:\n{found}.\n'
    'All hosts need the same command, code, versions and config, and data sets'
    ' with the same examples in the same order.'
    if found
    else 'Another process differs from this one; its log says in what.'
  )


def differences(a: Any, b: Any, where_a: str, where_b: str) -> str:
  """Returns a line that names the first differences; '' if there are none.

  Args:
    a: a tree of JSON values.
    b: the tree to compare with. A value that one of them could not read
      (`errors.UNKNOWN`) is not compared.
    where_a: where `a` was found, such as 'now'.
    where_b: where `b` was found.
  """
  flat_a, flat_b = (
    traverse_util.flatten_dict(tree, keep_empty_nodes=True, sep=': ')
    for tree in (a, b)
  )
  pairs = [
    (name, flat_a.get(name), flat_b.get(name)) for name in flat_a | flat_b
  ]
  found = [
    f'{name}: {_short(one)} {where_a}, {_short(other)} {where_b}'
    for name, one, other in pairs
    if one != other and errors.UNKNOWN not in (one, other)
  ]
  more = f' (and {len(found) - _SHOWN} more)' if len(found) > _SHOWN else ''
  return f'  {"; ".join(found[:_SHOWN])}{more}' if found else ''


def _short(value: Any) -> str:
  text = 'nothing' if value is None else json.dumps(value, default=str)
  if len(text) < 100:
    return text
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return f'{text[:60]}... (sha256 {digest})'


# ---- The end -----------------------------------------------------------------


def _leave(exit_code: int, linger: float) -> None:
  if jax.process_index() == 0:
    time.sleep(linger)
  end_process(exit_code)


def end_process(exit_code: int, error: str = '') -> None:
  """Ends this process now, without the exit handlers of Python and JAX.

  Works even if other threads hang, unless they hold Python's interpreter lock.
  Logs `error` first.
  """

  def last_words():
    if error:
      logging.error('%s', error)
    for flush in (logging.flush, sys.stdout.flush, sys.stderr.flush):
      with contextlib.suppress(Exception):
        flush()

  for child in multiprocessing.active_children():
    with contextlib.suppress(Exception):
      child.kill()  # It would outlive this process.
  # In a thread, because another one may hang with the log's lock. An
  # interpreter that is exiting starts no threads.
  last = threading.Thread(target=last_words, daemon=True)
  try:
    last.start()
    last.join(_FLUSH)
  except RuntimeError:
    last_words()
  os._exit(exit_code)
