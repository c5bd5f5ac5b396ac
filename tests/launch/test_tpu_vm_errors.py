"""Guards: launch/tpu_vm.py refuses wrong flags and asks before it costs money.

A failed command ends the program with a message.
"""

import sys

import pytest

from tests.launch.slice_b16 import (
  B16,
  QUEUE,
  QUOTED,
  TPU,
  call,
  queue_row,
)


def fails(line):
  with pytest.raises(SystemExit) as error:
    call(line)
  return error.value.code


@pytest.mark.parametrize(
  'words, message',
  [
    ('create --name=B_16 --accelerator=v4-32', '--name=B_16: expected at most'),
    (
      'create --name=b16 --accelerator=v4-33',
      "'v4-33' is not a known TPU slice",
    ),
    ('create --name=b16 --accelerator=tpu7x:2x2x1', 'use launch/gke.py'),
    ('create --name=b16 --accelerator=v4-32 --spot --reserved', 'exclude'),
    (
      'create --name=b16 --accelerator=v4-32 --spot --flex_start',
      '--spot and --flex_start exclude each other',
    ),
    ('run --name=b16', '--config is missing'),
    ('run --name=b16 -- --config=configs/pretrain.py', '--workdir is missing'),
    (
      'run --name=b16 -- --config=nowhere.py --workdir=gs://b/r',
      "there is no file 'nowhere.py'. vit_jax comes with",
    ),
    (
      'run --name=b16 -- --config configs/pretrain.py --workdir runs/b16',
      '--workdir=runs/b16: expected gs://BUCKET/PATH',
    ),
    (
      'run --name=b16 --env=A -- --config=configs/pretrain.py --workdir=/n/b',
      '--env=A: expected NAME=VALUE',
    ),
    ('stop --name=b16 -- --force', "stop takes nothing after --: ['--force']"),
  ],
)
def test_wrong_flags_are_refused_before_gcloud_is_called(cloud, words, message):
  assert message in fails(words)
  assert cloud.calls == []


@pytest.mark.parametrize(
  'name, variable',
  [('project', 'CLOUDSDK_CORE_PROJECT'), ('zone', 'CLOUDSDK_COMPUTE_ZONE')],
)
def test_project_and_zone_must_be_known(cloud, monkeypatch, name, variable):
  monkeypatch.delenv(variable)
  assert fails('stop --name=b16') == (
    f'error: --{name} is missing: pass it or set ${variable}.'
  )


def test_a_slice_that_the_zone_lacks_is_not_requested(offered):
  message = fails('create --name=b16 --accelerator=v4-64 --yes')
  assert 'us-central2-b does not offer v4-64. It offers: v3-8, v4-32' in message
  assert 'zones --accelerator=v4-64' in message
  assert len(offered.calls) == 1


def of_type(name, **others):
  return {'tpu': {'nodeSpec': [{'node': {'acceleratorType': name}}]}} | others


@pytest.mark.parametrize(
  'state, others, fine',
  [
    ('ACTIVE', of_type('v4-32'), True),
    ('WAITING_FOR_RESOURCES', {}, True),
    ('SUSPENDED', {}, False),
    ('FAILED', {}, False),
    ('DELETING', {}, False),
    ('ACTIVE', of_type('v3-8'), False),
    # An empty object marks a spot slice.
    ('ACTIVE', of_type('v4-32', spot={}), False),
  ],
)
def test_a_name_in_use(offered, capfd, state, others, fine):
  """A slice that is as asked for is not requested again."""
  offered.answer(QUEUE, [queue_row('b16', state) | others])
  line = 'create --name=b16 --accelerator=v4-32 --yes'
  if fine:
    call(line)
    assert 'b16 is there already' in capfd.readouterr().out
  else:
    assert 'python launch/tpu_vm.py delete --name=b16' in fails(line)
  assert not any('create' in line for line in offered.lines)


def test_creating_and_deleting_need_confirmation(offered, monkeypatch):
  monkeypatch.setattr(sys.stdin, 'isatty', lambda: False, raising=False)
  assert '--yes' in fails('create --name=b16 --accelerator=v4-32')
  assert '--yes' in fails('delete --name=b16')
  monkeypatch.setattr(sys.stdin, 'isatty', lambda: True, raising=False)
  monkeypatch.setattr('builtins.input', lambda _: 'n')
  assert 'nothing was done' in fails('delete --name=b16')
  assert not any('delete' in line for line in offered.lines)
  monkeypatch.setattr('builtins.input', lambda _: 'y')
  offered.things = B16
  call('delete --name=b16')
  assert 'delete' in offered.acts[-1]


def test_a_failure_of_gcloud_ends_the_command(cloud):
  cloud.answer(f'{TPU} tpu-vm ssh', code=255)
  message = fails(f'run --name=b16 -- {QUOTED}')
  assert message.startswith(f'error: exit code 255 of: {TPU} tpu-vm ssh b16')
  assert len(cloud.calls) == 1, 'started though a machine does not answer'
