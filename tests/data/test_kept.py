"""Guards kept scenes: they equal rendered ones, whatever happened to a file."""

import multiprocessing
import os
import pickle
import zlib

import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import kept, shapes

# Bytes of a scene: 64 * 64 * 3 for the image, 6 labels, 4 for the checksum.
SCENE = 12_298


@pytest.fixture
def scenes(tmp_path):
  return data.open_source('shapes:all', data_dir=str(tmp_path))


def _file(folder, split='train'):
  [path] = (folder / 'shapes').glob(f'{split}-*')
  return path


def _refuse_to_render(split, index):
  raise AssertionError(f'{split}/{index} was rendered')


def _equal(one, other):
  np.testing.assert_array_equal(one.image, other.image)
  assert one.image.dtype == other.image.dtype == np.uint8
  assert (one.label, one.name) == (other.label, other.name)


def _tiny_file(path):
  return kept.Kept(str(path), image_shape=(1, 2, 3), labels=2)


@pytest.fixture
def warnings(monkeypatch):
  """Returns the messages of warnings, and clears the caches before."""
  messages = []
  kept._warn.cache_clear()
  shapes._kept.cache_clear()
  monkeypatch.setattr(
    kept.logging, 'warning', lambda text, *args: messages.append(text % args)
  )
  return messages


@pytest.mark.parametrize('factor', ['shape', 'size+count', 'all'])
def test_kept_scenes_equal_rendered_ones(factor, tmp_path):
  drawn = data.open_source(f'shapes:{factor}')
  source = data.open_source(f'shapes:{factor}', data_dir=str(tmp_path))
  for split, index in (('train', 3), ('test', 3), ('test', 4_999)):
    for _ in range(2):
      _equal(source.read(split, index), drawn.read(split, index))


def test_a_second_read_does_not_render(scenes, monkeypatch, tmp_path):
  first = scenes.read('train', 5)
  monkeypatch.setattr(shapes, 'render', _refuse_to_render)
  _equal(scenes.read('train', 5), first)
  # Another factor of the scene does not render it either.
  count = data.open_source('shapes:count', data_dir=str(tmp_path))
  np.testing.assert_array_equal(count.read('train', 5).image, first.image)
  with pytest.raises(AssertionError, match='train/4 was rendered'):
    scenes.read('train', 4)
  with pytest.raises(AssertionError, match='train/5 was rendered'):
    data.open_source('shapes:all').read('train', 5)


def test_changing_an_image_does_not_change_the_file(scenes):
  first = scenes.read('train', 0)
  for _ in range(2):
    scenes.read('train', 0).image[:] = 0
  _equal(scenes.read('train', 0), first)


def test_the_index_gives_the_position_in_the_file(scenes, tmp_path):
  scenes.read('train', 2)
  image, labels = shapes.render('train', 2)
  content = image.tobytes() + bytes(labels.values())
  assert _file(tmp_path).read_bytes() == (
    bytes(2 * SCENE) + content + zlib.crc32(content).to_bytes(4, 'little')
  )


# The cases damage the first byte, a label, the checksum, and (by zeros) the
# second half.
@pytest.mark.parametrize('start, stop', [(0, 1), (-5, -4), (-1, 0), (-6000, 0)])
def test_a_damaged_record_is_rendered_again(start, stop, scenes, tmp_path):
  before = [scenes.read('train', i) for i in range(2)]
  path = _file(tmp_path)
  whole = path.read_bytes()
  damaged = bytearray(whole)
  part = slice(start % SCENE, stop % SCENE or SCENE)
  damaged[part] = bytes(byte ^ 1 for byte in damaged[part])
  if start == -6000:
    damaged[part] = bytes(6000)
  path.write_bytes(damaged)
  for i in range(2):
    _equal(scenes.read('train', i), before[i])
  assert path.read_bytes() == whole


def test_a_truncated_file_is_filled_again(scenes, tmp_path):
  before = [scenes.read('train', i) for i in range(3)]
  path = _file(tmp_path)
  whole = path.read_bytes()
  os.truncate(path, SCENE + 100)
  for i in (2, 0, 1):
    _equal(scenes.read('train', i), before[i])
  assert path.read_bytes() == whole


def test_a_changed_renderer_uses_another_file(tmp_path, monkeypatch):
  folder = str(tmp_path)
  shapes._kept.__wrapped__(folder, 'train')
  first = _file(tmp_path)
  render = shapes.render

  def image_differs(split, index):
    image, labels = render(split, index)
    image[0, 0, 0] ^= index == 63
    return image, labels

  def label_differs(split, index):
    image, labels = render(split, index)
    return image, labels | {'count': labels['count'] ^ (index == 63)}

  names = {first.name}
  for changed in (image_differs, label_differs, render):
    monkeypatch.setattr(shapes, 'render', changed)
    shapes._kept.__wrapped__(folder, 'train')
    names |= set(os.listdir(tmp_path / 'shapes'))
    assert len(names) == (2 if changed is image_differs else 3)


