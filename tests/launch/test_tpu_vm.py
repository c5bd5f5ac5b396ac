"""Guards: every command of launch/tpu_vm.py runs the right gcloud lines.

--dry_run prints the same lines and runs nothing.
"""

import pathlib
import re
import subprocess
import sys

import pytest

from tests.launch.slice_b16 import (
  B16,
  NODES,
  PLACE,
  QUEUE,
  QUOTAS,
  QUOTED,
  RECORD,
  SCRIPTS,
  SETUP,
  SSH,
  START,
  TPU,
  TYPES,
  call,
  node_row,
  queue_row,
)
from vit_jax.launch import tpu_vm

ROOT = pathlib.Path(__file__).parents[2]
STATUS_LINES = (
  'worker=t1v-n-1-w-10 alive=yes state=running attempt=1 | step 7 | x\n'
  'SSH: a line of gcloud\n'
  'worker=t1v-n-1-w-2 alive=no state=ended code=1 attempt=3 | error: bad\n'
)


# The command lines -----------------------------------------------------------


def test_zones(cloud, capfd):
  cloud.answer(f'{TPU} locations list', 'us-b\neurope-a\n')
  cloud.answer(TYPES, 'v2-8\n', 'v2-8\nv3-512\n')
  call('zones --accelerator=v3:16x16')
  assert capfd.readouterr().out == 'us-b\n'
  assert cloud.lines == [
    f"{TPU} locations list --project=my-project '--format=value(locationId)'",
    f"{TYPES} --zone=europe-a --project=my-project '--format=value(type)'",
    f"{TYPES} --zone=us-b --project=my-project '--format=value(type)'",
  ]


def test_create(offered, capfd):
  offered.answer(
    QUOTAS,
    [
      {
        'quotaDisplayName': 'TPU v4 cores',
        'dimensionsInfos': [
          {
            'applicableLocations': ['us-central2-b'],
            'details': {'value': '512'},
          },
          {'applicableLocations': ['us-z'], 'details': {'value': '7777'}},
        ],
      }
    ],
  )
  call(
    'create --name=b16 --accelerator=v4:2x2x4 --yes --price_per_chip_hour=1.5'
  )
  assert offered.lines == [
    f"{TYPES} {PLACE} '--format=value(type)'",
    f'{QUOTAS} --service=tpu.googleapis.com --project=my-project --format=json',
    f'{QUEUE} {PLACE} --format=json',
    f'{TPU} queued-resources create b16 {PLACE} --node-id=b16'
    ' --accelerator-type=v4-32 --runtime-version=tpu-ubuntu2204-base',
  ]
  out = capfd.readouterr().out
  assert re.search(r'quota in us-central2-b: +512 TPU v4 cores', out)
  assert '7777' not in out
  assert 'other WAITING_FOR_RESOURCES' in out
  assert '16 chip-hours an hour and 384 a day' in out
  assert '24.00 an hour, 576.00 a day' in out


def test_create_with_all_flags(offered):
  call(
    'create --name=b16 --accelerator=v3-8 --yes --spot --valid_until=6h'
    ' --runtime_version=own --internal_ip --network=n --subnetwork=s'
    ' --service_account=a@b --zone=z --project=q'
  )
  assert offered.lines[-1] == (
    f'{TPU} queued-resources create b16 --zone=z --project=q --node-id=b16'
    ' --accelerator-type=v3-8 --runtime-version=own --spot'
    ' --valid-until-duration=6h --internal-ips --network=n --subnetwork=s'
    ' --service-account=a@b'
  )
  call('create --name=b --accelerator=v3-8 --yes --reserved')
  assert offered.lines[-1].endswith(' --reserved')


def test_setup_with_another_lock_or_the_versions_of_a_run(cloud, archive):
  call('setup --name=b16 --lock=none --workdir=gs://bucket/runs/b16')
  assert cloud.lines[-1] == SETUP.replace(
    'LOCK=tpu', 'LOCK=none WORKDIR=gs://bucket/runs/b16'
  )


