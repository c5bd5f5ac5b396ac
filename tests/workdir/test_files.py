"""Guards: users' paths are resolved, and damaged small files are named."""

import errno
import os
import pathlib

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import files


def test_local_paths_become_absolute(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', '/home/me')
  assert str(files.absolute('../b16/')) == f'{tmp_path.parent}/b16'
  assert str(files.absolute('~/runs')) == '/home/me/runs'
  assert str(files.absolute(pathlib.Path('/a/b'))) == '/a/b'


def test_the_last_writer_of_a_file_wins(tmp_path):
  path = epath.Path(tmp_path / 'a/b')
  for text in (b'one', b'two'):
    files.write_shared(path, text)
    assert path.read_bytes() == text
  with pytest.raises(ZeroDivisionError), files.atomic(path) as temporary:  # noqa: PT012
    temporary.write_text('half')
    _ = 1 / 0
  assert [p.name for p in path.parent.iterdir()] == ['b']
  assert path.read_bytes() == b'two'


@pytest.mark.usefixtures('soon')
def test_pipes_are_refused_and_never_waited_for(tmp_path):
  os.mkfifo(tmp_path / 'class_names.txt')
  with pytest.raises(ValueError, match='is not a regular file'):
    files.read_class_names(tmp_path)
  with pytest.raises(OSError, match='is not a regular file'):
    files.open_regular(str(tmp_path / 'class_names.txt'), os.O_RDONLY)


@pytest.mark.parametrize(
  'content', [b'', b'{"a": ', b'\xff\xfe\x00', b'["a"]', b'[' * 200_000]
)
def test_damaged_objects_are_refused(tmp_path, content):
  path = tmp_path / 'a.json'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=r'a\.json is damaged \(.*: eat it\.'):
    files.read_object(path, 'eat it')
  path.write_text('{"a": 1}')
  assert files.read_object(path, '') == {'a': 1}


def test_a_full_disk_is_named(tmp_path):
  named = files.disk_full_named
  with pytest.raises(errors.SaveError, match=r'^a/b: .*room'), named(tmp_path):
    raise OSError(errno.EDQUOT, 'Disk quota exceeded', 'a/b')
  with pytest.raises(errors.SaveError, match=r'run: .*ulimit -f'), named('run'):
    raise OSError(errno.EFBIG, 'File too large')
  with pytest.raises(FileNotFoundError), named(tmp_path):
    raise FileNotFoundError(errno.ENOENT, 'None', 'a/b')


@pytest.mark.parametrize(
  'name, words',
  [
    ('file', ['File exists', 'Move away']),
    ('gone/a', ['No such file', 'make what is missing']),
  ],
)
def test_errors_of_the_system_say_what_to_do(tmp_path, name, words):
  (tmp_path / 'file').touch()
  with pytest.raises(OSError, match='Errno') as error:
    os.mkdir(tmp_path / name)
  text = errors.described(error.value)
  assert text.startswith(f'{tmp_path / name}: ')
  for word in words:
    assert word in text


def test_class_names_are_read_in_their_order(tmp_path):
  assert files.read_class_names(tmp_path) == ()
  files.write_class_names(tmp_path, ('b', 'a b', '', 'é', 'line\nbreak'))
  assert files.read_class_names(tmp_path) == (
    *('b', 'a b', '', 'é', r'line\nbreak'),
  )
  (tmp_path / 'class_names.txt').write_bytes(b'a\xff\n')
  with pytest.raises(ValueError, match=r'class_names.txt is damaged .*delete'):
    files.read_class_names(tmp_path)
