"""Guards: launch/worker/run.sh restarts a program exactly when it can help."""

import pathlib
import platform
import re
import signal
import subprocess
import sys

import pytest

from tests.launch.worker.conftest import wait_for
from vit_jax import config

RUN = pathlib.Path(__file__).parents[3] / 'launch' / 'worker' / 'run.sh'

# This program ends with the next word of `codes`: an exit code or a signal.
PROGRAM = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
with (folder / 'attempts').open('a') as file:
  print(sys.argv[2:], file=file)
code, *rest = (folder / 'codes').read_text().split()
if rest:
  (folder / 'codes').write_text(' '.join(rest))
if code.startswith('SIG'):
  os.kill(os.getpid(), getattr(signal, code))
sys.exit(int(code))
"""

# Like a run, this program saves on SIGTERM.
SAVER = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(*_):
  time.sleep(0.3)
  (folder / 'saved').touch()
  sys.exit(75)
signal.signal(signal.SIGTERM, save)
(folder / 'attempts').open('a').write('one\\n')
time.sleep(60)
"""


@pytest.fixture
def begin(tmp_path, processes):
  """Returns a function that starts run.sh."""

  def start(program, *arguments, **variables):
    settings = dict(RESTART_PAUSE=0, RUN_DIRECTORY=tmp_path) | variables
    processes.append(
      subprocess.Popen(
        [
          'env',
          *(f'{key}={value}' for key, value in settings.items()),
          *('bash', str(RUN), sys.executable, '-I', '-S', '-c', program),
          *(str(tmp_path), *arguments),
        ],
        start_new_session=True,
      )
    )
    return processes[-1]

  return start


def attempts(folder):
  file = folder / 'attempts'
  return file.read_text().splitlines() if file.exists() else []


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
    ('SIGKILL SIGABRT SIGSEGV 0', {}, 4, 'ended code=0'),
    ('76', dict(RESTARTS=2), 3, 'gave_up code=76'),
    # With RESTART_RESET=0, each attempt resets the count of failures.
    ('76 76 76 0', dict(RESTARTS=1, RESTART_RESET=0), 4, 'ended code=0'),
    ('76 76 76 0', dict(RESTARTS=1), 2, 'gave_up code=76'),
    # A hang does not reset the count, however long it lasted.
    ('77', dict(RESTARTS=2, RESTART_RESET=0), 3, 'gave_up code=77'),
  ],
)
def test_which_exit_codes_are_restarted(
  tmp_path, begin, codes, variables, times, state
):
  (tmp_path / 'codes').write_text(codes)
  process = begin(PROGRAM, 'a b', '--c=(1, 2)', **variables)
  code = process.wait(timeout=20)
  assert attempts(tmp_path) == ["['a b', '--c=(1, 2)']"] * times
  assert (tmp_path / 'state').read_text() == f'{state} attempt={times}\n'
  assert code == int(state.partition('=')[2])
  log = (tmp_path / 'log').read_text()
  assert log.count('run.sh: running attempt=') == times


def test_the_log_of_a_failed_attempt_is_kept(tmp_path, begin):
  (tmp_path / 'log').write_text('an earlier run\n')
  (tmp_path / 'codes').write_text('76 SIGKILL 1')
  work = tmp_path / 'work'
  process = begin(
    'print("hello", flush=True)\n' + PROGRAM,
    WORKDIR=work,
    PYTHON=sys.executable,
  )
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
def test_sigterm_is_passed_on_and_ends_the_restarts(tmp_path, begin, by_hand):
  process = begin(SAVER)
  wait_for(lambda: attempts(tmp_path))
  if by_hand:
    (tmp_path / 'stop_requested').touch()
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=20) == 75
  assert (tmp_path / 'saved').exists()
  word = 'stopped' if by_hand else 'interrupted'
  assert (tmp_path / 'state').read_text() == f'{word} code=75 attempt=1\n'
  assert attempts(tmp_path) == ['one']
