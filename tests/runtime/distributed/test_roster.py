"""Guards: the verdict on missing, lost, failed and finished processes."""

import pytest

from vit_jax.runtime.distributed import messages
from vit_jax.runtime.distributed.roster import (
  Limits,
  MismatchError,
  Peer,
  Roster,
)

IDENTITY = {'command line': ['--a', '--b=1'], 'code': 'f00'}


def _roster(num_processes=3, hosts=(), joined=(1, 2), identity=IDENTITY):
  """Returns a roster at time 0 s, with limits of 100 s (start), 10 s (lost)."""
  first = Peer(0, 'host-0', 10, identity)
  roster = Roster(first, num_processes, hosts, Limits(100, 10), now=0)
  for i in joined:
    assert _enter(roster, i)
  return roster


def _enter(roster, process_id, now=0, **changes):
  return roster.enter(
    now,
    {
      'protocol': 2,
      'process_id': process_id,
      'num_processes': 3,
      'host': f'host-{process_id}',
      'pid': 10 + process_id,
      'nonce': f'nonce-{process_id}',
      'identity': IDENTITY,
      **changes,
    },
  )


def _refusal(roster, process_id, now=0, **changes):
  with pytest.raises(MismatchError) as caught:
    _enter(roster, process_id, now, **changes)
  return str(caught.value)


def _started(now=0):
  roster = _roster()
  roster.start(now)
  assert roster.verdict(now) is None
  return roster


def _all(kind, **fields):
  return {i: (kind, fields) for i in range(3)}  # noqa: C420


def _fail(roster, process_id, since, text, code=1, grace=3):
  peer = roster.peers[process_id]
  peer.state, peer.since = 'failed', since
  peer.error = {'code': code, 'text': text, 'grace': grace}


@pytest.mark.parametrize(
  ('joined', 'hosts', 'text'),
  [
    (
      (),
      ('a', 'b', 'c'),
      'Processes 1 (b), 2 (c) of 3 did not join within 100 s; joined: 0 on'
      ' host-0.',
    ),
    (
      (2,),
      (),
      'Process 1 of 3 did not join within 100 s; joined: 0 on host-0, 2 on'
      ' host-2.',
    ),
    ((1,), ('node[1-3]',), "The cluster's hosts: node[1-3]."),
  ],
)
def test_missing(joined, hosts, text):
  roster = _roster(hosts=hosts, joined=joined)
  assert not roster.complete()
  assert roster.verdict(100) is None
  verdict = roster.verdict(100.1)
  assert verdict.keys() == {0, *joined}
  for kind, fields in verdict.values():
    assert kind == 'lost'
    assert text in fields['text']


def test_many_missing_processes_give_a_short_message():
  _, fields = _roster(num_processes=512, joined=()).verdict(101)[0]
  assert '16, and 495 more of 512 did not join' in fields['text']


def test_time_while_process_0_was_suspended_does_not_count():
  roster = _roster(joined=())
  roster.pause(50)
  assert roster.verdict(140) is None
  roster = _started()
  roster.pause(50)
  assert roster.verdict(55) is None
  assert roster.verdict(61) is None  # SETTLE passes before the verdict.
  assert roster.verdict(62)[0][0] == 'lost'


_MISMATCHES = [
  ({'protocol': 1}, 'Another version of this program runs as process 1 on'),
  (
    {'num_processes': 4},
    'expects 3 processes, and process 1 on host-1 (pid 11) expects 4.',
  ),
  (
    {'identity': {**IDENTITY, 'command line': ['--a', '--c', '--b=2']}},
    "command line: process 0 on host-0 (pid 10) has '--b=1', process 1 on"
    " host-1 (pid 11) has '--c --b=2'.",
  ),
  (
    {'identity': {**IDENTITY, 'code': 'bad'}},
    "their code: process 0 on host-0 (pid 10) has 'f00', process 1 on host-1"
    " (pid 11) has 'bad'.",
  ),
]


