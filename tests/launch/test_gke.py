"""Guards: launch/gke.py runs the right gcloud and kubectl commands.

It refuses wrong flags before it runs any command.
"""

import pathlib
import shlex
import subprocess
import sys

import pytest
import yaml

from tests.launch import bucket
from vit_jax.launch import gke

PLACE = '--location=us-east5-a --project=my-project'
LABEL = '--selector=jobset.sigs.k8s.io/jobset-name=b16'
THERE = 'kubectl get jobset b16 --ignore-not-found --output=name'
FLAGS = '--config=configs/pretrain.py:ViT-B/16,imagenet2012'
FLAGS += ' --workdir=gs://bucket/runs/b16'
APPLY = f'apply --name=b16 --image=i:1 --accelerator=v6e-16 -- {FLAGS}'
THINGS = {
  'container clusters': {'vit': {'status': 'RUNNING'}},
  'container node-pools': {
    name: {'status': 'RUNNING'}
    for name in ('v6e-4x4-0', 'v6e-4x4-1', 'tpu7x-2x2x2-0')
  },
  'compute resource-policies': {'vit-2x2x2': {}},
  'jobset': {'b16': {}},
}


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
  assert cloud.acts == [
    f'gcloud container clusters create vit {PLACE}'
    ' --workload-pool=my-project.svc.id.goog --addons=GcsFuseCsiDriver'
    ' --release-channel=rapid --machine-type=e2-standard-4 --num-nodes=1',
    f'gcloud container clusters get-credentials vit {PLACE}',
    'kubectl apply --server-side --filename=https://github.com/kubernetes-sigs'
    '/jobset/releases/download/v0.12.0/manifests.yaml',
    f'gcloud container clusters update vit {PLACE}'
    ' --add-maintenance-exclusion-name=runs'
    ' --add-maintenance-exclusion-end=+p90d'
    ' --add-maintenance-exclusion-scope=no_minor_or_node_upgrades',
  ]


def test_apply_sends_what_manifest_prints(cloud, capfd):
  call(APPLY.replace('apply', 'manifest'))
  printed = capfd.readouterr().out
  assert cloud.calls == []
  call(APPLY)
  assert cloud.lines == [
    *(THERE, 'gcloud config get core/project', bucket.DESCRIBE),
    *(bucket.NUMBER, *bucket.QUESTIONS[1:], 'kubectl apply --filename=-'),
  ]
  assert cloud.calls[-1]['stdin'] == printed
  assert yaml.safe_load(printed)['kind'] == 'JobSet'


def test_apply_first_checks_the_pods_access_to_the_bucket(cloud):
  bucket.grant(cloud, 'roles/storage.objectUser', members=[bucket.POD])
  message = fails(APPLY)
  assert f'{bucket.POD} seems to lack storage.buckets.get' in message
  assert not any('apply' in line for line in cloud.lines)
  call(APPLY.replace('apply', 'apply --no_preflight'))
  assert cloud.lines[-2:] == [THERE, 'kubectl apply --filename=-']


@pytest.mark.parametrize(
  'flags, member',
  [
    (
      '--service_account=trainer',
      bucket.POD.replace('sa/default', 'sa/trainer'),
    ),
    ('--host_network', bucket.COMPUTE),
    ('--host_network --node_service_account=a@b', 'serviceAccount:a@b'),
  ],
)
def test_which_identity_needs_access_to_the_bucket(cloud, flags, member):
  bucket.let_in(cloud, 'user:somebody')
  line = APPLY.replace('apply', f'apply {flags}', 1)
  assert f'error: {member} seems to lack' in fails(line)
  bucket.let_in(cloud, member)
  call(line)


def test_apply_refuses_a_name_that_is_taken(cloud):
  """Otherwise kubectl prints `unchanged`, and nothing runs."""
  cloud.answer(THERE, 'jobset.jobset.x-k8s.io/b16\n')
  message = fails(APPLY)
  assert "there is a run 'b16' in the cluster already" in message
  assert 'gke.py delete --name=b16' in message
  assert cloud.lines == [THERE]


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
    (
      'delete --name=b16',
      ['kubectl delete jobset b16 --cascade=foreground --ignore-not-found'],
    ),
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
def test_the_other_commands(cloud, line, expected):
  cloud.things = THINGS
  call(line)
  assert cloud.acts == expected


@pytest.mark.parametrize(
  'line',
  [
    'create_cluster --cluster=vit',
    APPLY,
    'delete_nodes --cluster=vit --accelerator=tpu7x:2x2x2',
  ],
)
def test_a_dry_run_prints_right_commands_and_runs_nothing(cloud, capfd, line):
  own, dashes, rest = line.partition(' -- ')
  call(f'{own} --dry_run{dashes}{rest}')
  assert cloud.calls == []
  script = capfd.readouterr().out.replace('bash launch/pack.sh', 'true')
  if not line.startswith(('create', 'apply')):
    cloud.things = THINGS
  # The output is a script that gcloud and kubectl accept, with its heredoc.
  subprocess.run(['bash', '-euc', script], check=True)
  assert cloud.calls
  if line == APPLY:
    assert yaml.safe_load(cloud.calls[-1]['stdin'])['metadata']['name'] == 'b16'


# Errors ----------------------------------------------------------------------


@pytest.mark.parametrize(
  'old, new, message',
  [
    ('v6e-16', 'v2-8', 'GKE does not offer v2'),
    ('v6e-16', 'v6e-17', "'v6e-17' is not a known TPU slice"),
    ('v6e-16', 'v6e-8 --num_slices=2', '--num_slices=2 of v6e:2x4'),
    ('v6e-16', 'v3-32 --num_slices=2', 'not on v3'),
    ('v6e-16', 'v6e-16 --num_slices=0', '--num_slices=0 must be'),
    ('v6e-16', 'v6e-16 --env=A', '--env=A: expected NAME=VALUE'),
    ('b16 ', 'b_16 ', '--name=b_16: expected'),
    ('v6e-16', 'v6e-16 --env==b', '--env==b: expected NAME=VALUE'),
    ('v6e-16', 'v6e-16 --spot --flex_start', '--spot and --flex_start exclude'),
    (
      'v6e-16',
      'v6e-16 --host_network --bucket=b',
      'has no identity of its own',
    ),
    ('gs://bucket', '/data', 'is a directory of one pod'),
    ('gs://bucket', 'runs', 'expected gs://BUCKET/PATH'),
    ('configs/', 'config/', "there is no file 'config/pretrain.py'"),
    (FLAGS, '', '--config is missing'),
  ],
)
def test_wrong_flags_are_refused(cloud, old, new, message):
  assert message in fails(APPLY.replace(old, new, 1))
  assert cloud.calls == []


@pytest.mark.parametrize('command', ['delete', 'logs', 'status'])
def test_a_name_is_never_a_flag(cloud, command):
  """`kubectl delete jobset --all` would end every run."""
  assert '--name=--all' in fails(f'{command} --name=--all')
  assert cloud.calls == []


def test_creating_and_deleting_need_confirmation(cloud, monkeypatch):
  monkeypatch.setattr(sys.stdin, 'isatty', lambda: False, raising=False)
  for line in (
    'create_cluster --cluster=vit',
    'create_nodes --cluster=vit --accelerator=v6e-16',
    'delete_nodes --cluster=vit --accelerator=v6e-16',
    'delete_cluster --cluster=vit',
  ):
    assert 'Pass --yes' in fails(line)
  assert cloud.acts == []


def test_help_teaches():
  for words in ([], ['delete']):
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
