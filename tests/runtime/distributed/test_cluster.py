"""Guards: a process finds its id and the number of processes.

It finds them by flags, Slurm, Open MPI, TPU pods or GKE, or is alone.
"""

import socket

import pytest

from vit_jax.runtime import errors, jax_internals
from vit_jax.runtime.distributed import cluster
from vit_jax.runtime.distributed.cluster import Place

cloud_tpu_cluster = jax_internals.clusters().cloud_tpu_cluster
jax_cluster = jax_internals.clusters().cluster


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
  def fail(*_, **__):
    raise AssertionError('Off a cluster there is nobody to ask.')

  monkeypatch.setattr(socket, 'socket', fail)
  monkeypatch.setattr(socket, 'getaddrinfo', fail)


@pytest.fixture
def tpu_vm(monkeypatch):
  """Makes JAX see a Cloud TPU VM; returns its metadata for the test to fill."""
  monkeypatch.setattr(cloud_tpu_cluster, 'running_in_cloud_tpu_vm', True)
  monkeypatch.setattr(jax_cluster, 'running_in_cloud_tpu_vm', True)
  monkeypatch.delenv('TPU_SKIP_MDS_QUERY', raising=False)
  monkeypatch.setattr(socket, 'gethostbyname', lambda name: name)
  metadata = {}
  monkeypatch.setattr(
    cloud_tpu_cluster,
    'get_metadata',
    lambda key: (metadata[key], 200),
  )
  return metadata


def _slurm(monkeypatch, **changes):
  for name, value in {
    'SLURM_JOB_ID': '4098',
    'SLURM_STEP_NODELIST': 'node[007-010]',
    'SLURM_NTASKS': '4',
    'SLURM_PROCID': '2',
    'SLURM_LOCALID': '0',
    **changes,
  }.items():
    monkeypatch.setenv(name, value)


def test_a_single_process_is_not_a_cluster():
  assert cluster.find(None, None, None, 1) is None
  assert cluster.find(None, 1, None, 1) is None
  assert cluster.find('host:1', 1, 0, 1) is None


def test_flags():
  place = cluster.find('10.0.0.2:8482', 4, 3, 1)
  assert place == Place('10.0.0.2:8482', 4, 3)
  assert (place.host, place.port) == ('10.0.0.2', 8483)
  assert cluster.find('[::1]:9000', 2, 0, 1).host == '::1'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((None, 2, 0), "{'num_processes': 2, 'process_id': 0} was given without"),
    (('host:1', None, None), 'without num_processes and process_id'),
    (('host', 2, 0), "coordinator_address='host': expected HOST:PORT"),
    ((':8000', 2, 0), "coordinator_address=':8000': expected HOST:PORT"),
    (('host:70000', 2, 0), 'expected HOST:PORT'),
    (('host:8000', 2, 2), 'process_id=2 of num_processes=2'),
    (('host:8000', 0, 0), 'process_id=0 of num_processes=0'),
  ],
)
def test_inconsistent_flags_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    cluster.find(*arguments, 1)


def test_slurm(monkeypatch):
  _slurm(monkeypatch)
  place = cluster.find(None, None, None, 1)
  # JAX's port is 61440 + job id modulo 4096, so the next job has the next port.
  assert place == Place('node007:61442', 4, 2, [0], ['node[007-010]'], '4098')
  assert place.port == 57346
  # Two runs of one job are two launches.
  monkeypatch.setenv('SLURM_STEP_ID', '3')
  assert cluster.find(None, None, None, 1).job == '4098 3'
  # Flags come first: some of the processes may be outside of the job.
  assert cluster.find('host:8000', 2, 1, 1) == Place('host:8000', 2, 1)
  monkeypatch.setenv('JAX_COORDINATOR_PORT', '7000')
  place = cluster.find(None, None, None, 1)
  assert place.coordinator_address == 'node007:7000'


