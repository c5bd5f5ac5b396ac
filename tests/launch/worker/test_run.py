"""Guards: launch/worker/run.sh restarts a program exactly when it can help."""

import platform
import re
import signal
import sys

import pytest

from tests.launch.worker.conftest import ROOT, SAVES
from tests.several import wait_for
from vit_jax import config

RUN = ROOT / 'launch' / 'worker' / 'run.sh'

# This program ends with the next word of `codes`: an exit code or a signal.
PROGRAM = """
read -r code rest < "$FOLDER/codes"
[ -z "$rest" ] || echo "$rest" > "$FOLDER/codes"
[[ $code != [A-Z]* ]] || kill -"$code" $$
exit "$code"
"""


@pytest.fixture
def run(tmp_path, begin):
  def start(program, *words, **variables):
    settings = dict(RESTART_PAUSE=0, RUN_DIRECTORY=tmp_path) | variables
    return begin('worker/run.sh', program, 'program', *words, **settings)

  return start


@pytest.mark.parametrize(
  'codes, variables, times, state',
  [
    ('0', {}, 1, 'ended code=0'),
    ('1', {}, 1, 'ended code=1'),
    # Wrong flags or a missing program: a restart would not help.
    ('2', {}, 1, 'ended code=2'),
    ('74', {}, 1, 'ended code=74'),
    # 130 is Ctrl-C, after which nobody wants a restart.
    ('130', {}, 1, 'ended code=130'),
    ('75 0', {}, 2, 'ended code=0'),
    ('76 75 77 0', {}, 4, 'ended code=0'),
    ('KILL ABRT SEGV 0', {}, 4, 'ended code=0'),
    ('76', dict(RESTARTS=2), 3, 'gave_up code=76'),
    # With RESTART_RESET=0, each attempt resets the count of failures.
    ('76 76 76 0', dict(RESTARTS=1, RESTART_RESET=0), 4, 'ended code=0'),
    ('76 76 76 0', dict(RESTARTS=1), 2, 'gave_up code=76'),
    # A hang does not reset the count, however long it lasted.
    ('77', dict(RESTARTS=2, RESTART_RESET=0), 3, 'gave_up code=77'),
  ],
)
def test_which_exit_codes_are_restarted(
  tmp_path, run, codes, variables, times, state
):
  (tmp_path / 'codes').write_text(codes)
  process = run(PROGRAM, 'a b', '--c=(1, 2)', **variables)
  code = process.wait(timeout=20)
  assert (tmp_path / 'calls').read_text() == 'a b --c=(1, 2)\n' * times
  assert (tmp_path / 'state').read_text() == f'{state} attempt={times}\n'
  assert code == int(state.partition('=')[2])
  log = (tmp_path / 'log').read_text()
  assert log.count('run.sh: running attempt=') == times


def test_the_log_of_a_failed_attempt_is_kept(tmp_path, run):
  (tmp_path / 'log').write_text('an earlier run\n')
  (tmp_path / 'codes').write_text('76 KILL 1')
  work = tmp_path / 'work'
  process = run(f'echo hello\n{PROGRAM}', WORKDIR=work, PYTHON=sys.executable)
  assert process.wait(timeout=60) == 1
  files = [*(work / 'launch' / 'logs').iterdir()]
  names = sorted(re.search('attempt_.*', file.name)[0] for file in files)
  assert names == [
    'attempt_1-code_76.log',
    'attempt_2-code_137.log',
    'attempt_3-code_1.log',
  ]
  for file in files:
    text = file.read_text()
    assert text.count('hello') == 1
    assert 'an earlier run' not in text
    assert platform.node() in file.name


def test_the_wait_for_a_hung_worker_does_not_reset_the_count():
  """When one worker is stuck, the others end with 76 a little later.

  Such an attempt must not be long enough to reset their count of failures.
  """
  reset = int(re.search(r'RESTART_RESET:-(\d+)', RUN.read_text())[1])
  assert reset >= 2 * config.default().guard.exit_after


@pytest.mark.parametrize('by_hand', [False, True])
def test_sigterm_is_passed_on_and_ends_the_restarts(tmp_path, run, by_hand):
  process = run(SAVES)
  wait_for((tmp_path / 'ready').exists)
  if by_hand:
    (tmp_path / 'stop_requested').touch()
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=20) == 75
  assert (tmp_path / 'saved').exists()
  word = 'stopped' if by_hand else 'interrupted'
  assert (tmp_path / 'state').read_text() == f'{word} code=75 attempt=1\n'
  assert len((tmp_path / 'calls').read_text().splitlines()) == 1
