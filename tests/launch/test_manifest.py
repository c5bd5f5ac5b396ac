"""Guards: launch/manifest.py makes JobSets with the right pods and restarts."""

import re

import pytest
import yaml

from vit_jax import topology
from vit_jax.launch import manifest
from vit_jax.runtime import errors

FLAGS = [
  '--config=configs/pretrain.py:ViT-B/16,imagenet2012',
  '--workdir=gs://bucket/runs/b16',
]


@pytest.fixture(autouse=True)
def _root(cloud):
  """Moves to the repository's root, which has the configs."""


def render(accelerator='v6e-16', **others):
  return yaml.safe_load(
    manifest.render(
      manifest.Run(
        name='b16',
        wanted=topology.parse(accelerator),
        image='i:1',
        **dict(num_slices=1, flags=FLAGS) | others,
      )
    )
  )


def expanded(text, variables):
  """Returns what Kubernetes makes of an argument or a variable's value."""
  return re.sub(
    r'\$(\$|\((\w+)\))',
    lambda m: '$' if m[1] == '$' else variables.get(m[2], m[0]),
    text,
  )


@pytest.mark.parametrize(
  'text', ['$(WORKDIR)', '$$(A)', 'a$$b', '$A', '${A}', '$', 'a$(A)$', '$$$']
)
def test_what_the_user_wrote_reaches_the_program(text):
  """Kubernetes expands $(A), and $$ to $, in arguments and variables."""
  workdir = f'gs://bucket/{text}'
  flags = [FLAGS[0], f'--workdir={workdir}', f'--config.name={text}']
  _, _, train = parts(render(flags=flags, variables=['A=1', f'B={text}']))
  known = {}
  for entry in train['env']:
    if 'value' in entry:
      known[entry['name']] = expanded(entry['value'], known)
  assert [expanded(word, known) for word in train['args']] == flags
  assert (known['B'], known['WORKDIR']) == (text, workdir)


def parts(jobset):
  job = jobset['spec']['replicatedJobs'][0]['template']['spec']
  pod = job['template']['spec']
  return job, pod, pod['containers'][0]


