"""Every command of launch/gke.py, and the JobSet it writes."""

import pathlib
import shlex
import subprocess
import sys

import pytest
import yaml

from launch import gke, manifest
from vit_jax import topology

PLACE = '--location=us-east5-a --project=my-project'
LABEL = '--selector=jobset.sigs.k8s.io/jobset-name=b16'
FLAGS = '--config=configs/pretrain.py:ViT-B/16,imagenet2012'
FLAGS += ' --workdir=gs://bucket/runs/b16'
APPLY = f'apply --name=b16 --image=i:1 --accelerator=v6e-16 -- {FLAGS}'


def call(line):
  gke.main(shlex.split(line))


def fails(line):
  with pytest.raises(SystemExit) as error:
    call(line)
  return error.value.code


@pytest.fixture(autouse=True)
def _zone(cloud, monkeypatch):
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'us-east5-a')


# The command lines -----------------------------------------------------------


def test_create_cluster(cloud):
  call('create_cluster --cluster=vit --yes')
  assert cloud.lines == [
    f'gcloud container clusters create vit {PLACE}'
    ' --workload-pool=my-project.svc.id.goog --addons=GcsFuseCsiDriver'
    ' --release-channel=rapid --machine-type=e2-standard-4 --num-nodes=1',
    f'gcloud container clusters get-credentials vit {PLACE}',
    'kubectl apply --server-side --filename=https://github.com/kubernetes-sigs'
    '/jobset/releases/download/v0.8.0/manifests.yaml',
  ]


def test_create_nodes_makes_a_pool_of_each_slice(cloud, capfd):
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
  assert '--machine-type=ct6e-standard-8t --num-nodes=1 ' in line
  assert line.endswith(' --spot')
  assert 'topology' not in line


def test_create_nodes_of_tpu7x_places_them_by_a_policy(cloud):
  call(
    'create_nodes --cluster=vit --accelerator=tpu7x:2x2x2 --yes'
    ' --reservation=ours'
  )
  policy, pool = cloud.lines
  assert policy == (
    'gcloud compute resource-policies create workload-policy vit-2x2x2'
    ' --type=HIGH_THROUGHPUT --accelerator-topology=2x2x2 --region=us-east5'
    ' --project=my-project'
  )
  assert pool.endswith(
    '--placement-policy=vit-2x2x2 --reservation=ours'
    ' --reservation-affinity=specific'
  )
  assert '--tpu-topology' not in pool


def test_build(cloud, archive):
  call('build --image=r/i:1')
  assert cloud.lines == [
    'gcloud builds submit ARCHIVE --config=launch/cloudbuild.yaml'
    ' --substitutions=_IMAGE=r/i:1 --project=my-project --timeout=3600'
  ]


def test_apply_sends_what_manifest_prints(cloud, capfd):
  call(APPLY.replace('apply', 'manifest'))
  printed = capfd.readouterr().out
  assert cloud.calls == []
  call(APPLY)
  assert cloud.lines == ['kubectl apply --filename=-']
  assert cloud.calls[0]['stdin'] == printed
  assert yaml.safe_load(printed)['kind'] == 'JobSet'


@pytest.mark.parametrize(
  'line, expected',
  [
    (
      'logs --name=b16',
      [
        f'kubectl logs {LABEL} --container=train --prefix --tail=50'
        ' --max-log-requests=1000'
      ],
    ),
    (
      'logs --name=b16 --lines=9 --follow',
      [
        f'kubectl logs {LABEL} --container=train --prefix --tail=9'
        ' --max-log-requests=1000 --follow'
      ],
    ),
    (
      'status --name=b16',
      [
        'kubectl get jobset b16 --output=wide',
        f'kubectl get pods {LABEL} --output=wide',
      ],
    ),
    ('delete --name=b16', ['kubectl delete jobset b16']),
    (
      'delete_nodes --cluster=vit --accelerator=v6e-16 --num_slices=2 --yes',
      [
        f'gcloud container node-pools delete v6e-4x4-{i} --cluster=vit {PLACE}'
        ' --quiet'
        for i in (0, 1)
      ],
    ),
    (
      'delete_cluster --cluster=vit --yes',
      [f'gcloud container clusters delete vit {PLACE} --quiet'],
    ),
  ],
)
def test_the_others(cloud, line, expected):
  call(line)
  assert cloud.lines == expected


