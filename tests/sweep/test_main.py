"""Guards: the sweep command's results, messages and exit codes."""

import os
import signal

import pytest

from tests import several

TABLE = """\
| study        | run      | held-out | test          | runs |
| ---          | ---      | ---:     | ---:          | ---: |
| digits:01234 | rate=0.1 | 75.00    | 90.00 ± 10.00 | 3    |
| digits:56789 | rate=0.1 | 75.00    | 90.00 ± 10.00 | 3    |
"""


@pytest.fixture
def run(tmp_path, command):
  """Runs a command on `tmp_path`; returns its exit code and texts."""

  def run(*words, module='tests.sweep.fake_main', **variables):
    variables = {'FAKE_SECONDS': '0'} | variables
    done = command(module, f'--workdir={tmp_path}', *words, **variables)
    return done.returncode, done.stdout, done.stderr

  return run


SWEEP = ('--sweep=configs/sweeps/digits.py', '--parallel=2')


@pytest.mark.gate
def test_the_protocol(run, tmp_path):
  code, output, error = run(*SWEEP)
  assert (code, error) == (0, '')
  lines = output.removesuffix(TABLE).splitlines()
  assert len(lines) == 28  # 14 runs that start and finish.
  assert lines[-1].endswith('[14 of 14 done, 0 running]')
  assert (tmp_path / 'results.md').read_text() == TABLE
  # A second launch prints only the table.
  code, again, error = run(*SWEEP)
  assert (code, again, error) == (0, TABLE, '')
  # The table's own program prints the same; other settings are refused.
  module = 'vit_jax.sweep.table'
  assert run(module=module) == (0, TABLE, '')
  code, _, error = run(*SWEEP, '--set=total_steps=9')
  assert code == 1
  assert error.startswith(f'error: {tmp_path} holds the run digits:01234/')


@pytest.mark.gate
def test_a_failed_run_is_named(run, tmp_path):
  bad = 'digits:56789/rate=0.3'
  code, output, error = run(*SWEEP, FAKE_FAILURES=bad)
  assert code == 1
  log = f'{tmp_path}/logs/{bad}.log'
  assert f'{bad} ended with exit code 1, see {log}; given up' in output
  assert error.splitlines() == [
    'error: not all runs finished:',
    f'{bad} failed, see {log}',
    '3 runs wait for others and were not started.',
  ]
  # The other study is complete.
  cells = [
    line.replace(' ', '').split('|')[1:-1] for line in output.split('\n')
  ]
  assert cells[-3:-1] == [
    ['digits:01234', 'rate=0.1', '75.00', '90.00±10.00', '3'],
    ['digits:56789', 'notchosenyet', '', '', '3of4candidates'],
  ]


@pytest.mark.gate
def test_a_closed_terminal_stops_the_sweep_and_its_runs(
  run, tmp_path, tmp_path_factory, command
):
  process = command.start(
    *(tmp_path_factory.mktemp('output'), 'tests.sweep.fake_main'),
    *(f'--workdir={tmp_path}', *SWEEP),
    FAKE_SECONDS='30',
  )
  several.wait_for(lambda: len(list(tmp_path.rglob('*.starts'))) == 2, 120)
  other, _, error = run(*SWEEP)
  assert other == 1
  who = f'another launcher, process {process.pid} on {os.uname().nodename}'
  assert error.startswith(f'error: {tmp_path} is in use by {who}')
  process.send(signal.SIGHUP)
  assert process.wait(20) == 75
  assert 'ended: stopped with 0 runs finished.' in process.err
  assert process.out.count('ended with exit code 75') == 2
