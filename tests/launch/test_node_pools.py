"""Guards: launch/gke.py makes the right node pools and placement policies."""

import shlex

import pytest

from vit_jax.launch import gke

PLACE = '--location=us-east5-a --project=my-project'
POLICIES = 'gcloud compute resource-policies'
CLUSTER = {'container clusters': {'vit': {'status': 'RUNNING'}}}
POLICY = {'compute resource-policies': {'vit-2x2x2': {}}}


def call(line):
  gke.main(shlex.split(line))


def fails(line):
  with pytest.raises(SystemExit) as error:
    call(line)
  return error.value.code


@pytest.fixture(autouse=True)
def _zone(cloud, monkeypatch):
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'us-east5-a')
  cloud.things = CLUSTER


def test_create_nodes_makes_one_pool_per_slice(cloud, capfd):
  call('create_nodes --cluster=vit --accelerator=v5p-32 --num_slices=2 --yes')
  assert cloud.acts == [
    f'gcloud container node-pools create v5p-2x2x4-{i} --cluster=vit {PLACE}'
    ' --node-locations=us-east5-a --machine-type=ct5p-hightpu-4t --num-nodes=4'
    ' --workload-metadata=GKE_METADATA --tpu-topology=2x2x4'
    for i in (0, 1)
  ]
  assert '32 chip-hours an hour' in capfd.readouterr().out


def test_create_nodes_with_flex_start_begins_with_zero_nodes(cloud):
  """The pool grows from zero nodes to all nodes when pods need them."""
  call('create_nodes --cluster=vit --accelerator=v6e-16 --flex_start --yes')
  (line,) = cloud.acts
  assert (
    ' --num-nodes=0 --flex-start --enable-autoscaling --min-nodes=0'
    ' --max-nodes=4 --location-policy=ANY --reservation-affinity=none'
    ' --no-enable-autorepair --workload-metadata=GKE_METADATA'
    ' --tpu-topology=4x4'
  ) in line


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
  policy, pool = cloud.acts
  assert policy == (
    f'{POLICIES} create workload-policy vit-2x2x2'
    ' --type=HIGH_THROUGHPUT --accelerator-topology=2x2x2 --region=us-east5'
    ' --project=my-project'
  )
  assert pool.endswith('--placement-policy=vit-2x2x2')
  assert ' --reservation=ours --reservation-affinity=specific ' in pool
  assert '--tpu-topology' not in pool


def test_a_placement_policy_that_is_in_use_stays(cloud, capfd):
  """gcloud refuses if other pools of the same topology use it."""
  cloud.things = CLUSTER | POLICY
  cloud.answer(f'{POLICIES} delete', code=1)
  call('delete_nodes --cluster=vit --accelerator=tpu7x:2x2x2 --yes')
  assert cloud.acts == [
    f'{POLICIES} delete vit-2x2x2 --region=us-east5 --project=my-project'
    ' --quiet'
  ]
  assert 'policy vit-2x2x2 stays' in capfd.readouterr().out


@pytest.mark.parametrize(
  'pool, word',
  [
    ({'status': 'ERROR'}, 'ERROR'),
    ({'status': 'STOPPING'}, 'STOPPING'),
    ({'status': 'RUNNING', 'config': {'spot': True}}, 'with --spot'),
    ({'status': 'RUNNING', 'config': {'flexStart': True}}, '--flex_start'),
  ],
)
def test_a_pool_that_cannot_be_used_is_not_taken_for_made(cloud, pool, word):
  cloud.things = CLUSTER | {'container node-pools': {'v6e-4x4-1': pool}}
  line = 'create_nodes --cluster=vit --accelerator=v6e-16 --num_slices=2 --yes'
  message = fails(line)
  assert word in message
  assert 'node-pools delete v6e-4x4-1' in message
  assert cloud.acts == []


@pytest.mark.parametrize(
  'problem',
  [
    'Could not find [vit] in [a].\nDid you mean [vit] in [b]?',
    'code=403, message=Required "container.clusters.get" permission(s)',
    'Your default credentials were not found.',
  ],
)
def test_only_a_thing_that_is_not_found_is_gone(cloud, problem):
  """A cluster in another zone, which gcloud proposes, still costs money."""
  missing = 'code=404, message=Not found: projects/p/zones/z/clusters/vit.'
  problem = f'ERROR: ResponseError: {problem}'
  cloud.answer(
    'gcloud container clusters d',
    f'{missing}\n{problem}' if 'Did you' in problem else problem,
    code=1,
  )
  assert 'cluster vit may be left' in fails(
    'delete_cluster --cluster=vit --yes'
  )