@pytest.mark.parametrize('split', ['train', 'validation', 'test'])
def test_the_probes_contain_every_value_of_every_factor(split):
  labels = [shapes.render(split, i)[1] for i in range(shapes._PROBES)]
  for factor, classes in shapes.FACTORS.items():
    assert {scene[factor] for scene in labels} == set(range(len(classes)))


def _read(source, start):
  """Reads the scenes 0 .. 39, beginning at `start`."""
  return {
    i % 40: source.read('train', i % 40) for i in range(start, start + 40)
  }


def test_processes_fill_one_file_together(scenes, tmp_path, monkeypatch):
  scenes.read('train', 7)
  # Pickling also works after the source has opened its file.
  assert pickle.loads(pickle.dumps(scenes)).info.spec == 'shapes:all'
  with multiprocessing.get_context('spawn').Pool(2) as pool:
    results = pool.starmap(_read, [(scenes, 0), (scenes, 20)], chunksize=1)
  drawn = _read(data.open_source('shapes:all'), 0)
  for result in results:
    for index in range(40):
      _equal(result[index], drawn[index])
  assert _file(tmp_path).stat().st_size == 40 * SCENE
  monkeypatch.setattr(shapes, 'render', _refuse_to_render)
  for index, record in _read(scenes, 0).items():
    _equal(record, drawn[index])


def test_scenes_are_rendered_if_they_cannot_be_kept(tmp_path, warnings):
  drawn = data.open_source('shapes').read('test', 1)
  (tmp_path / 'file').touch()
  for folder, reason in (
    (f'{tmp_path}/file', 'Not a directory'),
    ('gs://bucket/tfds', 'this is not a local folder'),
  ):
    for _ in range(2):
      source = data.open_source('shapes', data_dir=folder)
      _equal(source.read('test', 1), drawn)
      source.read('train', 1)
    assert warnings == [
      f'Images that are not in {folder}/shapes are rendered at every read,'
      f' because none can be kept there: {reason}. Set data.data_dir to a'
      " writable local folder, or to ''."
    ]
    warnings.clear()
  assert not os.path.exists('gs:')


def test_a_full_disk_is_not_an_error(tmp_path, warnings, monkeypatch):
  def full(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'pwrite', full)
  records = _tiny_file(tmp_path / 'file')
  for _ in range(2):
    records.write(0, np.ones((1, 2, 3), np.uint8), [1, 2])
  assert records.read(0) is None
  [warning] = warnings
  assert f' in {tmp_path} are rendered' in warning
  assert ': No space left on device. ' in warning
  # The file is not written again.
  monkeypatch.undo()
  records.write(0, np.ones((1, 2, 3), np.uint8), [1, 2])
  assert records.read(0) is None


def test_a_read_only_file_is_still_read(tmp_path, warnings, monkeypatch):
  image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
  _tiny_file(tmp_path / 'file').write(1, image, [7, 255])
  opened = os.open

  def read_only(path, flags, *args):
    if flags & os.O_RDWR:
      raise PermissionError(13, 'Permission denied')
    return opened(path, flags, *args)

  monkeypatch.setattr(os, 'open', read_only)
  records = _tiny_file(tmp_path / 'file')
  found, labels = records.read(1)
  assert found.tolist() == [[[0, 1, 2], [3, 4, 5]]]
  assert labels == (7, 255)
  records.write(0, image, [7, 255])
  assert records.read(0) is None
  [warning] = warnings
  assert ': Permission denied. ' in warning


def test_an_unwritten_record_differs_from_a_record_of_zeros(tmp_path):
  records = _tiny_file(tmp_path / 'file')
  assert records.read(0) is None
  zeros = np.zeros((1, 2, 3), np.uint8)
  records.write(1, zeros, [0, 0])
  assert records.read(0) is None
  found, labels = records.read(1)
  assert (found.tolist(), labels) == (zeros.tolist(), (0, 0))


def test_a_file_is_opened_once_and_closed_at_the_end(tmp_path):
  folder = str(tmp_path)

  def opened():
    links = [f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')]
    targets = [os.readlink(link) for link in links if os.path.islink(link)]
    return sum(target.startswith(folder) for target in targets)

  for _ in range(3):
    data.open_source('shapes', data_dir=folder).read('train', 0)
  assert opened() == 1
  shapes._kept.cache_clear()
  assert opened() == 0


def test_opening_a_file_keeps_its_records(tmp_path):
  image = np.full((1, 2, 3), 9, np.uint8)
  _tiny_file(tmp_path / 'file').write(0, image, [1, 2])
  found, labels = _tiny_file(tmp_path / 'file').read(0)
  assert (found.tolist(), labels) == (image.tolist(), (1, 2))


def test_home_is_expanded(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  _tiny_file('~/a/file')
  assert (tmp_path / 'a' / 'file').exists()
