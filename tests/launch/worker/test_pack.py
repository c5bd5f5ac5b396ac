"""Guards: launch/pack.sh ships exactly the local code and records it."""

import os
import pathlib
import shutil
import tarfile

import pytest

from tests import commands
from tests.package.conftest import git

PACK = pathlib.Path(__file__).parents[3] / 'launch' / 'pack.sh'


@pytest.fixture
def empty(tmp_path, monkeypatch):
  for name in [name for name in os.environ if name.startswith('GIT_')]:
    monkeypatch.delenv(name)
  monkeypatch.setenv('GIT_CONFIG_GLOBAL', os.devnull)
  monkeypatch.setenv('GIT_CEILING_DIRECTORIES', str(tmp_path))
  folder = tmp_path / 'my code'
  (folder / 'launch').mkdir(parents=True)
  shutil.copy(PACK, folder / 'launch')
  (folder / 'setup.py').touch()
  return folder


@pytest.fixture
def repository(empty):
  """Makes a repository with changed, deleted, new and ignored files."""
  git(empty, 'init', '--quiet')
  (empty / 'kept.py').write_text('kept\n')
  (empty / 'changed.py').write_text('before\n')
  (empty / 'deleted.py').write_text('deleted\n')
  (empty / '.gitignore').write_text('*.ckpt\nruns/\n')
  git(empty, 'add', '--all')
  git(empty, 'commit', '--quiet', '--message=one')
  (empty / 'changed.py').write_text('after\n')
  (empty / 'deleted.py').unlink()
  (empty / 'new file.py').write_text('new\n')
  (empty / 'new.bin').write_bytes(bytes(range(256)))
  (empty / 'weights.ckpt').write_text('ignored\n')
  (empty / 'runs').mkdir()
  (empty / 'runs' / 'log').write_text('ignored\n')
  return empty


def pack(folder, code=0, **variables):
  out = folder.parent / 'out'
  result = commands.run_new(
    *('bash', folder / 'launch' / 'pack.sh', out),
    **dict(cwd=folder.parent, code=code, **variables),
  )
  text = result.stdout + result.stderr
  unpacked = folder.parent / 'unpacked'
  if code == 0:
    with tarfile.open(out / 'code.tar.gz') as archive:
      # Python before 3.11.4 has no filters; later versions warn without one.
      filtered = {'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}
      archive.extractall(unpacked, **filtered)
  return text, unpacked


def files(folder):
  return {
    str(file.relative_to(folder))
    for file in folder.rglob('*')
    if file.is_file() and '.git' not in file.parts
  }


def test_ships_the_commit_with_local_changes_and_new_files(repository):
  text, unpacked = pack(repository)
  record = unpacked / 'launch_record'
  commit = (record / 'commit').read_text().strip()
  assert commit == git(repository, 'rev-parse', 'HEAD').strip()
  # The record reproduces the files.
  again = repository.parent / 'again'
  git(repository.parent, 'clone', '--quiet', str(repository), str(again))
  git(again, 'apply', str(record / 'local.diff'))
  assert files(again) == files(unpacked) - {
    f'launch_record/{name}' for name in os.listdir(record)
  }
  for name in files(again):
    assert (again / name).read_bytes() == (unpacked / name).read_bytes()
    assert (again / name).read_bytes() == (repository / name).read_bytes()
  assert {'new file.py', 'new.bin', 'launch/pack.sh'} <= files(again)
  assert (record / 'left_out').read_text().split() == ['runs/', 'weights.ckpt']
  assert (record / 'packed').read_text()[10] == 'T'
  assert '4 locally changed or new file(s)' in text
  assert 'left out: 2 path(s)' in text


def test_packing_leaves_the_repository_unchanged(repository):
  git(repository, 'add', 'new.bin')

  def state():
    return (
      git(repository, 'status', '--porcelain'),
      git(repository, 'count-objects'),
      (repository / '.git' / 'index').read_bytes(),
    )

  before = state()
  pack(repository)
  assert state() == before


def test_large_new_files_are_refused(repository):
  with (repository / 'data set.tar').open('wb') as file:
    file.truncate(3 << 20)
  text, _ = pack(repository, code=1, PACK_LIMIT_MIB='2')
  assert 'new files larger than 2 MiB' in text
  assert 'data set.tar' in text
  assert not (repository.parent / 'out' / 'code.tar.gz').exists()
  git(repository, 'add', 'data set.tar')
  git(repository, 'commit', '--quiet', '--message=large')
  pack(repository, PACK_LIMIT_MIB='2')


def test_a_name_is_never_an_option(repository):
  names = ['-delete', '-fprint', '(', '!', '--', 'a\nb', '$(touch kept)', ' ']
  for name in names:
    (repository / name).write_text('')
  before = files(repository)
  (repository / '-large').write_bytes(bytes(3 << 20))
  assert '-large' in pack(repository, code=1, PACK_LIMIT_MIB='2')[0]
  (repository / '-large').unlink()
  _, unpacked = pack(repository)
  assert files(repository) == before
  assert {*names} <= files(unpacked)


def test_a_folder_without_a_commit_is_refused(empty):
  assert 'no git repository' in pack(empty, code=1)[0]
  git(empty, 'init', '--quiet')
  assert 'no commit yet' in pack(empty, code=1)[0]
  (empty / 'setup.py').unlink()
  assert 'only a checkout' in pack(empty, code=1)[0]
