"""Guards: launch commands can be repeated, and name what may still cost money.

Each command runs twice in a row, and again after each of its steps has failed.
"""

import shlex

import pytest

from tests.launch.slice_b16 import B16, TYPES
from vit_jax.launch import gke, tpu_vm

NODES = '--cluster=vit --accelerator=tpu7x:2x2x2'
CLUSTER = {'container clusters': {'vit': {'status': 'RUNNING'}}}
POOLS = {
  'container node-pools': {
    f'tpu7x-2x2x2-{i}': {'status': 'RUNNING'} for i in (0, 1)
  },
  'compute resource-policies': {'vit-2x2x2': {}},
}
# Command -> program, and what is in the cloud before it.
MAKES = {
  'create_cluster --cluster=vit': (gke, {}),
  f'create_nodes {NODES} --num_slices=2': (gke, CLUSTER),
  'create --name=b16 --accelerator=v4-32': (tpu_vm, {}),
}
DELETES = {
  f'delete_nodes {NODES} --num_slices=2': (gke, CLUSTER | POOLS),
  # The whole cluster was deleted before.
  f'delete_nodes {NODES} --num_slices=3': (gke, {}),
  'delete_cluster --cluster=vit': (gke, CLUSTER | POOLS),
  'delete --name=b16': (tpu_vm, B16),
  # Somebody has deleted the queued resource without its TPU VM.
  'delete --name=b16 ': (tpu_vm, {'compute tpus tpu-vm': {'b16': {}}}),
}
VIT = ('container clusters', 'vit')


@pytest.fixture(autouse=True)
def _offered(cloud, monkeypatch):
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'us-east5-a')
  cloud.answer(TYPES, 'v4-32\n')


def call(program, line):
  """Runs a command; returns its error message, '' after a success."""
  try:
    program.main([*shlex.split(line), '--yes'])
  except SystemExit as error:
    return str(error.code)
  return ''


def there(cloud):
  """Returns kind and name of all that is there and costs money."""
  return {
    (kind, name)
    for kind, rows in cloud.things.items()
    if kind != 'compute resource-policies'
    for name in rows
  }


def after_each_step(cloud, program, line, before, done):
  """Yields the message of the command after each step failed, and repeats it.

  The repeated command must end with what the command without failures left.
  """
  cloud.things = before
  assert call(program, line) == ''
  steps, final = len(cloud.calls), cloud.things
  assert call(program, line) == ''
  assert cloud.things == final
  for step in range(steps):
    cloud.things = before
    cloud.fail(step, done=done)
    message = call(program, line)
    yield message
    cloud.fail()
    assert call(program, line) == '', (step, message)
    assert cloud.things == final, step


@pytest.mark.parametrize('done', [False, True])
@pytest.mark.parametrize('line', MAKES)
def test_a_creation_makes_what_is_missing(cloud, capfd, line, done):
  program, before = MAKES[line]
  for message in after_each_step(cloud, program, line, before, done):
    made = there(cloud) - {(k, n) for k, rows in before.items() for n in rows}
    if message and made:
      delete = line.partition(' --accelerator')[0].replace('create', 'delete')
      assert f'{delete} ' in capfd.readouterr().out


@pytest.mark.parametrize('done', [False, True])
@pytest.mark.parametrize('line', DELETES)
def test_a_deletion_tries_every_part_and_names_what_is_left(cloud, line, done):
  program, before = DELETES[line]
  kept = {VIT} if 'nodes' in line and before else set()
  for message in after_each_step(cloud, program, line, before, done):
    left = there(cloud) - kept
    if VIT in left:
      left = {VIT}  # Its node pools go with it.
    # Only the part whose deletion failed is left, and the message names it.
    assert len(left) <= 1
    assert all(name in message for _, name in left)
  assert there(cloud) == kept


@pytest.mark.parametrize(
  'line, calls, said',
  [
    # Ctrl-C while the first of two pools is made, or deleted.
    ([*MAKES][1], 4, 'launch/gke.py delete_nodes --cluster=vit'),
    (
      next(iter(DELETES)),
      1,
      'tpu7x-2x2x2-0, node pool tpu7x-2x2x2-1 may be left',
    ),
  ],
)
def test_ctrl_c_names_what_may_cost_money(cloud, capfd, line, calls, said):
  program, cloud.things = (MAKES | DELETES)[line]
  cloud.fail(calls, done='interrupted')
  assert call(program, line) == '130'
  assert len(cloud.calls) == calls + 1
  assert said in capfd.readouterr().out
