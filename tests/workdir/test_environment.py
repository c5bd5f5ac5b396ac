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
  (tmp_path / '.gitignore').write_text('site/\n')
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


def _mesh():
  return jax.sharding.Mesh(np.array(jax.devices()[:1]), ('data',))


def test_commit_is_the_commit_of_the_code(checkout):
  head = _git(checkout, 'rev-parse', 'HEAD')
  assert len(head) == 40
  assert installed.commit(checkout) == head
  # An untracked file does not count as a change of the code.
  (checkout / 'notes.txt').write_text('new')
  assert installed.commit(checkout) == head
  (checkout / 'vit_jax/__init__.py').write_text('changed = True\n')
  assert installed.commit(checkout) == head + '+'


def test_code_outside_a_repository_has_no_commit(checkout, tmp_path_factory):
  package = checkout / 'site' / 'packages'
  (package / 'vit_jax').mkdir(parents=True)
  (package / 'vit_jax/__init__.py').write_text('')
  assert installed.commit(package) == ''
  assert installed.commit(tmp_path_factory.mktemp('elsewhere')) == ''
  assert installed.commit(checkout / 'missing') == ''


@pytest.mark.parametrize(('diff', 'mark'), [('', ''), ('changed', '+')])
def test_shipped_code_has_the_commit_of_its_launch_record(tmp_path, diff, mark):
  record = tmp_path / 'launch_record'
  record.mkdir()
  (record / 'commit').write_text('a' * 40 + '\n')
  (record / 'local.diff').write_text(diff)
  assert installed.commit(tmp_path) == 'a' * 40 + mark


def test_each_launch_adds_a_line(tmp_path, monkeypatch):
  assert environment.read(tmp_path) == []
  assert environment.commits(tmp_path) == ()
  for step, commit in enumerate(('one', 'two+', 'one', '')):
    monkeypatch.setattr(installed, 'commit', lambda commit=commit: commit)
    environment.write(tmp_path, step, _mesh())
  lines = environment.read(tmp_path)
  assert [line['step'] for line in lines] == [0, 1, 2, 3]
  assert environment.commits(tmp_path) == ('one', 'two+')
  assert lines[0]['jax'] == jax.__version__
  assert lines[0]['flax'] == flax.__version__
  assert lines[0]['numpy'] == np.__version__
  assert lines[0]['device_kind'] == jax.devices()[0].device_kind
  assert (lines[0]['devices'], lines[0]['processes']) == (1, 1)
  assert [path.name for path in tmp_path.iterdir()] == ['environment.jsonl']


def test_a_missing_directory_does_not_end_the_run(tmp_path):
  assert environment.write(tmp_path / 'missing', 3, _mesh())['step'] == 3


FIRST = '# Python 3.12.1\njax==0.10.2\nnumpy==2.4.6\nold==1.0\n'
SECOND = '# Python 3.12.4\njax==0.12.0\nnumpy==2.4.6\n'


def _launch(workdir, monkeypatch, text, step):
  monkeypatch.setattr(installed, 'freeze', lambda: text)
  return environment.write_requirements(workdir, step)


def test_an_environment_that_changed_is_named_and_the_old_one_kept(
  tmp_path, monkeypatch, caplog
):
  tmp_path /= 'a run'
  tmp_path.mkdir()
  _launch(tmp_path, monkeypatch, FIRST, 0)
  first = (tmp_path / 'requirements.txt').read_text()
  # Without a change, the file keeps the step of the first launch.
  assert _launch(tmp_path, monkeypatch, FIRST, 5) == ''
  assert (tmp_path / 'requirements.txt').read_text() == first
  assert 'environment' not in caplog.text

  changed = 'python 3.12.1 -> 3.12.4, jax 0.10.2 -> 0.12.0, old 1.0 -> none'
  assert _launch(tmp_path, monkeypatch, SECOND, 9) == changed
  assert f'than the one before: {changed}. The run goes on' in caplog.text
  assert shlex.split(caplog.messages[0])[-1] == (
    f'{tmp_path}/requirements_1.txt'
  )
  assert caplog.text.count('WARNING') == 1
  assert (tmp_path / 'requirements_1.txt').read_text() == first
  second = (tmp_path / 'requirements.txt').read_text()
  assert 'jax==0.12.0\n' in second
  assert 'from step 9 on' in second

  # A change back to the first environment keeps both earlier files.
  _launch(tmp_path, monkeypatch, FIRST, 11)
  assert (tmp_path / 'requirements_1.txt').read_text() == first
  assert (tmp_path / 'requirements_2.txt').read_text() == second
  assert {path.name for path in tmp_path.iterdir()} == {
    *('requirements.txt', 'requirements_1.txt', 'requirements_2.txt')
  }


def test_unwritable_requirements_do_not_end_the_run(
  tmp_path, monkeypatch, caplog
):
  assert _launch(tmp_path / 'missing', monkeypatch, FIRST, 0) == ''
  assert 'requirements.txt was not written' in caplog.text
  assert 'make what is missing' in caplog.text
  assert 'Errno' not in caplog.text


def test_a_change_of_devices_is_logged_with_its_consequences(
  tmp_path, monkeypatch
):
  lines = []
  monkeypatch.setattr(
    environment.logging,
    'warning',
    lambda text, *args: lines.append(text % args),
  )
  environment.write(tmp_path, 0, _mesh())
  environment.write(tmp_path, 5, _mesh())
  assert not lines
  devices = np.array(jax.devices()[:8]).reshape(2, 4)
  mesh = jax.sharding.Mesh(devices, ('data', 'fsdp'))
  environment.write(tmp_path, 9, mesh)
  [line] = lines
  assert 'devices 1, now 8' in line
  assert "mesh {'data': 1}, now {'data': 2, 'fsdp': 4}" in line
  assert 'From step 9 on' in line
  assert "dropout_rng='rbg' the masks differ" in line
  environment.write(tmp_path, 12, mesh)
  assert len(lines) == 1
