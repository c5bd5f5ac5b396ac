"""Guards: launch/gke.py makes the right node pools and placement policies."""

import shlex

import pytest

from vit_jax.launch import gke

PLACE = '--location=us-east5-a --project=my-project'
POLICIES = 'gcloud compute resource-policies'
LIST_OF_POLICIES = '--project=my-project --filter=name=vit-2x2x2 --format=json'


def call(line):
  gke.main(shlex.split(line))


def fails(line):
  with pytest.raises(SystemExit) as error:
    call(line)
  return error.value.code


@pytest.fixture(autouse=True)
def _zone(cloud, monkeypatch):
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'us-east5-a')


def test_create_nodes_makes_one_pool_per_slice(cloud, capfd):
  call('create_nodes --cluster=vit --accelerator=v5p-32 --num_slices=2 --yes')
  assert cloud.lines == [
    f'gcloud container node-pools create v5p-2x2x4-{i} --cluster=vit {PLACE}'
    ' --node-locations=us-east5-a --machine-type=ct5p-hightpu-4t --num-nodes=4'
    ' --workload-metadata=GKE_METADATA --tpu-topology=2x2x4'
    for i in (0, 1)
  ]
  assert '32 chip-hours an hour' in capfd.readouterr().out


def test_create_nodes_of_one_machine(cloud):
  call('create_nodes --cluster=vit --accelerator=v6e-8 --spot --yes')
  (line,) = cloud.lines
  assert '--machine-type=ct6e-standard-8t --num-nodes=1 --spot ' in line
  assert 'topology' not in line


def test_create_nodes_with_flex_start_begins_with_zero_nodes(cloud):
  """The pool grows from zero nodes to all nodes when pods need them."""
  call('create_nodes --cluster=vit --accelerator=v6e-16 --flex_start --yes')
  (line,) = cloud.lines
  assert (
    ' --num-nodes=0 --flex-start --enable-autoscaling --min-nodes=0'
    ' --max-nodes=4 --location-policy=ANY --reservation-affinity=none'
    ' --no-enable-autorepair --workload-metadata=GKE_METADATA'
    ' --tpu-topology=4x4'
  ) in line


def test_create_nodes_with_an_identity(cloud):
  call(
    'create_nodes --cluster=vit --accelerator=v6e-8 --yes'
    ' --node_service_account=a@b'
  )
  (line,) = cloud.lines
  assert line.endswith(' --service-account=a@b --scopes=cloud-platform')


@pytest.mark.parametrize(
  'flags, message',
  [
    ('--spot --flex_start', '--spot and --flex_start exclude each other'),
    ('--flex_start --reservation=r', '--flex_start and --reservation exclude'),
    ('--flex_start --num_slices=2', 'one slice would wait, at full cost'),
  ],
)
def test_nodes_that_are_refused(cloud, flags, message):
  line = f'create_nodes --cluster=vit --accelerator=v6e-16 --yes {flags}'
  assert message in fails(line)
  assert cloud.calls == []


def test_create_nodes_of_tpu7x_places_them_by_a_policy(cloud):
  call(
    'create_nodes --cluster=vit --accelerator=tpu7x:2x2x2 --yes'
    ' --reservation=ours'
  )
  listed, policy, pool = cloud.lines
  assert listed == f'{POLICIES} list {LIST_OF_POLICIES}'
  assert policy == (
    f'{POLICIES} create workload-policy vit-2x2x2'
    ' --type=HIGH_THROUGHPUT --accelerator-topology=2x2x2 --region=us-east5'
    ' --project=my-project'
  )
  assert pool.endswith('--placement-policy=vit-2x2x2')
  assert ' --reservation=ours --reservation-affinity=specific ' in pool
  assert '--tpu-topology' not in pool


def policy_row(region):
  return {
    'name': 'vit-2x2x2',
    'region': f'https://compute.googleapis.com/projects/p/regions/{region}',
  }


def test_an_existing_placement_policy_is_reused(cloud):
  cloud.answer(f'{POLICIES} list', [policy_row('us-east5')])
  call('create_nodes --cluster=vit --accelerator=tpu7x:2x2x2 --yes')
  _, pool = cloud.lines
  assert '--placement-policy=vit-2x2x2' in pool


def test_a_placement_policy_of_another_region_is_not_reused(cloud):
  cloud.answer(f'{POLICIES} list', [policy_row('us-east51')])
  call('create_nodes --cluster=vit --accelerator=tpu7x:2x2x2 --yes')
  assert f'{POLICIES} create' in cloud.lines[1]


def test_delete_nodes_of_tpu7x_deletes_the_policy(cloud, capfd):
  line = 'delete_nodes --cluster=vit --accelerator=tpu7x:2x2x2 --yes'
  delete = f'{POLICIES} delete'
  cloud.answer(f'{POLICIES} list', [policy_row('us-east5')])
  call(line)
  pool, _, policy = cloud.lines
  assert 'node-pools delete tpu7x-2x2x2-0' in pool
  assert policy == (
    f'{delete} vit-2x2x2 --region=us-east5 --project=my-project --quiet'
  )
  # gcloud refuses if other pools of the same topology use the policy.
  cloud.answer(delete, code=1)
  call(line)
  assert 'policy vit-2x2x2 stays' in capfd.readouterr().out
  # A policy that was deleted before is no error.
  cloud.answer(f'{POLICIES} list', [])
  call(line)
  assert 'node-pools delete' in cloud.lines[-2]