@pytest.mark.parametrize(
  'flag, problem',
  [
    ('--lock=../x', 'Choose one of cpu, cuda, oldest, test, tpu, or none.'),
    ('--workdir=runs/b16', 'expected gs://BUCKET/PATH or an absolute path'),
  ],
)
def test_setup_refuses_wrong_locks_and_work_directories(
  cloud, archive, flag, problem
):
  with pytest.raises(SystemExit) as error:
    call(f'setup --name=b16 {flag}')
  assert problem in error.value.code
  assert cloud.calls == []


def test_run_records_the_code_and_starts(cloud):
  call(f'run --name=b16 -- {QUOTED}')
  assert 'status.sh' in cloud.lines[0]
  assert cloud.lines[1:] == [RECORD, START]


@pytest.mark.parametrize(
  'second', ['alive=yes state=idle', 'alive=no state=new']
)
def test_run_starts_on_all_machines_or_on_none(cloud, second):
  """Otherwise the machines of two launches would wait for each other."""
  cloud.answer(
    f'{TPU} tpu-vm ssh',
    f'worker=w-0 alive=no state=idle | x\nworker=w-1 {second} | x\n',
  )
  with pytest.raises(SystemExit) as error:
    call(f'run --name=b16 -- {QUOTED}')
  assert 'nothing was started, because of w-1' in error.value.code
  assert not any('start.sh' in line for line in cloud.lines)


@pytest.mark.parametrize(
  'flags, worker, rest',
  [
    ('', '0', 'FOLLOW=no bash {}/logs.sh 50'),
    ('--worker=all --lines=7', 'all', 'FOLLOW=no bash {}/logs.sh 7'),
    ('--follow --worker=3', '3', 'FOLLOW=yes bash {}/logs.sh 50'),
  ],
)
def test_logs(cloud, flags, worker, rest):
  call(f'logs --name=b16 {flags}')
  assert cloud.lines == [
    f'{TPU} tpu-vm ssh b16 {PLACE} --worker={worker} --quiet'
    f" '--command={rest.format(SCRIPTS)}'"
  ]


def test_status(cloud, capfd):
  cloud.answer(QUEUE, [queue_row('b16', 'ACTIVE')])
  cloud.answer(NODES, [node_row('other', 'CREATING'), node_row('b16', 'READY')])
  cloud.answer(f'{TPU} tpu-vm ssh', STATUS_LINES)
  call('status --name=b16')
  assert capfd.readouterr().out.splitlines() == [
    'queued resource: ACTIVE',
    'TPU VM: READY HEALTHY',
    'worker=t1v-n-1-w-2 alive=no state=ended code=1 attempt=3 | error: bad',
    'worker=t1v-n-1-w-10 alive=yes state=running attempt=1 | step 7 | x',
  ]
  assert cloud.lines[:2] == [
    f'{QUEUE} {PLACE} --format=json',
    f'{NODES} {PLACE} --format=json',
  ]
  assert f'bash {SCRIPTS}/status.sh' in cloud.lines[2]


def test_status_while_waiting_asks_no_machine(cloud, capfd):
  cloud.answer(QUEUE, [queue_row('b16', 'WAITING_FOR_RESOURCES')])
  call('status --name=b16')
  assert 'WAITING_FOR_RESOURCES\nTPU VM: none yet' in capfd.readouterr().out
  call('status --name=c16')
  assert 'none of that name' in capfd.readouterr().out
  assert not any('ssh' in line for line in cloud.lines)


def test_stop(cloud):
  call('stop --name=b16')
  assert cloud.lines == [
    f"{SSH} '--command=if [ -f {SCRIPTS}/stop.sh ]; then bash"
    f" {SCRIPTS}/stop.sh; fi'"
  ]


def test_delete(cloud):
  cloud.things = B16
  call('delete --name=b16 --yes')
  assert cloud.acts == [
    f'{TPU} queued-resources delete b16 {PLACE} --force --quiet'
  ]


# Dry runs --------------------------------------------------------------------


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
