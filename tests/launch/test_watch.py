"""Guards: launch/tpu_vm.py watch keeps a run going, and gives up in time."""

import pytest

from tests.launch.conftest import (
  NODES,
  RUN,
  SCRIPTS,
  SSH,
  STATUS,
  TPU,
  call,
)
from vit_jax.launch import watch
from vit_jax.launch.workers import Worker

WATCH = (
  f'watch --name=b16 --accelerator=v4-8 --spot --yes --poll=0 {{}} -- {RUN}'
)
SET_UP = ['stop', 'scp', 'setup', 'record', 'start']


def worker(state, alive=False, code=None):
  return Worker('w', alive=alive, state=state, code=code, text='')


RUNNING = worker('running', alive=True)
ENDED = worker('ended', code=0)


@pytest.mark.parametrize(
  'queue, node, found, action',
  [
    (None, '', None, 'create'),
    ('WAITING_FOR_RESOURCES', '', None, 'wait'),
    ('PROVISIONING', 'CREATING', None, 'wait'),
    ('SUSPENDING', 'READY', None, 'wait'),
    ('UNKNOWN', '', None, 'wait'),
    ('SUSPENDED', '', None, 'recreate'),
    ('FAILED', '', None, 'recreate'),
    ('ACTIVE', 'PREEMPTED', None, 'recreate'),
    ('ACTIVE', 'TERMINATED', None, 'recreate'),
    ('ACTIVE', 'REPAIRING', None, 'wait'),
    ('ACTIVE', '', None, 'stalled'),
    ('ACTIVE', 'STOPPED', None, 'stalled'),
    ('ACTIVE', 'READY', None, 'unreachable'),
    ('ACTIVE', 'READY', [RUNNING], 'unreachable'),
    ('ACTIVE', 'READY', [worker('new'), worker('new')], 'set_up'),
    ('ACTIVE', 'READY', [RUNNING, worker('new')], 'set_up'),
    ('ACTIVE', 'READY', [RUNNING, RUNNING], 'wait'),
    ('ACTIVE', 'READY', [RUNNING, worker('restarting', True, 76)], 'wait'),
    # The run was interrupted by a machine restart, or never started there.
    ('ACTIVE', 'READY', [RUNNING, worker('running')], 'restart'),
    ('ACTIVE', 'READY', [RUNNING, worker('interrupted', code=75)], 'restart'),
    ('ACTIVE', 'READY', [RUNNING, worker('idle')], 'restart'),
    ('ACTIVE', 'READY', [worker('idle'), worker('idle')], 'restart'),
    ('ACTIVE', 'READY', [RUNNING, ENDED], 'wait'),
    ('ACTIVE', 'READY', [ENDED, ENDED], 'done'),
    ('ACTIVE', 'READY', [RUNNING, worker('ended', code=1)], 'failed'),
    ('ACTIVE', 'READY', [RUNNING, worker('gave_up', code=76)], 'failed'),
    ('ACTIVE', 'READY', [RUNNING, worker('stopped', code=75)], 'stopped'),
  ],
)
def test_decisions(queue, node, found, action):
  assert watch.decide(queue, node, 'HEALTHY', found, hosts=2) == action


@pytest.fixture
def ready(cloud):
  """Provides a slice that is ready."""
  cloud.slice('ACTIVE')
  return cloud


def say(state, alive='no', code=''):
  return f'worker=w-0 alive={alive} state={state}{code} | last line\n'


ALIVE, DONE = say('running', 'yes'), say('ended', code=' code=0')


def acts(cloud):
  """Returns a word for each command that changes something."""
  words = {
    f'{TPU} queued-resources create': 'create',
    f'{TPU} queued-resources delete': 'delete',
    f'{SCRIPTS}/stop.sh': 'stop',
    f'{TPU} tpu-vm scp': 'scp',
    'bash vit_jax_setup.sh': 'setup',
    f'{SCRIPTS}/record.py': 'record',
    f'{SCRIPTS}/start.sh': 'start',
  }
  return [
    word for line in cloud.acts for part, word in words.items() if part in line
  ]


