"""Guards: users' paths are resolved, and damaged small files are named."""

import contextlib
import errno
import os
import pathlib

import pytest
from etils import epath

from vit_jax import config, interop, results
from vit_jax.runtime import errors
from vit_jax.workdir import environment, files


def test_local_paths_become_absolute(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', '/home/me')
  assert str(files.absolute('runs/b16')) == f'{tmp_path}/runs/b16'
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
@pytest.mark.parametrize('name', ['class_names.txt', 'config.json', 'a.npz'])
def test_pipes_are_refused_and_never_waited_for(tmp_path, name):
  read = {
    'class_names.txt': files.read_class_names,
    'config.json': config.load,
    'a.npz': lambda folder: interop.read(folder / 'a.npz'),
  }[name]
  os.mkfifo(tmp_path / name)
  with pytest.raises(ValueError, match=rf'{name} is not a regular file'):
    read(tmp_path)
  (tmp_path / name).unlink()
  (tmp_path / name).symlink_to(name)  # The link points to itself.
  with contextlib.suppress(ValueError):
    assert not read(tmp_path)


@pytest.mark.parametrize(
  ('content', 'cause'),
  [
    (b'', 'Expecting value'),
    (b'{"a": ', 'Expecting value'),
    (b'\xff\xfe\x00', 'codec'),
    (b'["a"]', "it holds \\['a'\\], not an object"),
    (b'null', 'it holds None, not an object'),
    (b'[' * 200_000, 'levels'),
  ],
)
def test_damaged_objects_are_refused(tmp_path, content, cause):
  path = tmp_path / 'a.json'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=cause) as error:
    files.read_object(path, 'eat it')
  assert str(error.value).startswith(f'{path} is damaged (')
  assert str(error.value).endswith('): eat it.')
  path.write_text('{"a": 1}')
  assert files.read_object(path, '') == {'a': 1}


@pytest.mark.parametrize('content', [b'\xff\xfe', b'soon', b'-3', b'1.5'])
def test_an_invalid_done_file_is_ignored_with_a_warning(
  tmp_path, content, caplog
):
  (tmp_path / 'DONE').write_bytes(content)
  assert results.finished_at(tmp_path) is None
  assert f'{tmp_path}/DONE holds' in caplog.text


def test_other_damaged_files_are_skipped_or_named(tmp_path):
  (tmp_path / 'class_names.txt').write_bytes(b'a\xff\n')
  with pytest.raises(ValueError, match=r'class_names.txt is damaged .*delete'):
    files.read_class_names(tmp_path)
  (tmp_path / environment.FILE).write_bytes(b'\xff\n5\n{"commit": "a"}\n')
  assert environment.read(tmp_path) == [{'commit': 'a'}]


def test_a_full_disk_is_named(tmp_path):
  named = files.disk_full_named
  with pytest.raises(errors.SaveError, match=r'^a/b: '), named(tmp_path):
    raise OSError(errno.EDQUOT, 'Disk quota exceeded', 'a/b')
  with pytest.raises(errors.SaveError, match=r'run: .*ulimit -f'), named('run'):
    raise OSError(errno.EFBIG, 'File too large')
  with pytest.raises(FileNotFoundError), named(tmp_path):
    raise FileNotFoundError(errno.ENOENT, 'None', 'a/b')


def _open(path):
  path.open('w').close()


def _replace(path):
  path.with_name('file').replace(path)


@pytest.mark.parametrize(
  'do, name, words',
  [
    (os.mkdir, 'file', ['File exists', 'move away']),
    (os.mkdir, 'file/a/b', ['file is a file', 'choose a path']),
    (os.mkdir, 'gone/a', ['No such file', 'make what is missing']),
    (os.mkdir, 'link', ['link is a link to gone, which is not there']),
    (_open, 'link/data.json', ['link is a link to gone']),
    (_open, 'circle/a', ['circle is a link', 'Remove the link']),
    (_open, 'folder', ['Is a directory', 'move the directory away']),
    (_replace, 'folder', ['Is a directory', 'move the directory away']),
    (_open, 'x' * 256, ['255 bytes']),
  ],
)
def test_errors_of_the_system_say_what_to_do(tmp_path, do, name, words):
  (tmp_path / 'file').touch()
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'link').symlink_to('gone')
  (tmp_path / 'circle').symlink_to('circle')
  with pytest.raises(OSError, match='Errno') as error:
    do(tmp_path / name)
  text = errors.described(error.value)
  assert text.startswith(f'{tmp_path / name}: ')
  for word in words:
    assert word in text


def test_class_names_are_read_in_their_order(tmp_path):
  assert files.read_class_names(tmp_path) == ()
  names = ('b', 'a b', '', 'é', 'line\nbreak', 'form\x0cfeed')
  files.write_class_names(tmp_path, names)
  assert files.read_class_names(tmp_path) == (
    *('b', 'a b', '', 'é'),
    *(r'line\nbreak', r'form\x0cfeed'),
  )
