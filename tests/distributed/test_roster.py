"""The verdict on a run: who is missing, lost, failed, or at the end."""

import pytest

from vit_jax.distributed.roster import MisfitError, Roster


def _roster(num_processes=3, hosts=(), joined=(0, 1, 2)):
  """One whose time starts at 0 s; limits of 100 s to start and 10 s silent."""
  roster = Roster(num_processes, hosts, 100, 10, now=0)
  for i in joined:
    assert _enter(roster, i)
  return roster


def _enter(roster, process_id, **changes):
  return roster.enter(
    0,
    **{
      'protocol': 1,
      'process_id': process_id,
      'num_processes': 3,
      'host': f'host-{process_id}',
      'pid': 10 + process_id,
      'facts': {'command line': ['--a', '--b=1'], 'code': 'f00'},
      **changes,
    },
  )


def _started(now=0):
  roster = _roster()
  roster.start(now)
  assert roster.verdict(now) is None
  return roster


def _all(told):
  return {i: told for i in range(3)}  # noqa: C420


def _set(roster, process_id, state, since, text=''):
  peer = roster.peers[process_id]
  peer.state, peer.since, peer.text = state, since, text


@pytest.mark.parametrize(
  ('joined', 'hosts', 'text'),
  [
    (
      (0,),
      ('a', 'b', 'c'),
      'Processes 1 (b), 2 (c) of 3 did not join within 100 s; joined: 0 on'
      ' host-0.',
    ),
    (
      (0, 2),
      (),
      'Process 1 of 3 did not join within 100 s; joined: 0 on host-0, 2 on'
      ' host-2.',
    ),
    ((0, 1), ('node[1-3]',), "The cluster's hosts: node[1-3]."),
  ],
)
def test_missing(joined, hosts, text):
  roster = _roster(hosts=hosts, joined=joined)
  assert not roster.complete()
  assert roster.verdict(100) is None
  verdict = roster.verdict(100.1)
  assert verdict.keys() == set(joined)
  for told in verdict.values():
    assert text in told['lost']


def test_missing_of_a_whole_pod_are_few_words():
  text = _roster(num_processes=512, joined=()).verdict(101)
  assert text == {}
  roster = Roster(512, (), 100, 10, now=0)
  _enter(roster, 0, num_processes=512)
  assert '15, 16, and 495 more of 512 did' in roster.verdict(101)[0]['lost']


def test_time_in_which_process_0_stood_still_does_not_count():
  roster = _roster(joined=(0,))
  roster.pause(50)
  assert roster.verdict(140) is None
  roster = _started()
  roster.pause(50)
  assert roster.verdict(55) is None
  assert roster.verdict(61) is None  # Settles first.
  assert 'Lost' in roster.verdict(62)[0]['lost']


@pytest.mark.parametrize(
  ('changes', 'text'),
  [
    ({'pid': 99}, 'The same process id was given to two: process 1 on host-1'),
    (
      {'facts': {'command line': ['--a', '--c', '--b=2'], 'code': 'f00'}},
      "command line: process 0 on host-0 (pid 10) has '--b=1', process 1 on"
      " host-1 (pid 11) has '--c --b=2'.",
    ),
    (
      {'facts': {'command line': ['--a', '--b=1'], 'code': 'bad'}},
      "their code: process 0 on host-0 (pid 10) has 'f00', process 1 on host-1"
      " (pid 11) has 'bad'.",
    ),
  ],
)
def test_conflict(changes, text):
  roster = _roster(joined=(0, 1) if 'pid' in changes else (0,))
  assert roster.conflict(0) == ''
  assert _enter(roster, 1, **changes) is None
  assert roster.conflict(4.9) == ''  # Others may still come, to hear of it.
  assert text in roster.conflict(5.1)


def test_process_0_comes_last_and_differs():
  roster = _roster(joined=(1, 2))
  assert _enter(roster, 0, facts={'command line': ['--a'], 'code': 'f00'}) is (
    None
  )
  assert roster.conflict(5.1) == (
    'Processes differ in their command line: process 0 on host-0 (pid 10) has'
    " 'nothing', process 1 on host-1 (pid 11) has '--b=1'. It must be the same."
  )
  roster = _roster(joined=(1, 2))
  assert _enter(roster, 0)
  assert roster.conflict(50) == ''


def test_all_libraries_that_differ_are_named():
  roster = _roster(joined=())
  versions = {'python': '3.12.1', 'jax': '0.12.0', 'numpy': '2.4.6'}
  _enter(roster, 0, facts={'versions': versions})
  other = {'python': '3.12.1', 'numpy': '2.5.5', 'jax': '0.12.0', 'libtpu': '5'}
  assert _enter(roster, 1, facts={'versions': other}) is None
  assert roster.conflict(5.1) == (
    'Processes differ in their versions: process 0 on host-0 (pid 10) has'
    " 'libtpu missing, numpy 2.4.6', process 1 on host-1 (pid 11) has 'libtpu"
    " 5, numpy 2.5.5'. It must be the same. Install the same on all hosts,"
    " from one file: launch/locks has such, and a run's work directory has its"
    ' requirements.txt.'
  )