@pytest.mark.parametrize(('changes', 'text'), _MISMATCHES)
def test_a_mismatched_process_is_ignored_if_the_right_one_joins(changes, text):
  roster = _roster(joined=())
  assert text in _refusal(roster, 1, **changes)
  # Process 2 is missing, too, so the verdict must wait for both.
  assert roster.verdict(99) is None
  assert _enter(roster, 2)
  assert roster.verdict(11) is None
  assert _enter(roster, 1, now=11)
  assert roster.complete()
  assert roster.verdict(99) is None


@pytest.mark.parametrize(('changes', 'text'), _MISMATCHES)
def test_a_mismatch_is_reported_if_only_that_process_is_missing(changes, text):
  roster = _roster(joined=(2,))
  refusal = _refusal(roster, 1, now=20, **changes)
  assert text in refusal
  assert roster.verdict(32) is None
  assert roster.verdict(32.1) == {
    0: ('refused', {'text': refusal}),
    2: ('refused', {'text': refusal}),
  }


def test_the_same_id_twice():
  roster = _roster(joined=(1,))
  twin = {'host': 'host-9', 'pid': 99, 'nonce': 'twin'}
  text = (
    'Two processes have the same process id: process 1 on host-1 (pid 11) and'
    ' process 1 on host-9 (pid 99).'
  )
  assert text in _refusal(roster, 1, **twin)
  assert roster.peers[1].pid == 11
  assert roster.verdict(12) is None
  kind, fields = roster.verdict(12.1)[0]
  assert kind == 'refused'
  assert text in fields['text']
  # If all processes come, the twin was a stranger.
  assert _enter(roster, 2)
  assert roster.complete()
  # Two processes without a nonce are not the same process.
  roster = _roster(joined=())
  assert _enter(roster, 1, nonce='')
  assert 'the same process id' in _refusal(roster, 1, nonce='')


def test_a_mismatched_process_does_not_explain_another_missing_one():
  roster = _roster(joined=())
  _refusal(roster, 1, identity={})
  _enter(roster, 1)
  assert roster.verdict(99) is None  # Process 2 may be late.


def test_a_limited_number_of_mismatches_is_remembered():
  roster = _roster(joined=())
  for i in range(100):
    _refusal(roster, 1, now=i / 100, nonce=f'{i}', identity={'code': f'{i}'})
  assert roster.verdict(101)[0][1]['text'].count('Processes differ') == 3


def test_all_libraries_that_differ_are_named():
  versions = {'python': '3.12.1', 'jax': '0.12.0', 'numpy': '2.4.6'}
  roster = _roster(joined=(), identity={'versions': versions})
  other = {'python': '3.12.1', 'numpy': '2.5.5', 'jax': '0.12.0', 'libtpu': '5'}
  assert _refusal(roster, 1, identity={'versions': other}) == (
    'Processes differ in their versions: process 0 on host-0 (pid 10) has'
    " 'libtpu missing, numpy 2.4.6', process 1 on host-1 (pid 11) has 'libtpu"
    " 5, numpy 2.5.5'. It must be the same. Install the same on all hosts from"
    " one file, such as one in launch/locks or the requirements.txt in a run's"
    ' work directory.'
  )


def test_differences_are_short_for_any_input():
  for fact in ('x' * 200_000, {'x' * 200_000: ''}, ['x' * 200_000], {}, []):
    text = _refusal(_roster(joined=()), 1, identity={**IDENTITY, 'code': fact})
    assert 'Processes differ in their code' in text
    assert len(text) < 1500


def test_a_stranger_is_named_if_others_never_join():
  roster = _roster(joined=())
  _refusal(roster, 1, num_processes=4)
  text = roster.verdict(101)[0][1]['text']
  assert 'Processes 1, 2 of 3 did not join within 100 s' in text
  assert 'Sent away: Process 0 expects 3 processes, and process 1' in text


def test_same_process_may_connect_again():
  roster = _roster(joined=(1,))
  assert _enter(roster, 1)
  assert roster.verdict(50) is None


def test_a_process_id_that_is_too_large_is_invalid():
  with pytest.raises(messages.InvalidError):
    _enter(_roster(joined=()), 3)


