"""Guards: the sweep command's results, messages and exit codes."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TABLE = """\
| study        | run      | held-out | test          | runs |
| ---          | ---      | ---:     | ---:          | ---: |
| digits:01234 | rate=0.1 | 75.00    | 90.00 ± 10.00 | 3    |
| digits:56789 | rate=0.1 | 75.00    | 90.00 ± 10.00 | 3    |
"""


def _begin(path, *words, module='tests.sweep.fake_main', **variables):
  environment = {'JAX_PLATFORMS': 'cpu', 'FAKE_SECONDS': '0'} | variables
  return subprocess.Popen(
    [sys.executable, '-m', module, f'--workdir={path}', *words],
    cwd=ROOT,
    env=os.environ | environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _run(*args, **variables):
  process = _begin(*args, **variables)
  output, error = process.communicate(timeout=60)
  return process.returncode, output, error


SWEEP = ('--sweep=configs/sweeps/digits.py', '--parallel=2', '--retries=0')


@pytest.mark.gate
def test_the_protocol(tmp_path):
  code, output, error = _run(tmp_path, *SWEEP)
  assert (code, error) == (0, '')
  lines = output.removesuffix(TABLE).splitlines()
  assert len(lines) == 28  # 14 runs that start and finish.
  assert lines[-1].endswith('[14 of 14 done, 0 running]')
  csv = (tmp_path / 'results.csv').read_text()
  assert csv.count('\n') == 15
  # A second launch prints only the table.
  code, again, error = _run(tmp_path, *SWEEP)
  assert (code, again, error) == (0, TABLE, '')
  assert (tmp_path / 'results.csv').read_text() == csv
  # The table's own program prints the same; other settings are refused.
  module = 'vit_jax.sweep.table'
  assert _run(tmp_path, module=module) == (0, TABLE, '')
  code, _, error = _run(tmp_path, *SWEEP, '--set=total_steps=9')
  assert code == 1
  assert error.startswith(f'error: {tmp_path} holds the run digits:01234/')


@pytest.mark.gate
def test_a_failed_run_is_named(tmp_path):
  bad = 'digits:56789/rate=0.3'
  code, output, error = _run(tmp_path, *SWEEP, FAKE_FAILURES=bad)
  assert code == 1
  log = f'{tmp_path}/logs/{bad}.log'
  assert f'{bad} ended with exit code 1, see {log}; given up' in output
  assert error.splitlines() == [
    'error: not all runs finished:',
    f'{bad} failed, see {log}',
    f'digits:56789: nothing was chosen, as {bad} failed',
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
def test_a_closed_terminal_stops_the_sweep_and_its_runs(tmp_path):
  process = _begin(tmp_path, *SWEEP, FAKE_SECONDS='30')
  end = time.monotonic() + 30
  while len(list(tmp_path.rglob('*.starts'))) < 2:
    assert time.monotonic() < end
    time.sleep(0.05)
  other, _, error = _run(tmp_path, *SWEEP)
  assert other == 1
  assert error == (
    f'error: {tmp_path} is in use by another launcher (process {process.pid}'
    f' on {os.uname().nodename}). Wait for it, end it, or choose another'
    ' --workdir.\n'
  )
  process.send_signal(signal.SIGHUP)
  output, error = process.communicate(timeout=20)
  assert process.returncode == 75
  assert error.startswith('ended: stopped with 0 runs finished.')
  assert output.count('ended with exit code 75') == 2
