"""The flags of commands that several machines run as one, and what they do."""

import contextlib
import os
from collections.abc import Iterator

import jax
from absl import flags

from vit_jax.runtime import distributed, logs

# The flags are those of the command that adopts them.
_COORDINATOR = flags.DEFINE_string(
  'coordinator_address',
  None,
  'HOST:PORT of process 0, for several processes on a cluster that does not'
  ' provide it.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'Number of processes.', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
  'process_id', None, 'Number of this process, from 0.', lower_bound=0
)
_START_TIMEOUT = flags.DEFINE_float(
  'start_timeout',
  300.0,
  'Seconds to wait for all processes.',
  lower_bound=1,
)
_LOST_TIMEOUT = flags.DEFINE_float(
  'lost_timeout',
  30.0,
  'Seconds without a heartbeat after which a process counts as lost.',
  lower_bound=1,
)
_DETERMINISTIC = flags.DEFINE_bool(
  'deterministic',
  False,
  'Make repeated runs on a GPU bitwise equal, which is slower. Runs on CPUs and'
  ' TPUs always are.',
)


@contextlib.contextmanager
def joined() -> Iterator[None]:
  """Joins the processes of a run, as the flags say; see `distributed`.

  Enter this before JAX's devices are first used.
  """
  if _DETERMINISTIC.value:  # Other devices ignore the option.
    options = os.environ.get('XLA_FLAGS', '')
    os.environ['XLA_FLAGS'] = f'{options} --xla_gpu_deterministic_ops=true'
  with distributed.connected(
    coordinator_address=_COORDINATOR.value,
    num_processes=_NUM_PROCESSES.value,
    process_id=_PROCESS_ID.value,
    start_timeout=_START_TIMEOUT.value,
    lost_timeout=_LOST_TIMEOUT.value,
  ):
    if jax.process_index():
      logs.only_warnings()
    yield
