"""Guards: launch/tpu_vm.py watch keeps a run going, and gives up in time."""

import pytest

from tests.launch.slice_b16 import (
  B16,
  NODES,
  PLACE,
  QUEUE,
  RECORD,
  SCP,
  SETUP_RECORDED,
  START,
  TPU,
  call,
  node_row,
  queue_row,
)
from tests.launch.watched import (
  ASK,
  CREATE,
  DELETE,
  STOP,
  WATCH,
  changes,
  fails,
  say,
)
from vit_jax.launch import watch
from vit_jax.launch.workers import Worker


def worker(state, alive=False, code=None):
  return Worker('w', alive=alive, state=state, code=code, text='')


RUNNING = worker('running', alive=True)
ENDED = worker('ended', code=0)


@pytest.mark.parametrize(
  'queue, node, found, action',
  [
    (None, '', None, 'create'),
    ('ACCEPTED', '', None, 'wait'),
    ('WAITING_FOR_RESOURCES', '', None, 'wait'),
    ('PROVISIONING', 'CREATING', None, 'wait'),
    ('SUSPENDING', 'READY', None, 'wait'),
    ('DELETING', '', None, 'wait'),
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
    ('ACTIVE', 'READY', [worker('idle'), worker('idle')], 'start'),
    ('ACTIVE', 'READY', [RUNNING, RUNNING], 'wait'),
    ('ACTIVE', 'READY', [RUNNING, worker('restarting', True, 76)], 'wait'),
    # The run was interrupted by a machine restart, or never started there.
    ('ACTIVE', 'READY', [RUNNING, worker('running')], 'restart'),
    ('ACTIVE', 'READY', [RUNNING, worker('interrupted', code=75)], 'restart'),
    ('ACTIVE', 'READY', [RUNNING, worker('idle')], 'restart'),
    ('ACTIVE', 'READY', [RUNNING, ENDED], 'wait'),
    ('ACTIVE', 'READY', [ENDED, ENDED], 'done'),
    ('ACTIVE', 'READY', [RUNNING, worker('ended', code=1)], 'failed'),
    ('ACTIVE', 'READY', [RUNNING, worker('gave_up', code=76)], 'failed'),
    ('ACTIVE', 'READY', [RUNNING, worker('stopped', code=75)], 'stopped'),
  ],
)
def test_decisions(queue, node, found, action):
  assert watch.decide(queue, node, 'HEALTHY', found, hosts=2) == action


def test_a_watch_creates_recovers_and_finishes(cloud, archive, capfd):
  # The first look at the queue decides whether to ask for confirmation.
  states = [None, None, 'PROVISIONING', 'ACTIVE', 'ACTIVE', 'ACTIVE']
  states += ['SUSPENDING', 'SUSPENDED', 'ACTIVE', 'ACTIVE', 'ACTIVE']
  cloud.answer(QUEUE, *([queue_row('b16', s)] if s else [] for s in states))
  cloud.answer(NODES, [], [], *[[node_row('b16', 'READY')]] * 9)
  cloud.answer(
    ASK,
    say('new'),
    say('running', 'yes'),
    say('running', 'yes'),
    say('new'),
    say('running', 'yes'),
    say('ended', code=' code=0'),
  )
  call(WATCH.format('--delete_when_done'))
  start = [STOP.format(' restart'), SCP, SETUP_RECORDED, RECORD, START]
  assert changes(cloud) == [CREATE, *start, DELETE, CREATE, *start, DELETE]
  out = capfd.readouterr().out
  assert '4 chip-hours an hour' in out
  assert 'the run has finished' in out


def test_a_failed_deletion_at_the_end_is_repeated(active):
  """Otherwise a slice would cost money until somebody looks."""
  active.answer(ASK, say('running', 'yes'), say('ended', code=' code=0'))
  # Seven calls look at the slice, and the eighth whether it is there.
  active.fail(8)
  call(WATCH.format('--delete_when_done'))
  assert changes(active).count(DELETE) == 2
  assert active.things == {}


def test_an_error_of_the_run_stops_the_others_and_deletes_nothing(active):
  active.answer(ASK, say('running', 'yes'), say('ended', code=' code=1'))
  assert 'ended with an error' in fails('--delete_when_done')
  assert changes(active) == [STOP.format('')]


def test_a_run_that_was_stopped_by_hand_stays_stopped(active):
  active.answer(ASK, say('running', 'yes'), say('stopped', code=' code=75'))
  assert 'stopped by hand' in fails()
  assert changes(active) == []


def test_the_watch_gives_up_on_requests_that_always_fail(cloud, archive):
  cloud.answer(QUEUE, [queue_row('b16', 'FAILED')])
  cloud.things = B16
  assert '5 requests in a row failed' in fails()
  assert changes(cloud) == [DELETE, CREATE] * 4


def test_unreachable_new_machines_end_the_watch_and_are_kept(active):
  # ssh prints no worker's line if the firewall blocks it.
  active.answer(ASK, '')
  message = fails()
  assert 'not be reached in 10 polls (not all workers answered)' in message
  assert 'SSH (TCP port 22)' in message
  assert 'need --internal_ip' in message
  assert f'{TPU} tpu-vm ssh b16 {PLACE} --worker=all' in message
  assert changes(active) == []


def test_a_healthy_slice_that_was_reached_before_is_kept(active, capfd):
  """The network here was down, but the run continued."""
  ended = say('ended', code=' code=0')
  active.answer(ASK, say('running', 'yes'), *[''] * 25, ended)
  call(WATCH.format(''))
  assert changes(active) == []
  assert capfd.readouterr().out.count('Is the network here up?') == 2


def test_broken_machines_that_cannot_be_reached_are_replaced(active):
  active.answer(NODES, [node_row('b16', 'READY', 'TIMEOUT')])
  active.answer(ASK, *[''] * 10, say('running', 'yes'), say('stopped'))
  assert 'stopped by hand' in fails()
  assert changes(active) == [DELETE, CREATE]


@pytest.mark.parametrize('state', ['ended code=1', 'stopped'])
def test_the_state_of_an_earlier_run_is_ignored(active, state):
  active.answer(ASK, say(state), say('ended', code=' code=0'))
  call(WATCH.format(''))
  assert changes(active) == [
    STOP.format(' restart'),
    SCP,
    SETUP_RECORDED,
    RECORD,
    START,
  ]


def test_a_failed_setup_is_repeated_and_the_run_not_started(active):
  """The run must not start on a slice without its recorded versions."""
  active.answer(ASK, say('new'))
  active.answer(SETUP_RECORDED.replace("'", ''), code=1)
  assert 'set_up failed 10 times in a row' in fails()
  assert changes(active) == [STOP.format(' restart'), SCP, SETUP_RECORDED] * 10
