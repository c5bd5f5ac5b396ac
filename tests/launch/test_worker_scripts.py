"""What else runs on the machines: set-up, start, stop, status, logs."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ROOT / 'launch' / 'worker'

# Of systemd, what the scripts use: one unit, active while `active` exists.
STAND_INS = {
  'sudo': 'exec "$@"',
  'systemctl': """
    case "$1" in
      is-active) test -e "$HOME/active" ;;
      stop)
        rm "$HOME/active"
        echo 'stopped code=75' > "$HOME/vit_jax_home/run/state"
        ;;
      *) exit 2 ;;
    esac
    echo "$@" >> "$HOME/systemctl_calls"
  """,
  'systemd-run': """
    settings=()
    for word in "$@"; do
      case "$word" in
        --setenv=*) settings+=("${word#--setenv=}") ;;
        --working-directory=*) cd "${word#*=}" ;;
        --*) echo "$word" >> "$HOME/unit" ;;
        *) break ;;
      esac
      shift
    done
    exec env -i PATH="$PATH" "${settings[@]}" "$@"
  """,
  'uv': """
    echo "$@" >> "$HOME/uv_calls"
    if [ "$1" = venv ]; then
      mkdir -p "${@: -1}/bin"
      printf '#!/bin/sh\nexec "$PYTHON" "$@"\n' > "${@: -1}/bin/python"
      chmod +x "${@: -1}/bin/python"
    fi
  """,
  'curl': 'exit 9',
}
# Stands in for the program; prints what it was started with.
PYTHON = """#!/bin/bash
echo "in $PWD: $*, A=$A"
exit "$CODE"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """A machine of its own: HOME, and stand-ins first on PATH."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  for name, text in STAND_INS.items():
    (folder / name).write_text(f'#!/bin/bash\nset -eu\n{text}\n')
    (folder / name).chmod(0o755)
  monkeypatch.setenv('PATH', f'{folder}{os.pathsep}{os.environ["PATH"]}')
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('HOSTNAME', 't1v-n-1-w-3')
  monkeypatch.setenv('PYTHON', sys.executable)
  monkeypatch.delenv('VIT_JAX_HOME', raising=False)
  return tmp_path


@pytest.fixture
def ready(machine):
  """After set-up, with a stand-in for Python."""
  home = machine / 'vit_jax_home'
  (home / 'venv' / 'bin').mkdir(parents=True)
  (home / 'run').mkdir()
  (home / 'code' / 'launch').mkdir(parents=True)
  (home / 'code' / 'launch' / 'worker').symlink_to(SCRIPTS)
  python = home / 'venv' / 'bin' / 'python'
  python.write_text(PYTHON)
  python.chmod(0o755)
  return machine


def run(script, *words, code=0, **variables):
  result = subprocess.run(
    ['bash', str(SCRIPTS / script), *words],
    env=os.environ | variables,
    capture_output=True,
    text=True,
    check=False,
    timeout=30,
  )
  assert result.returncode == code, result.stdout + result.stderr
  return result.stdout + result.stderr


def test_setup_and_record_of_what_was_packed(machine):
  """The archive of pack.sh, unpacked and installed, and noted for a run."""
  source = machine / 'source'
  shutil.copytree(ROOT / 'launch', source / 'launch')
  (source / 'setup.py').write_text('new\n')
  for line in (
    'git init --quiet',
    'git add launch',
    'git -c user.name=a -c user.email=a@b commit --quiet --message=one',
    f'bash launch/pack.sh {machine}',
  ):
    subprocess.run(line.split(), cwd=source, check=True)
  (machine / 'code.tar.gz').rename(machine / 'vit_jax_code.tar.gz')
  out = run('setup.sh', PYTHON_VERSION='3.13')
  assert ': ready, Python ' in out
  code = machine / 'vit_jax_home' / 'code'
  assert (machine / 'uv_calls').read_text().splitlines() == [
    f'venv --quiet --python 3.13 {machine}/vit_jax_home/venv',
    f'pip install --quiet --python {machine}/vit_jax_home/venv/bin/python'
    f' --editable {code}[tpu,gcs]',
  ]
  for file in ('setup.py', 'launch/worker/run.sh'):
    assert (code / file).read_bytes() == (source / file).read_bytes()

  # Again, with other code: nothing of the old is left.
  (code / 'old').touch()
  run('setup.sh')
  assert not (code / 'old').exists()
  assert (machine / 'uv_calls').read_text().count('venv --quiet') == 1

  command = ['python', '-m', 'vit_jax.main', '--config.image_size=(8, 8)']
  written = subprocess.run(
    [sys.executable, str(code / 'launch' / 'worker' / 'record.py')]
    + [str(machine / 'workdir'), *command],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  (folder,) = (machine / 'workdir' / 'launch').iterdir()
  assert written == f'code recorded in {folder}\n'
  assert {file.name for file in folder.iterdir()} == {
    *('command', 'commit', 'left_out', 'local.diff', 'packed')
  }
  commit = subprocess.run(
    ['git', 'rev-parse', 'HEAD'],
    cwd=source,
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  assert (folder / 'commit').read_text() == commit
  assert folder.name.endswith('Z-' + commit[:12])
  assert (folder / 'command').read_text() == (
    "python -m vit_jax.main '--config.image_size=(8, 8)'\n"
  )


def test_setup_refuses(machine):
  assert 'error: no ' in run('setup.sh', code=1)
  (machine / 'active').touch()
  assert 'a run is alive on t1v-n-1-w-3' in run('setup.sh', code=1)
  assert not (machine / 'uv_calls').exists()


def test_setup_that_cannot_get_uv_fails(machine):
  (machine / 'bin' / 'uv').unlink()
  (machine / 'vit_jax_home' / 'code').mkdir(parents=True)
  path = f'{machine / "bin"}:/usr/bin:/bin'
  run('setup.sh', code=9, PATH=path)


@pytest.mark.parametrize('code', [0, 1])
def test_start_runs_the_program_as_a_service(ready, code):
  home = ready / 'vit_jax_home'
  (home / 'run' / 'state').write_text('ended code=1 attempt=1\n')
  (home / 'run' / 'stop_requested').touch()
  run(
    *('start.sh', f'CODE={code}', 'A=b c', 'RESTARTS=3', '--'),
    *('--config=x.py', '--config.image_size=(8, 8)'),
    code=code,
  )
  unit = (ready / 'unit').read_text().split()
  # It may be started again after a failure, and may save when it ends.
  assert '--collect' in unit
  assert '--unit=vit_jax' in unit
  assert f'--uid={os.getuid()}' in unit
  assert {'--property=KillMode=mixed', '--property=TimeoutStopSec=600'} <= {
    *unit
  }
  # The kernel's kill of the program must not be the end of run.sh.
  assert '--property=OOMPolicy=continue' in unit
  log = (home / 'run' / 'log').read_text()
  assert (
    f'in {home}/code: -m vit_jax.main --config=x.py'
    ' --config.image_size=(8, 8), A=b c\n'
  ) in log
  state = (home / 'run' / 'state').read_text()
  assert state == f'ended code={code} attempt=1\n'
  assert not (home / 'run' / 'stop_requested').exists()


def test_start_refuses(machine):
  assert 'is not set up' in run('start.sh', '--', '--config=x', code=1)
  assert 'usage' in run('start.sh', 'A=b', code=2)
  assert 'usage' in run('start.sh', 'A=b', '--', code=2)


def test_only_one_run_a_machine(ready):
  (ready / 'active').touch()
  assert 'is alive on t1v-n-1-w-3' in run('start.sh', '--', '-c', code=1)
  assert not (ready / 'unit').exists()


@pytest.mark.parametrize('words', [[], ['restart']])
def test_stop(ready, words):
  assert 'w-3: no run' in run('stop.sh', *words)
  (ready / 'active').touch()
  assert 'w-3: stopped code=75' in run('stop.sh', *words)
  # So that run.sh can tell a hand from a machine that goes down.
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
  (home / 'run' / 'state').unlink()
  (home / 'venv' / 'bin' / 'python').unlink()
  assert 'state=new | ' in run('status.sh')


def test_logs_name_the_worker(ready):
  (ready / 'vit_jax_home' / 'run' / 'log').write_text('one\ntwo\nthree\n')
  assert run('logs.sh', '2') == '3: two\n3: three\n'


def test_logs_without_a_log(ready):
  assert run('logs.sh') == '3: no log: no run was started here yet.\n'


def test_logs_follow(ready):
  log = ready / 'vit_jax_home' / 'run' / 'log'
  log.write_text('one\n')
  process = subprocess.Popen(
    ['bash', str(SCRIPTS / 'logs.sh')],
    env=os.environ | {'FOLLOW': 'yes'},
    stdout=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  try:
    assert process.stdout.readline() == '3: one\n'
    with log.open('a') as file:
      file.write('two\n')
    assert process.stdout.readline() == '3: two\n'
  finally:
    os.killpg(process.pid, 9)
    process.wait()
    process.stdout.close()
