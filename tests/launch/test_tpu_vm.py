"""Guards: every command of launch/tpu_vm.py runs the right gcloud lines."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.launch.conftest import (
  PLACE,
  QUEUE,
  ROOT,
  RUN,
  SCRIPTS,
  SSH,
  TPU,
  call,
  dry,
)
from vit_jax.launch import tpu_vm

CREATE = f'{TPU} queued-resources create b16 {PLACE} --node-id=b16'
IMAGE = '--runtime-version=tpu-ubuntu2204-base'
STATUS = f'{TPU} tpu-vm ssh b16 {PLACE} --worker=all --quiet --command=if [ -f'
STATUS += f' {SCRIPTS}/status.sh'
PROGRAM = f"{RUN} '--config.image_size=(8, 8)'"
START = [
  f'{SSH} '.replace('all', '0')
  + shlex.quote(
    f'--command=vit_jax_home/venv/bin/python {SCRIPTS}/record.py'
    f' gs://bucket/runs/b16 python -m vit_jax.main {PROGRAM}'
  ),
  f'{SSH} '
  + shlex.quote(
    f'--command=bash {SCRIPTS}/start.sh WORKDIR=gs://bucket/runs/b16'
    f' RESTARTS=20 -- {PROGRAM}'
  ),
]


@pytest.mark.parametrize(
  'flags, line',
  [
    ('v4:2x2x4', f'{CREATE} --accelerator-type=v4-32 {IMAGE}'),
    (
      'v3-8 --spot --runtime_version=own --internal_ip --network=n'
      ' --service_account=a@b',
      f'{CREATE} --accelerator-type=v3-8 --runtime-version=own --internal-ips'
      ' --service-account=a@b --spot --network=n',
    ),
    (
      'v4-8 --provisioning-model=flex-start --max-run-duration=1d',
      f'{CREATE} --accelerator-type=v4-8 {IMAGE}'.replace(' c', ' alpha c', 1)
      + ' --provisioning-model=flex-start --max-run-duration=1d',
    ),
  ],
)
def test_create(cloud, capsys, flags, line):
  assert call(f'create --name=b16 --accelerator={flags} --yes') == ''
  assert cloud.lines == [line]
  assert 'chip-hours an hour' in capsys.readouterr().out


@pytest.mark.parametrize(
  'flags, words',
  [
    ('', 'LOCK=tpu'),
    (
      '--lock=none --workdir=gs://b/runs/b16',
      'LOCK=none WORKDIR=gs://b/runs/b16',
    ),
  ],
)
def test_setup(cloud, flags, words):
  assert call(f'setup --name=b16 {flags}') == ''
  pack, scp, setup = cloud.lines
  folder = pack.removeprefix('bash launch/pack.sh ')
  assert scp == (
    f'{TPU} tpu-vm scp {folder}/code.tar.gz b16:vit_jax_code.tar.gz {PLACE}'
    ' --worker=all --quiet'
  )
  assert setup == (
    f"{SSH} '--command=tar -xzOf vit_jax_code.tar.gz launch/worker/setup.sh >"
    f" vit_jax_setup.sh && env {words} bash vit_jax_setup.sh'"
  )


def test_run_records_the_code_and_starts(cloud):
  assert call(f'run --name=b16 -- {PROGRAM}') == ''
  assert 'status.sh' in cloud.lines[0]
  assert cloud.lines[1:] == START


@pytest.mark.parametrize(
  'second', ['alive=yes state=idle', 'alive=no state=new']
)
def test_run_starts_on_all_machines_or_on_none(cloud, second):
  """Otherwise the machines of two launches would wait for each other."""
  lines = f'worker=w-0 alive=no state=idle | x\nworker=w-1 {second} | x\n'
  cloud.answer(STATUS, lines)
  assert 'because of w-1' in call(f'run --name=b16 -- {RUN}')
  assert cloud.acts == []


@pytest.mark.parametrize(
  'flags, worker, rest',
  [
    ('', '0', 'FOLLOW=no bash {}/logs.sh 50'),
    ('--follow --worker=all --lines=7', 'all', 'FOLLOW=yes bash {}/logs.sh 7'),
  ],
)
def test_logs(cloud, flags, worker, rest):
  call(f'logs --name=b16 {flags}')
  assert cloud.lines == [
    f'{TPU} tpu-vm ssh b16 {PLACE} --worker={worker} --quiet'
    f" '--command={rest.format(SCRIPTS)}'"
  ]


def test_status(cloud, capsys):
  cloud.slice('ACTIVE')
  cloud.answer(
    STATUS,
    'worker=w-10 alive=yes state=running attempt=1 | step 7 | x\n'
    'SSH: a line of gcloud\n'
    'worker=w-2 alive=no state=ended code=1 attempt=3 | error: bad\n',
  )
  call('status --name=b16')
  assert capsys.readouterr().out.splitlines() == [
    'queued resource: ACTIVE',
    'TPU VM: READY HEALTHY',
    'worker=w-2 alive=no state=ended code=1 attempt=3 | error: bad',
    'worker=w-10 alive=yes state=running attempt=1 | step 7 | x',
  ]


def test_status_while_waiting_asks_no_machine(cloud, capsys):
  cloud.slice('WAITING_FOR_RESOURCES', node='')
  call('status --name=b16')
  assert 'WAITING_FOR_RESOURCES\nTPU VM: none yet' in capsys.readouterr().out
  assert not any('ssh' in line for line in cloud.lines)


def test_stop_and_delete(cloud):
  call('stop --name=b16')
  call('delete --name=b16 --yes')
  assert cloud.lines == [
    f"{SSH} '--command=if [ -f {SCRIPTS}/stop.sh ]; then bash"
    f" {SCRIPTS}/stop.sh; fi'",
    f'{TPU} queued-resources delete b16 {PLACE} --force --quiet',
  ]


@pytest.mark.parametrize(
  'line, message',
  [
    ('create --name=B_16 --accelerator=v4-32', '--name=B_16: expected'),
    ('create --name=-b --accelerator=v4-32', '--name=-b: expected'),
    ('create --name=b16 --accelerator=v4-33', "'v4-33' is not a known TPU"),
    ('create --name=b16 --accelerator=tpu7x:2x2x1', 'use launch/gke.py'),
    ('create --name=b --accelerator=v4-8 --workdir=x', 'expected gs://BUCKET'),
    ('setup --name=b16 --lock=../x', 'one of cpu, cuda, oldest, test, tpu, or'),
    ('setup --name=b16 --workdir=runs/b16', 'expected gs://BUCKET/PATH or an'),
    ('run --name=b16', '--config is missing'),
    ('run --name=b16 -- --config=configs/pretrain.py', '--workdir is missing'),
    ('run --name=b -- --config=no.py --workdir=gs://b/r', "no file 'no.py'"),
    (
      'run --name=b16 -- --config configs/pretrain.py --workdir runs/b16',
      '--workdir=runs/b16: expected gs://BUCKET/PATH',
    ),
    (f'run --name=b16 --env=A -- {RUN}', '--env=A: expected NAME=VALUE'),
    ('stop --name=b16 --sopt', 'stop has no --sopt'),
    ('create --name=b --accelerator=v4-8 --my_typo', 'has no --my_typo'),
    ('stop --name=b16 -- --force', "takes nothing after --: ['--force']"),
  ],
)
def test_wrong_flags_are_refused_before_gcloud_is_called(cloud, line, message):
  assert message in call(line)
  assert cloud.lines == []


@pytest.mark.parametrize(
  'name, variable',
  [('project', 'CLOUDSDK_CORE_PROJECT'), ('zone', 'CLOUDSDK_COMPUTE_ZONE')],
)
def test_project_and_zone_must_be_known(cloud, monkeypatch, name, variable):
  monkeypatch.delenv(variable)
  assert f'--{name} is missing' in call('stop --name=b16')


def test_creating_and_deleting_need_confirmation(cloud, monkeypatch):
  lines = ('create --name=b16 --accelerator=v4-32', 'delete --name=b16')
  monkeypatch.setattr(sys.stdin, 'isatty', lambda: False, raising=False)
  assert all('--yes' in call(line) for line in lines)
  monkeypatch.setattr(sys.stdin, 'isatty', lambda: True, raising=False)
  monkeypatch.setattr('builtins.input', lambda _: 'n')
  assert all('nothing was done' in call(line) for line in lines)
  assert cloud.lines == []
  monkeypatch.setattr('builtins.input', lambda _: 'y')
  assert [call(line) for line in lines] == ['', '']
  assert len(cloud.lines) == 2


def test_a_failure_of_gcloud_ends_the_command(cloud):
  cloud.answer(STATUS, code=255)
  message = call(f'run --name=b16 -- {RUN}')
  assert message.startswith(f'error: exit code 255 of: {TPU} tpu-vm ssh b16')
  assert len(cloud.lines) == 1, 'started though a machine does not answer'


def test_a_program_that_is_not_installed(monkeypatch):
  monkeypatch.setenv('PATH', '/nowhere')
  line = 'stop --name=b16 --project=p --zone=z'
  assert 'gcloud is not installed' in call(line)


def test_a_dry_run_prints_what_a_run_runs(cloud, capsys):
  line = 'create --name=b16 --accelerator=v4-32 --workdir=gs://bucket/b --spot'
  assert dry(line) == ''
  printed = re.findall('^gcloud.*', capsys.readouterr().out, re.MULTILINE)
  assert cloud.lines == []
  call(f'{line} --yes')
  # A dry run does not know which roles the account has.
  assert [x for x in cloud.lines if ' roles ' not in x] == [
    x for x in printed if ' roles ' not in x
  ]


def test_a_dry_run_of_watch_shows_each_action(cloud, capsys):
  watch = 'watch --name=b16 --accelerator=v4-32 --delete_when_done'
  assert dry(f'{watch} -- {PROGRAM}') == ''
  assert cloud.lines == []
  out = capsys.readouterr().out
  for line in (CREATE, *START, f'{QUEUE} {PLACE}', 'bash launch/pack.sh'):
    assert line in out
  assert 'env LOCK=tpu WORKDIR=gs://bucket/runs/b16 bash' in out
  dry(f'{watch} --new_versions --lock=cpu -- {PROGRAM}')
  assert 'env LOCK=cpu bash' in capsys.readouterr().out


def test_help_teaches():
  """Each command runs in a new process, which finds no installed package."""
  for words in ([], ['delete']):
    result = subprocess.run(
      [sys.executable, '-S', 'launch/tpu_vm.py', *words, '--help'],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    assert result.returncode == 0, result.stderr
    assert '--dry_run' in result.stdout
    for name in tpu_vm.COMMANDS if not words else ():
      assert f'\n  {name}' in result.stdout
