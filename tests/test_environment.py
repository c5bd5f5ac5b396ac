"""What a launch says that it ran on, and the commit of its code."""

import json
import os
import subprocess

import jax
import numpy as np
import pytest

from vit_jax import environment


@pytest.fixture
def checkout(tmp_path):
  """A repository with a package of our name, committed."""
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


def test_the_commit_is_that_of_the_code(checkout):
  head = _git(checkout, 'rev-parse', 'HEAD')
  assert len(head) == 40
  assert environment.commit(checkout) == head
  # What git does not know is no change of the code.
  (checkout / 'notes.txt').write_text('new')
  assert environment.commit(checkout) == head
  (checkout / 'vit_jax/__init__.py').write_text('changed = True\n')
  assert environment.commit(checkout) == head + '+'


def test_another_repository_in_the_environment_does_not_count(
  checkout, monkeypatch
):
  monkeypatch.setenv('GIT_DIR', '/nowhere')
  assert len(environment.commit(checkout)) == 40


def test_code_that_no_repository_knows_has_no_commit(
  checkout, tmp_path_factory
):
  installed = checkout / 'site' / 'packages'
  (installed / 'vit_jax').mkdir(parents=True)
  (installed / 'vit_jax/__init__.py').write_text('')
  assert environment.commit(installed) == ''
  assert environment.commit(tmp_path_factory.mktemp('elsewhere')) == ''
  assert environment.commit(checkout / 'missing') == ''


def test_without_git_there_is_no_commit(checkout, monkeypatch):
  monkeypatch.setenv('PATH', '')
  assert environment.commit(checkout) == ''


@pytest.mark.parametrize(
  ('slow', 'found'), [('ls-files', ''), ('rev-parse', ''), ('status', 'abc?')]
)
def test_a_git_that_hangs_is_not_waited_for(checkout, monkeypatch, slow, found):
  fake = checkout / 'git'
  fake.write_text(
    '#!/bin/sh\n'
    f'if [ "$3" = {slow} ]; then /bin/sleep 2; fi\n'
    'if [ "$3" = rev-parse ]; then echo abc; fi\n'
  )
  fake.chmod(0o755)
  monkeypatch.setenv('PATH', os.fspath(checkout))
  monkeypatch.setattr(environment, '_PATIENCE', 1.0)
  assert environment.commit(checkout) == found


@pytest.mark.parametrize(('diff', 'mark'), [('', ''), ('changed', '+')])
def test_shipped_code_says_its_commit(tmp_path, diff, mark):
  record = tmp_path / 'launch_record'
  record.mkdir()
  (record / 'commit').write_text('a' * 40 + '\n')
  (record / 'local.diff').write_text(diff)
  assert environment.commit(tmp_path) == 'a' * 40 + mark


def test_versions_are_of_what_is_installed(monkeypatch):
  found = environment.versions()
  assert found['jax'] == jax.__version__
  assert found['numpy'] == np.__version__
  assert {'flax', 'optax', 'orbax-checkpoint', 'grain'} <= set(found)
  monkeypatch.setattr(environment, '_LIBRARIES', ('jax', 'no-such-library'))
  assert environment.versions() == {'jax': jax.__version__}


def test_each_launch_adds_a_line(tmp_path, monkeypatch):
  assert environment.read(tmp_path) == []
  assert environment.commits(tmp_path) == ()
  for step, commit in enumerate(('one', 'two+', 'one', '')):
    monkeypatch.setattr(environment, 'commit', lambda commit=commit: commit)
    environment.write(tmp_path, step, _mesh())
  lines = environment.read(tmp_path)
  assert [line['step'] for line in lines] == [0, 1, 2, 3]
  assert environment.commits(tmp_path) == ('one', 'two+')
  assert lines[0]['jax'] == jax.__version__
  assert lines[0]['device_kind'] == jax.devices()[0].device_kind
  assert (lines[0]['devices'], lines[0]['processes']) == (1, 1)
  assert [path.name for path in tmp_path.iterdir()] == ['environment.jsonl']


def test_a_damaged_line_is_dropped(tmp_path):
  path = tmp_path / 'environment.jsonl'
  path.write_text('{"commit": "one"}\n5\n{"commit": "tw')
  assert environment.commits(tmp_path) == ('one',)
  environment.write(tmp_path, 7, _mesh())
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert [line.get('step') for line in lines] == [None, 7]


def test_a_directory_that_is_not_there_does_not_end_the_run(tmp_path):
  assert environment.write(tmp_path / 'missing', 3, _mesh())['step'] == 3