def test_the_mpirun_job_is_used_instead_of_the_srun_step(monkeypatch):
  # mpirun starts processes on other hosts by srun, and local ones by itself.
  _slurm(monkeypatch)
  monkeypatch.setenv('PMIX_NAMESPACE', 'prterun-node007-12@1')
  assert cluster.find(None, None, None, 1).job == 'prterun-node007-12@1'
  monkeypatch.setenv('SLURM_STEP_ID', '0')
  assert cluster.find(None, None, None, 1).job == 'prterun-node007-12@1'


def test_slurm_with_one_task(monkeypatch):
  _slurm(monkeypatch, SLURM_NTASKS='1', SLURM_PROCID='0')
  assert cluster.find(None, None, None, 1) is None


def test_tpu_pod(tpu_vm):
  tpu_vm |= {
    'agent-worker-number': '1',
    'worker-network-endpoints': '10.0.0.5,10.0.0.6',
    'tpu-env': "ACCELERATOR_TYPE: 'v3-16'",
  }
  hosts = ['10.0.0.5', '10.0.0.6']
  place = cluster.find(None, None, None, 1)
  assert place == Place('10.0.0.5:8482', 2, 1, None, hosts)
  assert place.port == 8483


def test_tpu_slices(tpu_vm):
  tpu_vm |= {
    'agent-worker-number': '1',
    'worker-network-endpoints': 'x:y:10.0.1.5,x:y:10.0.1.6',
    'tpu-env': "MEGASCALE_NUM_SLICES: '3'\nMEGASCALE_SLICE_ID: '2'\n"
    "MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.5:8080'\n",
  }
  assert cluster.find(None, None, None, 1) == Place('10.0.0.5:8482', 6, 5)


def test_single_tpu_host(tpu_vm):
  tpu_vm |= {
    'agent-worker-number': '0',
    'worker-network-endpoints': '10.0.0.5',
    'tpu-env': '',
  }
  assert cluster.find(None, None, None, 1) is None


def test_gke(tpu_vm, monkeypatch):
  monkeypatch.setenv('TPU_SKIP_MDS_QUERY', 'true')  # GKE sets this.
  monkeypatch.setenv('TPU_WORKER_ID', '1')
  monkeypatch.setenv('TPU_WORKER_HOSTNAMES', 'job-0.svc,job-1.svc')
  for name, value in {'NUM_SLICES': '1', 'SLICE_ID': '0'}.items():
    monkeypatch.setenv(f'MEGASCALE_{name}', value)
  monkeypatch.setenv('MEGASCALE_COORDINATOR_ADDRESS', 'job-0.svc')
  place = cluster.find(None, None, None, 1)
  hosts = ['job-0.svc', 'job-1.svc']
  assert place == Place('job-0.svc:8482', 2, 1, None, hosts)


def test_an_unknown_host_name_of_process_0_is_an_error(tpu_vm, monkeypatch):
  def fail(name):
    raise socket.gaierror('no such name')

  monkeypatch.setattr(socket, 'gethostbyname', fail)
  monkeypatch.setattr(cloud_tpu_cluster.time, 'sleep', lambda seconds: None)
  monkeypatch.setenv('TPU_SKIP_MDS_QUERY', 'true')  # GKE sets this.
  monkeypatch.setenv('TPU_WORKER_HOSTNAMES', 'job-0.svc,job-1.svc')
  monkeypatch.setenv('MEGASCALE_COORDINATOR_ADDRESS', 'job-0.svc')
  with pytest.raises(errors.HostLostError, match=r'after 1 s .*job-0\.svc'):
    cluster.find(None, None, None, 1)


def test_metadata_server_that_does_not_answer(tpu_vm, monkeypatch):
  def fail(key):
    raise ConnectionError('Connection refused')

  monkeypatch.setattr(cloud_tpu_cluster, 'get_metadata', fail)
  with pytest.raises(errors.HostLostError, match='ConnectionError: Connection'):
    cluster.find(None, None, None, 1)


def test_missing_metadata_is_an_error(tpu_vm):
  with pytest.raises(OSError, match='If it is alone, give num_processes=1'):
    cluster.find(None, None, None, 1)