def test_a_process_may_leave_before_the_start():
  roster = _roster()
  roster.peers[1].gone = 'connection closed'
  assert [peer.process_id for peer in roster.leave()] == [1]
  assert not roster.complete()
  assert _enter(roster, 1, nonce='another')


def test_processes_lost_together_are_named_together():
  roster = _started()
  roster.peers[1].gone = 'connection closed'
  assert roster.verdict(1) is None
  roster.peers[2].gone = 'connection closed'
  # The loss takes precedence over an error that it caused.
  _fail(roster, 0, -9, 'ValueError: Gloo')
  text = (
    'Lost process 1 on host-1 (pid 11): connection closed; process 2 on host-2'
    ' (pid 12): connection closed.'
  )
  assert roster.verdict(1.6) == _all('lost', text=text)


def test_silent():
  roster = _started(now=50)
  for i in (0, 2):
    roster.peers[i].seen = 55
  assert roster.verdict(60) is None
  assert roster.verdict(60.1) is None
  text = 'Lost process 1 on host-1 (pid 11): no sign of life for 10 s.'
  assert roster.verdict(60.7)[2] == ('lost', {'text': text})


def test_a_heartbeat_just_in_time():
  roster = _started()
  for i in (0, 2):
    roster.peers[i].seen = 50
  assert roster.verdict(10.1) is None
  roster.peers[1].seen = 10.2
  assert roster.verdict(10.7) is None
  # SETTLE starts again at the next loss.
  roster.peers[1].gone = 'connection closed'
  assert roster.verdict(11) is None


def test_failed_alone():
  roster = _started()
  _fail(roster, 1, 5, 'ValueError: bad', code=3)
  roster.peers[2].state = 'done'
  assert roster.verdict(7.9) is None
  text = 'Process 1 on host-1 (pid 11) ended: ValueError: bad'
  ended = 'ended', {'code': 3, 'text': text}
  assert roster.verdict(8.1) == {0: ended, 1: ('own', {}), 2: ended}


def test_failed_together():
  roster = _started()
  for i in range(3):
    assert roster.verdict(5) is None
    _fail(roster, i, 5, 'NonFiniteError: NaN')
  assert roster.verdict(5.1) == _all('own')


def test_end():
  roster = _started()
  for i in range(3):
    assert roster.verdict(5) is None
    roster.peers[i].state = 'done'
  assert roster.verdict(5) == _all('end', orderly=True)
  roster.peers[1].gone = 'connection closed'
  assert roster.verdict(5)[0] == ('end', {'orderly': False})


def test_a_process_that_left_on_purpose_is_not_lost():
  roster = _started()
  _fail(roster, 1, 5, 'PreemptedError: saved', code=75, grace=10)
  roster.peers[1].gone = 'connection closed'
  roster.peers[0].seen = roster.peers[2].seen = 14
  assert roster.verdict(14.9) is None
  text = (
    'Process 1 on host-1 (pid 11) ended: PreemptedError: saved. 10 s later the'
    ' run has not ended in process 0 on host-0 (pid 10), process 2 on host-2'
    ' (pid 12).'
  )
  assert roster.verdict(15.1)[0] == ('ended', {'code': 75, 'text': text})
  for i in (0, 2):
    _fail(roster, i, 15, 'PreemptedError: saved', code=75, grace=10)
  assert roster.verdict(16) == _all('own')


def test_a_permanent_error_takes_precedence_over_a_preemption():
  roster = _started()
  _fail(roster, 1, 5, 'PreemptedError: saved', code=75, grace=10)
  _fail(roster, 2, 6, 'ValueError: bad', code=1)
  assert roster.verdict(9.1)[0][1]['code'] == 1


def test_all_stop_at_once():
  roster = _started()
  _fail(roster, 2, 5, 'SIGTERM: nothing was trained.', code=75, grace=0)
  text = 'Process 2 on host-2 (pid 12) ended: SIGTERM: nothing was trained.'
  ended = 'ended', {'code': 75, 'text': text}
  assert roster.verdict(5) == {0: ended, 1: ended, 2: ('own', {})}