@pytest.mark.parametrize(
  'line',
  [
    'create_cluster --cluster=vit',
    'create_nodes --cluster=vit --accelerator=tpu7x:2x2x2 --spot',
    'build --image=r/i:1',
    APPLY,
    'logs --name=b16',
    'status --name=b16',
    'delete --name=b16',
    'delete_nodes --cluster=vit --accelerator=v6e-16',
    'delete_cluster --cluster=vit',
  ],
)
def test_a_dry_run_prints_right_commands_and_runs_nothing(cloud, capfd, line):
  own, dashes, rest = line.partition(' -- ')
  call(f'{own} --dry_run{dashes}{rest}')
  assert cloud.calls == []
  script = capfd.readouterr().out.replace('bash launch/pack.sh', 'true')
  # Pasted, it is commands that gcloud and kubectl take, heredoc and all.
  subprocess.run(['bash', '-euc', script], check=True)
  assert cloud.calls
  if line == APPLY:
    assert yaml.safe_load(cloud.calls[0]['stdin'])['metadata']['name'] == 'b16'


# The manifest ----------------------------------------------------------------


def render(accelerator='v6e-16', **others):
  return yaml.safe_load(
    manifest.render(
      manifest.Run(
        name='b16',
        wanted=topology.parse(accelerator),
        image='i:1',
        **dict(num_slices=1, flags=FLAGS.split()) | others,
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
  assert train['args'] == FLAGS.split()
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
      flags=['--config=configs/pretrain.py', '--workdir=/bucket/runs/b16'],
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


# Errors ----------------------------------------------------------------------


@pytest.mark.parametrize(
  'old, new, message',
  [
    ('v6e-16', 'v2-8', 'GKE does not offer v2'),
    ('v6e-16', 'v6e-17', "'v6e-17' is no TPU slice"),
    ('v6e-16', 'v6e-8 --num_slices=2', '--num_slices=2 of v6e:2x4'),
    ('v6e-16', 'v3-32 --num_slices=2', 'not on v3'),
    ('v6e-16', 'v6e-16 --num_slices=0', '--num_slices=0 must be'),
    ('v6e-16', 'v6e-16 --env=A', '--env=A: expected NAME=VALUE'),
    ('b16 ', 'b_16 ', '--name=b_16: expected'),
    ('gs://bucket', '/bucket', 'is a directory of one pod'),
    ('gs://bucket', 'runs', 'expected gs://BUCKET/PATH'),
    ('configs/', 'config/', "there is no file 'config/pretrain.py'"),
    (FLAGS, '', '--config is missing'),
  ],
)
def test_what_is_refused(cloud, old, new, message):
  assert message in fails(APPLY.replace(old, new, 1))
  assert cloud.calls == []


def test_nothing_is_created_or_deleted_unasked(cloud, monkeypatch):
  monkeypatch.setattr(sys.stdin, 'isatty', lambda: False, raising=False)
  for line in (
    'create_cluster --cluster=vit',
    'create_nodes --cluster=vit --accelerator=v6e-16',
    'delete_nodes --cluster=vit --accelerator=v6e-16',
    'delete_cluster --cluster=vit',
  ):
    assert 'Pass --yes' in fails(line)
  assert cloud.calls == []


def test_help_teaches():
  for words in ([], *([name] for name in gke.COMMANDS)):
    result = subprocess.run(
      [sys.executable, '-S', 'launch/gke.py', *words, '--help'],
      cwd=pathlib.Path(__file__).parents[2],
      capture_output=True,
      text=True,
      check=False,
    )
    assert result.returncode == 0, result.stderr
    assert '--dry_run' in result.stdout
    for name in gke.COMMANDS if not words else ():
      assert f'\n  {name}' in result.stdout