def test_slices_machines_and_chips():
  jobset = render('v4:2x2x4', num_slices=3)
  job, pod, train = parts(jobset)
  assert jobset['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  assert jobset['spec']['replicatedJobs'][0]['replicas'] == 3
  assert (job['parallelism'], job['completions']) == (4, 4)
  assert job['completionMode'] == 'Indexed'
  assert pod['nodeSelector'] == {
    'cloud.google.com/gke-tpu-accelerator': 'tpu-v4-podslice',
    'cloud.google.com/gke-tpu-topology': '2x2x4',
  }
  assert train['resources'] == {'limits': {'google.com/tpu': 4}}
  assert train['image'] == 'i:1'
  assert train['command'] == ['bash', 'launch/worker/pod.sh']
  assert train['args'][:2] == FLAGS
  assert train['env'][0] == {'name': 'WORKDIR', 'value': 'gs://bucket/runs/b16'}
  # The processes find each other by DNS names.
  assert jobset['spec']['network'] == {
    'enableDNSHostnames': True,
    'subdomain': 'b16',
  }
  assert list(jobset['metadata']['annotations'].values()) == [
    'cloud.google.com/gke-nodepool'
  ]


def test_which_exit_codes_restart_all_pods():
  jobset = render(restarts=7, grace_seconds=90)
  job, pod, _ = parts(jobset)
  assert jobset['spec']['failurePolicy']['maxRestarts'] == 7
  assert job['backoffLimit'] == 0
  disruption, waiting, error = job['podFailurePolicy']['rules']
  assert disruption == {
    'action': 'FailJob',
    'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
  }
  assert waiting == {
    'action': 'FailJob',
    'onExitCodes': {
      'containerName': 'train',
      'operator': 'In',
      'values': [75, 76, 134],
    },
  }
  assert error['action'] == 'FailJob'
  codes = error['onExitCodes']
  assert (codes['containerName'], codes['operator']) == ('train', 'NotIn')
  # SIGKILL is 137, SIGABRT (jax.distributed's) 134, SIGTERM 143.
  assert {75, 76, 77, 134, 137, 143} <= set(codes['values'])
  # 130 is Ctrl-C, after which nobody wants a restart.
  assert not {0, 1, 2, 127, 130} & set(codes['values'])
  assert codes['values'] == sorted(set(codes['values']))
  assert pod['restartPolicy'] == 'Never'
  assert pod['terminationGracePeriodSeconds'] == 90


# Kubernetes's messages on a Job that a rule ended; the rule's index follows.
LOST = 'Pod default/b16 has condition DisruptionTarget matching FailJob rule at'
EXIT = 'Container train for pod default/b16-slice-0-0-x failed with exit code'
NOT_COUNTED = 'RestartJobSetAndIgnoreMaxRestarts'


@pytest.mark.parametrize(
  'failed, action',
  [
    ([('PodFailurePolicy', f'{LOST} index 0')], NOT_COUNTED),
    # The slice waits for another slice, which has no nodes yet.
    (
      [('PodFailurePolicy', f'{EXIT} 76 matching FailJob rule at index 1')],
      NOT_COUNTED,
    ),
    (
      [('PodFailurePolicy', f'{EXIT} 1 matching FailJob rule at index 2')],
      'FailJobSet',
    ),
    # One slice's error is the cause, although the other slice ended first.
    (
      [
        ('PodFailurePolicy', f'{EXIT} 76 matching FailJob rule at index 1'),
        ('PodFailurePolicy', f'{EXIT} 1 matching FailJob rule at index 2'),
      ],
      'FailJobSet',
    ),
    # 77 and death by a signal match no rule of the Job: they count.
    ([('BackoffLimitExceeded', 'Job has reached the limit')], 'RestartJobSet'),
    (
      [
        ('PodFailurePolicy', f'{EXIT} 76 matching FailJob rule at index 1'),
        ('BackoffLimitExceeded', 'Job has reached the limit'),
      ],
      'RestartJobSet',
    ),
    ([('PodFailurePolicy', 'other words')], 'FailJobSet'),
  ],
)
def test_what_counts_as_a_restart(failed, action):
  """As in JobSet, the first rule that matches any failed job applies."""
  found = 'RestartJobSet'  # JobSet's action if no rule matches.
  for rule in render()['spec']['failurePolicy']['rules']:
    if any(
      reason in rule['onJobFailureReasons']
      and any(
        re.search(pattern, message)
        for pattern in rule.get('onJobFailureMessagePatterns', [''])
      )
      for reason, message in failed
    ):
      found = rule['action']
      break
  assert found == action


def test_launchers_restart_the_exit_codes_that_the_program_declares():
  def codes(error):
    yield error.exit_code
    for one in error.__subclasses__():
      yield from codes(one)

  listed = {*codes(errors.RestartableError)} - {
    errors.RestartableError.exit_code,
    errors.InterruptedByUserError.exit_code,
  }
  assert {c for c in manifest.RESTARTABLE if c < 128} == listed
  assert 130 not in manifest.RESTARTABLE


def test_spot_bucket_identity_and_variables():
  job, pod, train = parts(
    render(
      'v5e-8',
      spot=True,
      bucket='ours',
      service_account='trainer',
      variables=['A=b=$c "d"'],
    )
  )
  assert pod['nodeSelector']['cloud.google.com/gke-spot'] == 'true'
  assert pod['tolerations'][0]['key'] == 'cloud.google.com/gke-spot'
  assert job['template']['metadata']['annotations'] == {
    'gke-gcsfuse/volumes': 'true'
  }
  assert pod['serviceAccountName'] == 'trainer'
  assert {'name': 'A', 'value': 'b=$$c "d"'} in train['env']
  assert train['resources']['limits']['google.com/tpu'] == 8
  assert {'name': 'bucket', 'mountPath': '/bucket'} in train['volumeMounts']
  assert pod['volumes'][1]['csi']['driver'] == 'gcsfuse.csi.storage.gke.io'
  assert pod['volumes'][1]['csi']['volumeAttributes']['bucketName'] == 'ours'
  plain_job, plain_pod, _ = parts(render('v5e-8'))
  assert 'tolerations' not in plain_pod
  assert 'metadata' not in plain_job['template']


def test_every_slice_of_gke_has_a_manifest():
  for wanted in topology.slices():
    if wanted.gke_accelerator:
      job, _, train = parts(render(str(wanted)))
      chips = train['resources']['limits']['google.com/tpu']
      assert chips * job['completions'] == wanted.chips


@pytest.mark.parametrize(
  'num_slices, given, added',
  [
    (1, [], []),
    # The slices get an hour to wait for each other without a restart.
    (2, [], ['--start_timeout=3600']),
    (2, ['--start_timeout=60'], []),
    (2, ['-start_timeout', '60'], []),
  ],
)
def test_slices_wait_for_each_other(num_slices, given, added):
  flags = [*FLAGS, *given]
  _, _, train = parts(render(num_slices=num_slices, flags=flags))
  assert train['args'] == flags + added


@pytest.mark.parametrize('workdir', ['/bucket/runs/b16', '/data/b16'])
def test_a_work_directory_in_a_mounted_bucket_is_refused(workdir):
  flags = [FLAGS[0], f'--workdir={workdir}']
  with pytest.raises(ValueError, match='Expected --workdir=gs://BUCKET/PATH'):
    render(bucket='ours', flags=flags)
