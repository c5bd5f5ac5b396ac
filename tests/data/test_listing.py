"""Guards lists of image files on disk: used while valid, made again if not."""

import os
import pickle
import time

import numpy as np
import pytest

from vit_jax import data
from vit_jax.data.sources import folder, listing

FILES = [
  'train/dog/2.jpg',
  'train/ant/1.png',
  'train/dog/a/1.jpg',
  'val/cat/é.png',
]
HOUR = 3600 * 10**9


@pytest.fixture
def root(tmp_path, monkeypatch):
  """Returns a small data set, changed an hour ago, whose list will be kept."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(listing, 'KEPT_FROM', 1)
  root = tmp_path / 'set'
  for file in FILES:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_bytes(file.encode())
  _set_old_times(root)
  return str(root)


def _set_old_times(root):
  long_ago = time.time_ns() - HOUR
  for path, _, _ in os.walk(root):
    os.utime(path, ns=(long_ago, long_ago))


def _names(source):
  return [
    (record.name, record.label, record.image)
    for split in source.info.splits
    for record in data.View(source, split)
  ]


def _open(root):
  return data.open_source(f'folder:{root}')


def _refuse_to_list(monkeypatch):
  def walk(root, split):
    raise AssertionError(f'{root} was listed again')

  monkeypatch.setattr(folder, '_list', walk)


def test_the_second_open_reads_the_kept_list(root, monkeypatch):
  first = _open(root)
  assert first.info.splits == {'train': 3, 'val': 1}
  assert [name for name, _, _ in _names(first)] == [
    f'{root}/{file}'
    for file in ('train/ant/1.png', 'train/dog/2.jpg', *FILES[2:])
  ]
  _refuse_to_list(monkeypatch)
  again = _open(root)
  assert isinstance(again._index.arrays['names'], np.memmap)
  assert again.info == first.info
  assert _names(again) == _names(first)
  assert again.labels('train').tolist() == [0, 2, 2]


def test_a_changed_folder_cannot_be_unpickled_by_a_later_process(root):
  dump = pickle.dumps(_open(root)._index)
  open(f'{root}/train/dog/0.jpg', 'w').close()
  _set_old_times(root)
  assert _open(root).info.splits['train'] == 4
  with pytest.raises(ValueError, match='Restart this run'):
    pickle.loads(dump)


@pytest.mark.parametrize(
  'change',
  [
    lambda root: open(f'{root}/train/dog/3.jpg', 'w').close(),
    lambda root: os.remove(f'{root}/train/dog/a/1.jpg'),
    lambda root: os.rename(f'{root}/train/ant', f'{root}/train/bat'),
    lambda root: (
      os.makedirs(f'{root}/test/cat')
      or (open(f'{root}/test/cat/1.jpg', 'w').close())
    ),
  ],
  ids=['a new file', 'one less', 'another name', 'a new split'],
)
def test_a_changed_folder_is_noticed(root, change):
  before = _open(root)
  change(root)
  after = _open(root)
  assert after.info != before.info or _names(after) != _names(before)
  found = sorted(
    os.path.join(folder, file)
    for folder, _, files in os.walk(root)
    for file in files
  )
  assert sorted(name for name, _, _ in _names(after)) == found


def test_the_list_of_a_recently_changed_folder_is_not_kept(root, tmp_path):
  os.utime(f'{root}/train/dog')
  _open(root)
  assert not (tmp_path / 'cache').exists()


def _cache_folder(tmp_path):
  [place] = (tmp_path / 'cache/vit_jax/folders').iterdir()
  return place


@pytest.mark.parametrize('file', ['facts.json', 'names.npy', 'ends.npy'])
@pytest.mark.parametrize('how', ['cut', 'gone'])
def test_a_damaged_list_is_rebuilt(root, tmp_path, file, how):
  names = _names(_open(root))
  path = _cache_folder(tmp_path) / file
  if how == 'cut':
    path.write_bytes(path.read_bytes()[:-4])
  else:
    path.unlink()
  assert _names(_open(root)) == names