_MISFITS = [
  ({'num_processes': 4}, 'is 4 to process 1 on host-1 (pid 11), and 3 to'),
  ({'protocol': 2}, 'Another version of this program runs as process 1 on'),
]


def _enter_misfit(roster, process_id, changes, text):
  with pytest.raises(MisfitError) as caught:
    _enter(roster, process_id, **changes)
  assert text in str(caught.value)


@pytest.mark.parametrize(('changes', 'text'), _MISFITS)
def test_stranger_does_not_keep_a_run_from_its_start(changes, text):
  roster = _roster(joined=(0,))
  _enter_misfit(roster, 1, changes, text)
  # Process 2 is missing too: they may all still come.
  assert roster.conflict(50) == ''
  assert _enter(roster, 2)
  assert roster.conflict(4.9) == ''
  assert _enter(roster, 1)
  assert roster.complete()
  assert roster.conflict(200) == ''


@pytest.mark.parametrize(('changes', 'text'), _MISFITS)
def test_who_alone_is_missing_was_started_wrongly(changes, text):
  roster = _roster(joined=(0, 2))
  _enter_misfit(roster, 1, changes, text)
  assert roster.conflict(4.9) == ''
  assert text in roster.conflict(5.1)


def test_stranger_is_named_when_others_never_came():
  roster = _roster(joined=(0,))
  _enter_misfit(roster, 1, *_MISFITS[0])
  assert roster.conflict(101) == ''
  text = roster.verdict(101)[0]['lost']
  assert 'Processes 1, 2 of 3 did not join within 100 s' in text
  assert 'Sent away: The number of processes is 4 to process 1' in text


def test_same_process_may_connect_again():
  roster = _roster(joined=(0, 1))
  assert _enter(roster, 1)
  assert roster.conflict(50) == ''


@pytest.mark.parametrize(
  'changes', [{'process_id': 'x'}, {'facts': 3}, {'a': 1}]
)
def test_nonsense(changes):
  with pytest.raises((TypeError, ValueError)):
    _enter(_roster(joined=(0,)), 1, **changes)
  with pytest.raises(ValueError, match='3'):
    _enter(_roster(joined=(0,)), 3)


def test_lost_together_are_named_together():
  roster = _started()
  roster.peers[1].gone = 'connection closed'
  assert roster.verdict(1) is None
  roster.peers[2].gone = 'connection closed'
  # What it raised because of the loss is no error of its own.
  _set(roster, 0, 'failed', 1.1, 'ValueError: Gloo')
  text = (
    'Lost process 1 on host-1 (pid 11): connection closed; process 2 on host-2'
    ' (pid 12): connection closed.'
  )
  assert roster.verdict(1.6) == _all({'lost': text})


def test_silent():
  roster = _started(now=50)
  for i in (0, 2):
    roster.peers[i].seen = 55
  assert roster.verdict(60) is None
  assert roster.verdict(60.1) is None
  text = 'Lost process 1 on host-1 (pid 11): no sign of life for 10 s.'
  assert roster.verdict(60.7)[2] == {'lost': text}


def test_failed_alone():
  roster = _started()
  _set(roster, 1, 'failed', 5, 'ValueError: bad')
  _set(roster, 2, 'done', 5)
  assert roster.verdict(7.9) is None
  text = 'Process 1 on host-1 (pid 11) ended: ValueError: bad'
  assert roster.verdict(8.1) == {
    0: {'lost': text},
    1: {'own': True},
    2: {'lost': text},
  }


def test_failed_together():
  roster = _started()
  for i in range(3):
    assert roster.verdict(5) is None
    _set(roster, i, 'failed', 5, 'NonFiniteError: NaN')
  assert roster.verdict(5.1) == _all({'own': True})


def test_end():
  roster = _started()
  for i in range(3):
    assert roster.verdict(5) is None
    _set(roster, i, 'done', 5)
  assert roster.verdict(5) == _all({'end': True})
  roster.peers[1].gone = 'connection closed'
  assert roster.verdict(5)[0] == {'end': False}


def test_left_on_purpose():
  roster = _started()
  _set(roster, 1, 'left', 5, 'PreemptedError: saved')
  roster.peers[1].gone = 'connection closed'
  roster.peers[0].seen = roster.peers[2].seen = 14
  assert roster.verdict(15) is None
  assert roster.verdict(15.1)[0] == {
    'lost': 'Process 1 on host-1 (pid 11) ended: PreemptedError: saved.'
    ' 10 s later the run has not ended in process 0 on host-0 (pid 10), process'
    ' 2 on host-2 (pid 12).'
  }
  for i in (0, 2):
    _set(roster, i, 'left', 15, 'PreemptedError: saved')
  assert roster.verdict(16) == _all({'end': False})
