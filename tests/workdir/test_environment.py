"""Guards: each launch records its commit, libraries and devices."""

import shlex
import subprocess

import flax
import jax
import numpy as np
import pytest

from vit_jax.runtime import installed
from vit_jax.workdir import environment


@pytest.fixture
def checkout(tmp_path):
  """Returns a repository with a committed package `vit_jax`."""
  package = tmp_path / 'vit_jax'
  package.mkdir()
  (package / '__init__.py').write_text('')
  _git(tmp_path, 'init', '--quiet')
  _git(tmp_path, 'add', '--all')
  _git(tmp_path, 'commit', '--quiet', '--message=First')
  return tmp_path


def _git(root, *words):
  who = ['-c', 'user.name=A', '-c', 'user.email=a@b', '-c', 'commit.gpgsign=0']
  return subprocess.run(
    ['git', '-C', root, *who, *words],
    check=True,
    capture_output=True,
    text=True,
  ).stdout.strip()


def _mesh(**shape):
  devices = np.array(jax.devices()[: np.prod(list(shape.values()))])
  return jax.sharding.Mesh(devices.reshape(*shape.values()), tuple(shape))


def test_commit_is_the_commit_of_the_code(checkout, tmp_path_factory):
  head = _git(checkout, 'rev-parse', 'HEAD')
  # An untracked file does not count as a change of the code.
  (checkout / 'notes.txt').write_text('new')
  assert installed.commit(checkout) == head
  (checkout / 'vit_jax/__init__.py').write_text('changed = True\n')
  assert installed.commit(checkout) == head + '+'
  # Code that the repository around it does not track has no commit.
  (checkout / 'site/vit_jax').mkdir(parents=True)
  (checkout / 'site/vit_jax/__init__.py').write_text('')
  assert installed.commit(checkout / 'site') == ''
  assert installed.commit(tmp_path_factory.mktemp('elsewhere')) == ''


@pytest.mark.parametrize(('diff', 'mark'), [('', ''), ('changed', '+')])
def test_shipped_code_has_the_commit_of_its_launch_record(tmp_path, diff, mark):
  record = tmp_path / 'launch_record'
  record.mkdir()
  (record / 'commit').write_text('a' * 40 + '\n')
  (record / 'local.diff').write_text(diff)
  assert installed.commit(tmp_path) == 'a' * 40 + mark


def _launch(workdir, monkeypatch, step, *, commit='one', libraries='', **shape):
  monkeypatch.setattr(installed, 'commit', lambda: commit)
  monkeypatch.setattr(installed, 'freeze', lambda: libraries)
  environment.write(workdir, step, _mesh(**(shape or {'data': 1})))


def test_each_launch_adds_a_line(tmp_path, monkeypatch, caplog):
  assert environment.read(tmp_path) == []
  for step, commit in enumerate(('one', 'two+', 'one', '')):
    _launch(tmp_path, monkeypatch, step, commit=commit)
  lines = environment.read(tmp_path)
  assert [line['step'] for line in lines] == [0, 1, 2, 3]
  assert environment.commits(tmp_path) == ('one', 'two+')
  assert lines[0]['jax'] == jax.__version__
  assert lines[0]['flax'] == flax.__version__
  assert (lines[0]['devices'], lines[0]['processes']) == (1, 1)
  assert not caplog.text
  _launch(tmp_path, monkeypatch, 9, data=2, fsdp=4)
  assert 'devices 1, now 8' in caplog.text
  assert "mesh {'data': 1}, now {'data': 2, 'fsdp': 4}" in caplog.text
  with (tmp_path / environment.FILE).open('ab') as file:
    file.write(b'\xff\n5\n')  # Damaged lines are left out.
  assert len(environment.read(tmp_path)) == 5


FIRST = (
  '# Python 3.12.1\njax==0.10.2\nnumpy==2.4.6\nold==1.0\n# me 1, not ...\n'
)
SECOND = '# Python 3.12.4\njax==0.12.0\nnumpy==2.4.6\n# me 1, not from\n'


def test_an_environment_that_changed_is_named_and_the_old_one_kept(
  tmp_path, monkeypatch, caplog
):
  tmp_path /= 'a run'
  tmp_path.mkdir()
  _launch(tmp_path, monkeypatch, 0, libraries=FIRST)
  first = (tmp_path / 'requirements.txt').read_text()
  # Without a change, the file keeps the step of the first launch.
  _launch(tmp_path, monkeypatch, 5, libraries=FIRST)
  assert (tmp_path / 'requirements.txt').read_text() == first
  assert not caplog.text
  _launch(tmp_path, monkeypatch, 9, libraries=SECOND)
  changed = 'Python 3.12.1 -> 3.12.4, jax 0.10.2 -> 0.12.0, old 1.0 -> none'
  assert f'than the one before: {changed}. The run goes on' in caplog.text
  kept = shlex.split(caplog.messages[0])[-1]
  assert kept == f'{tmp_path}/requirements_1.txt'
  second = (tmp_path / 'requirements.txt').read_text()
  assert 'from step 9 on' in second
  # A change back to the first environment keeps both earlier files.
  _launch(tmp_path, monkeypatch, 11, libraries=FIRST)
  assert (tmp_path / 'requirements_1.txt').read_text() == first
  assert (tmp_path / 'requirements_2.txt').read_text() == second


def test_a_directory_that_cannot_be_written_ends_no_run(tmp_path, caplog):
  (tmp_path / 'file').touch()
  environment.write(tmp_path / 'file', 0, _mesh(data=1))
  assert 'is not recorded: ' in caplog.text
