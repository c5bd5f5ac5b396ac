"""Guards digests of data sets: equal for equal data, different for changes."""

import shutil

import pytest

from vit_jax import data
from vit_jax.data import identity
from vit_jax.runtime import errors


def _make(root, classes=('ant', 'bee'), files=6):
  for name in classes:
    for i in range(files):
      path = root / 'train' / name / f'{i}.jpg'
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(f'{name} {i}'.encode())
  return root


def _digest(root, split='train'):
  return data.digest(data.View(data.open_source(f'folder:{root}'), split))


def _differing_parts(root, other):
  """Returns the facts and the names of examples that differ in two folders."""
  a, b = _digest(root), _digest(other)
  facts = [k for k in a['train'] if a['train'][k] != b['train'][k]]
  contents = {
    both[k].split()[0]
    for both in (a['contents'], b['contents'])
    for k in both
    if a['contents'].get(k) != b['contents'].get(k)
  }
  return facts + sorted(contents)


@pytest.fixture
def both(tmp_path):
  """Returns a folder and its copy."""
  one = _make(tmp_path / 'one')
  shutil.copytree(one, tmp_path / 'other')
  return one, tmp_path / 'other'


NAMES, SIZES = 'names of the files', 'sizes of the files'


def test_a_copy_is_equal(both):
  one, other = map(_digest, both)
  assert one.pop('dataset') != other.pop('dataset')
  assert one == other
  assert one['examples'] == 12
  names = [content.split()[0] for content in one['contents'].values()]
  assert names[::11] == ['ant/0.jpg', 'bee/5.jpg']


def test_names_contents_and_sizes_distinguish_data(both, tmp_path):
  one, other = both
  (other / 'train/ant/1.jpg').rename(other / 'train/ant/1b.jpg')
  assert _differing_parts(one, other) == [NAMES, 'ant/1.jpg', 'ant/1b.jpg']
  (other / 'train/ant/1b.jpg').rename(other / 'train/ant/1.jpg')
  assert _differing_parts(one, other) == []
  # The new contents have the same size.
  (other / 'train/ant/1.jpg').write_bytes(b'ant 2')
  (other / 'train/ant/2.jpg').write_bytes(b'ant 1')
  assert _differing_parts(one, other) == ['ant/1.jpg', 'ant/2.jpg']
  (other / 'train/bee/5.jpg').write_bytes(b'longer')
  assert SIZES in _differing_parts(one, other)


def test_unreadable_files_are_reported_as_unknown(both):
  one, other = both
  source = data.open_source(f'folder:{other}')
  (other / 'train/bee/5.jpg').unlink()
  found = data.digest(data.View(source, 'train'))
  assert found['contents']['11'] == identity.UNKNOWN
  assert found['train'][SIZES] == identity.UNKNOWN
  assert found['train'][NAMES] == _digest(one)['train'][NAMES]


def test_read_errors_of_libraries_name_the_record(both, monkeypatch):
  def damaged(*_):
    raise RuntimeError('chunk data hash mismatch')

  monkeypatch.setattr(data.View, '__getitem__', damaged)
  with pytest.raises(
    errors.ReadError,
    match=r'^Reading record \d+ of train of folder:.* failed: RuntimeError: ',
  ):
    _digest(both[0])
