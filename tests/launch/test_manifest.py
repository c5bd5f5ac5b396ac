"""The JobSet of a run, launch/manifest.py."""

import pytest
import yaml

from vit_jax import topology
from vit_jax.launch import manifest

FLAGS = [
  '--config=configs/pretrain.py:ViT-B/16,imagenet2012',
  '--workdir=gs://bucket/runs/b16',
]


@pytest.fixture(autouse=True)
def _root(cloud):
  """The repository's root is where the configs are looked for."""


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
  # What lets the processes find each other.
  assert jobset['spec']['network'] == {
    'enableDNSHostnames': True,
    'subdomain': 'b16',
  }
  assert list(jobset['metadata']['annotations'].values()) == [
    'cloud.google.com/gke-nodepool'
  ]


def test_which_exit_codes_start_all_again():
  jobset = render(restarts=7, grace_seconds=90)
  job, pod, _ = parts(jobset)
  assert jobset['spec']['failurePolicy'] == {
    'maxRestarts': 7,
    'rules': [
      {
        'name': 'errorOfTheRun',
        'action': 'FailJobSet',
        'onJobFailureReasons': ['PodFailurePolicy'],
      }
    ],
  }
  assert job['backoffLimit'] == 0
  disruption, error = job['podFailurePolicy']['rules']
  assert disruption == {
    'action': 'Count',
    'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
  }
  assert error['action'] == 'FailJob'
  codes = error['onExitCodes']
  assert (codes['containerName'], codes['operator']) == ('train', 'NotIn')
  # SIGKILL is 137, SIGABRT (jax.distributed's) 134, SIGTERM 143.
  assert {75, 76, 77, 134, 137, 143} <= set(codes['values'])
  assert not {0, 1, 2, 127} & set(codes['values'])
  assert codes['values'] == sorted(set(codes['values']))
  assert pod['restartPolicy'] == 'Never'
  assert pod['terminationGracePeriodSeconds'] == 90


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
  assert {'name': 'A', 'value': 'b=$c "d"'} in train['env']
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
    # One slice may wait long for the other, without a restart.
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
