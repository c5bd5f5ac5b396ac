"""Guards: `watch` replaces a slice on which the run fails repeatedly."""

from tests.launch.slice_b16 import call
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


def failing(failures):
  return say('restarting', 'yes', f' code=76 attempt={failures}').replace(
    ' |', f' failures={failures} |'
  )


def test_a_slice_on_which_the_run_always_fails_is_replaced(active, capfd):
  alive = say('running', 'yes')
  active.answer(
    ASK, alive, *map(failing, range(1, 6)), alive, failing(1), say('stopped')
  )
  assert 'stopped by hand' in fails()
  assert changes(active) == [DELETE, CREATE]
  said = [
    line for line in capfd.readouterr().out.splitlines() if 'failed' in line
  ]
  assert said == [
    '5 attempts in a row failed on this slice (exit codes [76]; logs in'
    ' WORKDIR/launch/logs): requesting a new slice, replacement 1 of at most 3.'
  ]


def test_replace_after_sets_the_patience(active):
  active.answer(ASK, failing(1), failing(2), say('stopped'))
  assert 'stopped by hand' in fails('--replace_after=2')
  assert changes(active) == [DELETE, CREATE]


def test_replacements_are_limited(active):
  """After the limit, the run ends by the count of restarts in run.sh."""
  active.answer(
    ASK,
    *[failing(1), failing(2)] * 3,
    say('gave_up', code=' code=76'),
  )
  message = fails('--replace_after=2 --replacements=2')
  assert 'ended with an error' in message
  assert changes(active) == [*[DELETE, CREATE] * 2, STOP.format('')]


def test_failures_before_the_watch_do_not_count(active):
  """The failures came before it, and it may have run well since then."""
  alive = failing(7).replace('restarting code=76', 'running')
  active.answer(ASK, alive, alive, say('ended', code=' code=0'))
  call(WATCH.format(''))
  assert changes(active) == []
