"""Guards: the launch programs run the right lines of gcloud and xpk.

`dry_runs.txt` has the commands, each with what its dry run prints.
"""

import contextlib
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests import commands
from tests.launch.conftest import (
  PROGRAMS,
  RUN,
  STATUS,
  TPU,
  call,
  dry,
)
from vit_jax.launch import gke, shell, tpu_vm

_TEXT = pathlib.Path(__file__).with_name('dry_runs.txt').read_text()
CASES = re.findall(r'^\$ (\S+) (.*)\n((?:.+\n)*)', _TEXT, re.MULTILINE)
GKE = 'run --name=b16 --cluster=vit --image=r/i:1 --no_preflight --zone=z'
CREATE = 'create --name=b16 --accelerator=v4-8 --yes --workdir=gs://bucket/b'
WATCH = f'watch --name=b16 --accelerator=v4-8 --yes --poll=0 -- {RUN}'
# What XPK 1.16 runs in the container (its docker_container.py).
CONTAINER = """
_sigterm() (kill -SIGTERM $! 2>/dev/null;);
trap _sigterm SIGTERM;
({}) & PID=$!;
while kill -0 $PID 2>/dev/null; do sleep 0.1; done;
wait $PID;
exit $?
"""


def test_each_command_has_a_dry_run():
  there = {(program, line.split()[0]) for program, line, _ in CASES}
  for program, module in PROGRAMS.items():
    assert {(program[7:], name) for name in module.COMMANDS} <= there


@pytest.mark.parametrize('program, line, printed', CASES)
def test_a_dry_run_prints_what_a_run_runs(
  cloud, capsys, monkeypatch, program, line, printed
):
  assert dry(line, PROGRAMS[f'launch/{program}']) == ''
  assert capsys.readouterr().out == printed
  assert cloud.lines == []
  if line.startswith('watch'):
    return  # It shows all that it may do.
  cloud.slice('ACTIVE')
  monkeypatch.setattr(sys.stdin, 'isatty', lambda: True, raising=False)
  monkeypatch.setattr('builtins.input', lambda _: 'y')
  monkeypatch.setattr(
    shell.tempfile,
    'TemporaryDirectory',
    lambda: contextlib.nullcontext('/tmp/vit_jax_code'),
  )
  assert call(line, PROGRAMS[f'launch/{program}']) == ''
  lines = printed.splitlines()
  assert cloud.lines == [x for x in lines if not x.startswith('#')]


@pytest.mark.parametrize(
  'second', ['alive=yes state=idle', 'alive=no state=new']
)
def test_run_starts_on_all_machines_or_on_none(cloud, second):
  """Otherwise the machines of two launches would wait for each other."""
  lines = f'worker=w-0 alive=no state=idle | x\nworker=w-1 {second} | x\n'
  cloud.answer(STATUS, lines)
  assert 'because of w-1' in call(f'run --name=b16 -- {RUN}')
  assert cloud.acts == []


def test_status(cloud, capsys):
  lines = [
    'worker=w-10 alive=yes state=running attempt=1 | step 7 | x',
    'SSH: a line of gcloud',
    'worker=w-2 alive=no state=ended code=1 attempt=3 | error: bad',
  ]
  cloud.answer(STATUS, '\n'.join(lines) + '\n')
  cloud.slice('ACTIVE')
  call('status --name=b16')
  assert capsys.readouterr().out.splitlines() == [
    *('queued resource: ACTIVE', 'TPU VM: READY HEALTHY', *lines[::-2])
  ]
  # While it waits, no machine is asked.
  cloud.lines.clear()
  cloud.slice('WAITING_FOR_RESOURCES', node='')
  call('status --name=b16')
  assert 'WAITING_FOR_RESOURCES\nTPU VM: none yet' in capsys.readouterr().out
  assert not any('ssh' in line for line in cloud.lines)


