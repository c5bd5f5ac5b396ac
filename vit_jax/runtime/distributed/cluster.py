"""Finds this process's id and the number of processes: by flags or cluster."""

import dataclasses
import os
from collections.abc import Sequence

from absl import logging

from vit_jax.runtime import errors, jax_internals

# From this port on, JAX gives neighbouring ports to the jobs of a Slurm or Open
# MPI cluster, so the next port belongs to another job.
_JOB_PORTS = 61440
# Open MPI and Slurm set these variables to the same value in all processes of
# one `mpirun` or `srun`. Open MPI comes first, because mpirun may use srun.
_JOB_IDS = (
  ('OMPI_MCA_ess_base_jobid', 'PMIX_NAMESPACE'),
  ('SLURM_JOB_ID', 'SLURM_STEP_ID'),
)


@dataclasses.dataclass(frozen=True)
class Place:
  """The place of this process in a run of several.

  Attributes:
    coordinator_address: HOST:PORT of JAX's coordination service in process 0.
    num_processes: the number of processes.
    process_id: the id of this process.
    local_device_ids: this process's devices on its host; None: all.
    hosts: the cluster's names for the hosts, for error messages: one for each
      process, or one text for all. Empty if the cluster does not tell.
    job: the cluster's name of the job; '' if flags gave the place.
  """

  coordinator_address: str
  num_processes: int
  process_id: int
  local_device_ids: Sequence[int] | None = None
  hosts: Sequence[str] = ()
  job: str = ''

  @property
  def host(self) -> str:
    """The host of process 0."""
    return self.coordinator_address.rpartition(':')[0].strip('[]')

  @property
  def port(self) -> int:
    """The port where the processes of a run meet, see `connected`."""
    port = int(self.coordinator_address.rpartition(':')[2])
    return port + 1 if port < _JOB_PORTS else port - 4096


def find(
  coordinator_address: str | None,
  num_processes: int | None,
  process_id: int | None,
  timeout: float,
) -> Place | None:
  """Finds this process's place from the arguments, or else from the cluster.

  Without arguments and without a cluster, this only looks at environment
  variables. On a Cloud TPU VM it asks the machine's metadata server, as libtpu
  does. It waits `timeout` seconds for process 0's host name to exist. Returns
  None if this process is alone.

  Raises:
    ValueError: some but not all of the arguments are given, or one is wrong.
    HostLostError: the name of process 0's host is still unknown, or the
      cluster does not answer now.
    OSError: the cluster's answer cannot be read.
  """
  given = {
    'coordinator_address': coordinator_address,
    'num_processes': num_processes,
    'process_id': process_id,
  }
  missing = [name for name, value in given.items() if value is None]
  if len(missing) == 3:
    place = _detect(timeout)
    if place is None or place.num_processes == 1:
      return None
  elif num_processes == 1 and process_id in (None, 0):
    return None
  elif missing:
    have = {name: value for name, value in given.items() if value is not None}
    raise ValueError(
      f'{have} was given without {" and ".join(missing)}. Give all three flags,'
      ' or none if the cluster tells the processes their places.'
    )
  else:
    place = Place(coordinator_address, num_processes, process_id)
  _check(place)
  return place


def _check(place: Place) -> None:
  port = place.coordinator_address.rpartition(':')[2]
  if not place.host or not port.isdecimal() or not 0 < int(port) < 65536:
    raise ValueError(
      f'coordinator_address={place.coordinator_address!r}: expected HOST:PORT'
      ' of process 0, such as 10.0.0.2:8482.'
    )
  if not 0 <= place.process_id < place.num_processes:
    raise ValueError(
      f'process_id={place.process_id} of num_processes={place.num_processes}:'
      ' the ids go from 0 to the number of processes less 1.'
    )


def _detect(timeout: float) -> Place | None:
  """Asks JAX's own detection; None if there is no cluster."""
  address = os.environ.get('JAX_COORDINATOR_ADDRESS')
  try:
    address, count, process_id, device_ids = jax_internals.detect_cluster(
      address, max(1, round(timeout))
    )
  except jax_internals.ChangedError as error:
    logging.warning(
      '%s If this process is one of several, give coordinator_address,'
      ' num_processes and process_id.',
      error,
    )
    return None
  except Exception as error:
    if 'recognize coordinator' in str(error):
      raise errors.HostLostError(
        f'The host of process 0 has no address after {timeout:.0f} s ({error}).'
        ' It never started, or the cluster has no network name for it. See its'
        ' log.'
      ) from error
    # Network errors, those of `requests` included, are OSErrors, and may pass.
    kind = errors.HostLostError if isinstance(error, OSError) else OSError
    raise kind(
      'This machine looks like part of a cluster, but the cluster did not tell'
      f' its place: {type(error).__name__}: {error}. If it is alone, give'
      ' num_processes=1; else give coordinator_address, num_processes and'
      ' process_id.'
    ) from error
  if count is None or process_id is None or address is None:
    return None
  jobs = (
    ' '.join(os.environ.get(name, '') for name in names).strip()
    for names in _JOB_IDS
  )
  job = next(filter(None, jobs), '')
  return Place(address, count, process_id, device_ids, _host_names(count), job)


def _host_names(num_processes: int) -> Sequence[str]:
  """Returns the cluster's names of the hosts, in the order of the processes."""
  workers = os.environ.get('TPU_PROCESS_ADDRESSES') or os.environ.get(
    'TPU_WORKER_HOSTNAMES', ''
  )
  if len(workers.split(',')) == num_processes:
    return workers.split(',')
  nodes = os.environ.get('SLURM_STEP_NODELIST')
  if nodes:
    return [nodes]
  try:
    workers = jax_internals.tpu_hosts()
  except Exception:  # Only error messages use the names.
    return ()
  return workers if len(workers) == num_processes else ()