def test_a_watch_creates_recovers_and_finishes(cloud, capsys):
  # The first look decides whether to ask for confirmation.
  cloud.slice(
    *(None, None, 'PROVISIONING', 'ACTIVE', 'ACTIVE', 'SUSPENDED'),
    *['ACTIVE'] * 4,
    None,
  )
  cloud.answer(STATUS, say('new'), ALIVE, say('new'), ALIVE, DONE)
  assert call(WATCH.format('--delete_when_done')) == ''
  assert acts(cloud) == [
    *('create', *SET_UP, 'delete', 'create', *SET_UP, 'delete')
  ]
  assert 'the run has finished' in capsys.readouterr().out


def test_a_failed_deletion_at_the_end_is_repeated(ready):
  """Otherwise a slice would cost money until somebody looks."""
  ready.answer(STATUS, ALIVE, DONE)
  ready.answer(f'{TPU} queued-resources delete', code=1)
  assert 'the slice is left' in call(WATCH.format('--delete_when_done'))
  assert acts(ready) == ['delete'] * 10


def test_a_deletion_that_seemed_to_fail_rents_nothing(ready):
  ready.slice(*['ACTIVE'] * 4, None)
  ready.answer(STATUS, ALIVE, DONE)
  ready.answer(f'{TPU} queued-resources delete', code=1)
  assert call(WATCH.format('--delete_when_done')) == ''
  assert acts(ready) == ['delete']


@pytest.mark.parametrize(
  'state, message, done',
  [
    ('ended code=1', 'ended with an error', ['stop']),
    ('gave_up code=76', 'ended with an error', ['stop']),
    ('stopped code=75', 'stopped by hand', []),
  ],
)
def test_a_run_that_is_over_is_not_started_again(ready, state, message, done):
  ready.answer(STATUS, ALIVE, say(state))
  assert message in call(WATCH.format('--delete_when_done'))
  assert acts(ready) == done


@pytest.mark.parametrize('state', ['ended code=1', 'stopped'])
def test_the_state_of_an_earlier_run_is_ignored(ready, state):
  ready.answer(STATUS, say(state), DONE)
  assert call(WATCH.format('')) == ''
  assert acts(ready) == SET_UP


def test_the_watch_gives_up_on_requests_that_always_fail(cloud):
  cloud.slice('FAILED', node='')
  message = call(WATCH.format(''))
  assert 'actions in a row' in message
  assert 'tpu_vm.py delete --name=b16 ' in message
  assert acts(cloud) == ['delete', 'create'] * 10


def test_flags_that_gcloud_refuses_end_the_watch(cloud):
  cloud.slice(None, node='')
  cloud.answer(f'{TPU} queued-resources create', code=2)
  assert 'exit code 2' in call(WATCH.format('--typo'))
  assert acts(cloud) == ['create']


def test_unreachable_new_machines_end_the_watch_and_are_kept(ready):
  # ssh prints no worker's line if the firewall blocks it.
  ready.answer(STATUS, '')
  assert 'SSH (TCP port 22)' in call(WATCH.format(''))
  assert acts(ready) == []


def test_a_slice_that_was_reached_before_is_kept(ready):
  """The network here was down, but the run continued."""
  ready.answer(STATUS, ALIVE, *[''] * 25, DONE)
  assert call(WATCH.format('')) == ''
  assert acts(ready) == []


def test_a_failed_setup_is_repeated_and_the_run_not_started(ready):
  """The run must not start on a slice without its recorded versions."""
  ready.answer(STATUS, say('new'))
  ready.answer(f'{SSH} --command=tar', code=1)
  assert 'actions in a row' in call(WATCH.format(''))
  assert acts(ready) == SET_UP[:3] * 10


def test_an_unknown_state_rents_nothing(cloud):
  cloud.slice('ACTIVE', 'ACTIVE')
  cloud.answer(NODES, code=1)
  assert 'exit code 1' in call(WATCH.format(''))
  assert acts(cloud) == []