@pytest.mark.parametrize(
  'line, message',
  [
    (
      'create --name=B_16 --accelerator=v4-32',
      '--name: B_16: expected',
    ),
    ('create --name=-b --accelerator=v4-32', 'argument --name: -b: expected'),
    ('create --name=b16 --accelerator=v4-33', "'v4-33' is not a known TPU"),
    ('create --name=b16 --accelerator=tpu7x:2x2x1', 'use launch/gke.py'),
    ('create --name=b --accelerator=v4-8 --workdir=x', 'expected gs://BUCKET'),
    ('setup --name=b16 --lock=../x', 'argument --lock: invalid choice'),
    ('setup --name=b16 --workdir=runs/b16', 'expected gs://BUCKET/PATH or an'),
    ('run --name=b16', '--config is missing'),
    ('run --name=b16 -- --config=configs/pretrain.py', '--workdir is missing'),
    ('run --name=b -- --config=no.py --workdir=gs://b/r', "no file 'no.py'"),
    (
      'run --name=b16 -- --config configs/pretrain.py --workdir runs/b16',
      '--workdir=runs/b16: expected gs://BUCKET/PATH',
    ),
    (
      f'run --name=b16 --env=A -- {RUN}',
      '--env: A: expected NAME=',
    ),
    ('stop --name=b16 --sopt', 'stop has no --sopt'),
    ('create --name=b --accelerator=v4-8 --my_typo', 'has no --my_typo'),
    ('stop --name=b16 -- --force', "takes nothing after --: ['--force']"),
    (f'{GKE} --accelerator=v6e-17 -- {RUN}', 'not a known TPU slice'),
    (f'{GKE} --accelerator=v6e-16 -- {RUN.replace("gs:/", "")}', 'no mount'),
    (f'{GKE} --accelerator=v6e-4 --num_slices=2 -- {RUN}', 'several machines'),
  ],
)
def test_wrong_flags_are_refused_before_anything_runs(cloud, line, message):
  assert message in call(line, gke if '--cluster' in line else tpu_vm)
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
  assert [call(f'{line} --yes') for line in lines] == ['', '']
  assert len(cloud.lines) == 2


@pytest.mark.parametrize(
  'line, program',
  [
    *((CREATE, tpu_vm), (WATCH, tpu_vm)),
    (f'{GKE} --accelerator=v6e-16 -- {RUN}'.replace('--no_preflight', ''), gke),
  ],
)
def test_nothing_is_rented_without_a_bucket(cloud, line, program):
  cloud.answer('gcloud storage buckets describe gs://bucket', code=1)
  assert 'does not exist' in call(line, program)
  assert cloud.acts == []


@pytest.mark.parametrize('line', [f'{CREATE} --no_preflight', WATCH])
def test_what_needs_no_check(cloud, line):
  """Neither does a slice that is there already."""
  cloud.slice('ACTIVE', node='')
  call(line)
  assert not any('storage' in line for line in cloud.lines)


def test_a_failure_of_gcloud_ends_the_command(cloud, monkeypatch):
  cloud.answer(STATUS, code=255)
  message = call(f'run --name=b16 -- {RUN}')
  assert message.startswith(f'error: exit code 255 of: {TPU} tpu-vm ssh b16')
  assert len(cloud.lines) == 1, 'started though a machine does not answer'
  monkeypatch.setattr(shell, 'subprocess', subprocess)
  monkeypatch.setenv('PATH', '/nowhere')
  assert 'gcloud is not installed' in call('stop --name=b16')


def test_help_teaches():
  """Each command runs in a new process, which finds no installed package."""
  for words in ([], ['delete']):
    program = (sys.executable, '-S', 'launch/tpu_vm.py')
    result = commands.run_new(*program, *words, '--help')
    assert '--dry_run' in result.stdout
    for name in tpu_vm.COMMANDS if not words else ():
      assert f'\n  {name}' in result.stdout


def test_the_program_saves_when_a_pod_is_deleted(cloud, tmp_path):
  """XPK's shell passes SIGTERM only to the process that it has started."""
  call(f'{GKE} --accelerator=v6e-16 -- {RUN}', gke)
  [line] = cloud.acts
  command = shlex.split(line)[-1].removeprefix('--command=').replace('$$', '$')
  saver = tmp_path / 'saver'
  saver.write_text(
    "trap 'sleep 0.3; touch saved; exit 75' TERM\ntouch ready\n"
    'while true; do sleep 0.05; done'
  )
  line = command.replace('bash launch/worker/pod.sh', f'bash {saver}')
  process = subprocess.Popen(
    ['bash', '-c', CONTAINER.format(line)], cwd=tmp_path
  )
  while not (tmp_path / 'ready').exists():
    assert process.poll() is None
  process.terminate()
  assert process.wait(20) == 75
  assert (tmp_path / 'saved').exists()
