"""Guards: setup.sh installs exactly the right versions, or fails."""

import pathlib
import platform
import shutil
import subprocess
import sys

import pytest

from tests import commands
from tests.launch.worker.conftest import ROOT, run

PYTHON = platform.python_version()
PYTHON_VERSION = PYTHON.rpartition('.')[0]
# The results of `installs` for a lock file and for the versions of a run.
LOCKED = [
  'pip sync HOME/code/launch/locks/tpu.txt',
  'pip install --no-deps --editable HOME/code',
]
RECORDED = ['pip sync HOME/requirements.txt', LOCKED[1]]


@pytest.fixture
def shipped(machine, monkeypatch):
  """Provides a machine with the code's archive; sets the tests' Python."""
  source = machine / 'source'
  (source / 'launch' / 'worker').mkdir(parents=True)
  (source / 'launch' / 'locks').mkdir()
  (source / 'launch' / 'locks' / 'tpu.txt').write_text('a==1\n')
  archive = machine / 'vit_jax_code.tar.gz'
  subprocess.run(['tar', '-czf', archive, '-C', source, '.'], check=True)
  monkeypatch.setenv('PYTHON_VERSION', PYTHON_VERSION)
  return machine


def installs(machine):
  """Returns the commands that uv got, with `HOME` for the machine's folder."""
  text = (machine / 'uv_calls').read_text()
  lines = text.replace(f'{machine}/vit_jax_home', 'HOME').splitlines()
  return [
    line.replace(' --quiet --python HOME/venv/bin/python', '') for line in lines
  ]


def test_setup_and_record_of_a_packed_archive(machine):
  """setup.sh installs the archive of pack.sh, and record.py records it."""
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
  out = run('setup.sh', PYTHON_VERSION=PYTHON_VERSION)
  assert ': ready, Python ' in out
  assert 'the versions of launch/locks/tpu.txt' in out
  code = machine / 'vit_jax_home' / 'code'
  assert installs(machine) == [
    f'venv --quiet --clear --python {PYTHON_VERSION} HOME/venv',
    *LOCKED,
  ]
  for file in ('setup.py', 'launch/worker/run.sh'):
    assert (code / file).read_bytes() == (source / file).read_bytes()

  # A second set-up removes all old files.
  (code / 'old').touch()
  run('setup.sh', PYTHON_VERSION=PYTHON_VERSION)
  assert not (code / 'old').exists()
  assert (machine / 'uv_calls').read_text().count('venv --quiet') == 1

  written = commands.run_new(
    *(sys.executable, code / 'launch/worker/record.py', machine / 'workdir'),
    *('python', '--config.image_size=(8, 8)'),
  ).stdout
  (folder,) = (machine / 'workdir' / 'launch').iterdir()
  assert written == f'code recorded in {folder}\n'
  assert {file.name for file in folder.iterdir()} == {
    *('command', 'commit', 'left_out', 'local.diff', 'packed')
  }
  text = (folder / 'command').read_text()
  assert text == "python '--config.image_size=(8, 8)'\n"


def test_setup_without_a_lock_installs_the_newest(shipped):
  out = run('setup.sh', LOCK='none')
  assert installs(shipped)[1:] == ['pip install --editable HOME/code[tpu,gcs]']
  assert 'the newest versions' in out


def test_setup_refuses_a_lock_that_was_not_shipped(shipped):
  assert 'has no launch/locks/x.txt' in run('setup.sh', LOCK='x', code=1)
  assert 'EXTRAS=hf is for LOCK=none' in run('setup.sh', EXTRAS='hf', code=1)
  assert not (shipped / 'uv_calls').exists()


def record(machine, *lines, python=PYTHON):
  """Makes a run's work directory with the versions that the run recorded."""
  folder = machine / 'run'
  folder.mkdir()
  text = '\n'.join([f'# Python {python}', *lines]) + '\n'
  (folder / 'requirements.txt').write_text(text)
  return str(folder)


def test_setup_installs_exactly_what_the_run_has_recorded(shipped):
  mine = '# mine 0.3, not from an index'
  folder = record(shipped, 'libtpu==0.0.1', 'b==2', mine)
  out = run('setup.sh', WORKDIR=folder)
  assert installs(shipped)[1:] == [*LOCKED, *RECORDED]
  written = (shipped / 'vit_jax_home' / 'requirements.txt').read_text()
  assert written.splitlines()[1:] == ['libtpu==0.0.1', 'b==2', mine]
  assert f'exactly the versions of {folder}/requirements.txt' in out
  assert 'warning: not installed: mine 0.3, not from an index' in out
  assert 'state=idle' in run('status.sh')


def test_setup_installs_the_recorded_python(shipped):
  folder = record(shipped, 'libtpu==0.0.1', python='3.12.99')
  run('setup.sh', WORKDIR=folder)
  assert installs(shipped)[1:] == [
    *LOCKED,
    'venv --quiet --clear --python 3.12.99 HOME/venv',
    *RECORDED,
  ]


@pytest.mark.parametrize('problem', ['cannot be read', 'cannot be installed'])
def test_unavailable_recorded_versions_end_the_setup(shipped, problem):
  """The run must not resume with other versions unless the user asks for it."""
  run('setup.sh')
  folder = record(shipped, 'libtpu==0.0.1')
  file = pathlib.Path(folder) / 'requirements.txt'
  if problem == 'cannot be read':
    file.unlink()
    file.mkdir()
  else:
    # uv fails in this way if a release was withdrawn.
    uv = shipped / 'bin' / 'uv'
    uv.write_text(
      uv.read_text() + '[ "${@: -1}" != "$HOME/vit_jax_home/requirements.txt" ]'
    )
  out = run('setup.sh', WORKDIR=folder, code=1)
  assert problem in out
  assert 'To go on with the versions of the lock file' in out
  assert '--new_versions' in out
  # No run starts in the incomplete environment.
  (shipped / 'vit_jax_home' / 'run').mkdir()
  (shipped / 'vit_jax_home' / 'run' / 'state').write_text('interrupted')
  assert 'state=new' in run('status.sh')
  assert 'is not set up' in run('start.sh', '--', '--config=x', code=1)


def test_setup_that_cannot_get_uv_fails(shipped):
  (shipped / 'bin' / 'uv').unlink()
  path = f'{shipped / "bin"}:/usr/bin:/bin'
  run('setup.sh', code=9, PATH=path)
