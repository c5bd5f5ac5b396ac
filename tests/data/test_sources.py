"""Guards data specs without an own file of tests: records, classes, names."""

import os

import cv2
import numpy as np
import pytest
from sklearn import datasets

from tests.data.test_identity import Numbers
from vit_jax import data
from vit_jax.data.sources import listing, shapes

# ---- Views and specs ---------------------------------------------------------


def test_views():
  view = data.View(Numbers(), 'train[8:]+test[1:3]')
  found = [(record.name, record.label) for record in view]
  assert found == [('train/8', 8), ('train/9', 9), ('test/1', 1), ('test/2', 2)]
  for index in (-1, 4):
    with pytest.raises(IndexError, match=f'has 4 records, and no.* {index}'):
      view[index]


@pytest.mark.parametrize(
  'spec, words',
  [
    *((s, 'unknown or incomplete') for s in ('', 'digit', 'folder:', 'tfds:')),
    ('numbers:10', 'is one of digits, shapes, .*numbers.*docs/data.md'),
    ('digits:12x', 'two or more different digits'),
    ('digits:1231', 'two or more different digits'),
    ('digits:7', 'two or more different digits'),
    ('shapes:weight', "unknown factor 'weight'; the factors are shape, "),
    ('tar:/a', 'prepare_data --source=tar:PATH'),
  ],
)
def test_wrong_specs(spec, words, monkeypatch):
  monkeypatch.setitem(data.SOURCES, 'numbers', Numbers)
  assert data.open_source('numbers').info == Numbers.info
  with pytest.raises(ValueError, match=words):
    data.open_source(spec)


# ---- digits: -----------------------------------------------------------------


def test_order_is_shuffled_and_fixed_for_any_subset_of_digits():
  scans = datasets.load_digits()
  ones = scans.images[scans.target == 1]

  def first_ones(spec, label):
    view = data.View(data.open_source(spec), 'train')
    images = [r.image for r in (view[i] for i in range(60)) if r.label == label]
    flat = np.rint(ones * 255 / 16).astype(np.uint8)[..., None]
    return [int(np.all(flat == x, axis=(1, 2, 3)).argmax()) for x in images[:5]]

  assert first_ones('digits', 1) == [168, 21, 46, 93, 45]
  assert first_ones('digits:17', 0) == [168, 21, 46, 93, 45]


# ---- shapes: -----------------------------------------------------------------


SCENES = 600


@pytest.fixture(scope='module')
def scenes():
  """Returns images [n, 64, 64, 3], ink masks [n, 64, 64], and factor -> [n]."""
  rendered = [shapes.render('train', i) for i in range(SCENES)]
  images = np.stack([image for image, _ in rendered])
  # Shapes are saturated, backgrounds nearly grey.
  masks = np.ptp(images.astype(int), axis=-1) > 100
  labels = {
    factor: np.array([labels[factor] for _, labels in rendered])
    for factor in shapes.FACTORS
  }
  return images, masks, labels


def _boxes(mask):
  """Returns boxes (x, y, width, height) of the connected pieces of a mask."""
  _, _, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
  return stats[1:, :4]


def test_the_count_label_is_the_number_of_pieces(scenes):
  _, masks, labels = scenes
  pieces = [len(_boxes(mask)) for mask in masks]
  np.testing.assert_array_equal(pieces, labels['count'] + 1)


def test_shape_and_orientation_can_be_recognized_by_nearest_neighbour(scenes):
  images, masks, labels = scenes
  crops = []
  for image, mask in zip(images, masks, strict=True):
    x, y, width, height = _boxes(mask)[0]
    side = max(width, height)
    saturation = np.ptp(image.astype(np.float32), axis=-1) / 255
    saturation = np.pad(saturation, side)
    # Crop a square around the piece's centre, with some margin.
    cx, cy = x + (width - 1) / 2 + side, y + (height - 1) / 2 + side
    scale = 16 / (side * 1.3)
    warp = np.array(
      [[scale, 0, 7.5 - scale * cx], [0, scale, 7.5 - scale * cy]]
    )
    crops.append(cv2.warpAffine(saturation, warp, (16, 16)).ravel())
  crops = np.array(crops)
  norms = np.square(crops).sum(axis=1)
  distance = norms[:, None] + norms - 2 * crops @ crops.T
  np.fill_diagonal(distance, np.inf)
  nearest = distance.argmin(axis=1)
  for factor in ('shape', 'orientation'):
    assert np.mean(labels[factor][nearest] == labels[factor]) > 0.99


def test_kept_scenes_are_read_again_and_damaged_ones_are_not(
  tmp_path, monkeypatch
):
  plain = shapes.Shapes('count')
  kept = shapes.Shapes('count', data_dir=str(tmp_path))
  first = [kept.read('test', i) for i in range(3)]
  [path] = (tmp_path / 'shapes').iterdir()
  content = bytearray(path.read_bytes())
  content[shapes._RECORD + 5] ^= 1  # In the second scene.
  path.write_bytes(content)
  drawn = []
  render = shapes.render
  monkeypatch.setattr(
    shapes, 'render', lambda *place: drawn.append(place) or render(*place)
  )
  for i, record in enumerate(first):
    again = kept.read('test', i)
    expected = plain.read('test', i) if i != 1 else record
    np.testing.assert_array_equal(again.image, record.image)
    np.testing.assert_array_equal(again.image, expected.image)
    assert again.label == record.label == expected.label
  assert drawn == [('test', 0), ('test', 1), ('test', 2)]


def test_scenes_are_kept_in_a_local_folder_alone(tmp_path):
  remote = shapes.Shapes('count', data_dir='gs://bucket/scenes')
  expected, _ = shapes.render('train', 0)
  np.testing.assert_array_equal(remote.read('train', 0).image, expected)
  (tmp_path / 'file').write_bytes(b'')
  with pytest.raises(OSError, match='file'):
    shapes.Shapes(data_dir=f'{tmp_path}/file').read('train', 0)


# ---- folder: and classes: ----------------------------------------------------


FILES = [
  'train/dog/2.jpg',
  'train/dog/10.PNG',
  'train/dog/deep/er/1.jpeg',
  'train/dog-b/x.webp',
  'train/ant/a.Bmp',
  'test/dog/9.jpg',
  'test/emu/8.tiff',
]


def _make(root, files):
  for file in files:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'bytes of ' + file.encode())
  return str(root)


@pytest.fixture(params=['local', 'epath'])
def root(request, tmp_path, monkeypatch):
  """Returns a data set, to read both as a local and as a remote folder."""
  ignored = [
    *('train/dog/notes.txt', 'train/dog/.hidden.jpg', 'train/.cat/1.jpg'),
    *('README.jpg', '.cache/a/1.jpg', 'train/labels.csv'),
  ]
  path = _make(tmp_path, [*FILES, *ignored])
  if request.param == 'epath':
    monkeypatch.setattr(listing, 'is_remote', lambda path: True)

    def local_only(path):
      raise AssertionError(f'{path} was listed as a local folder.')

    monkeypatch.setattr(listing, '_local', local_only)
  return path


def test_records_are_sorted_by_class_then_path(root):
  source = data.open_source(f'folder:{root}')
  assert source.info.splits == {'test': 2, 'train': 5}
  assert source.info.class_names == ('ant', 'dog', 'dog-b', 'emu')
  assert source.info.spec == f'folder:{root}'
  view = data.View(source, 'train+test')
  records = [view[i] for i in range(len(view))]
  expected = [
    ('train/ant/a.Bmp', 0),
    ('train/dog/10.PNG', 1),
    ('train/dog/2.jpg', 1),
    ('train/dog/deep/er/1.jpeg', 1),
    ('train/dog-b/x.webp', 2),
    # `test` has no ants, but uses the same labels as `train`.
    ('test/dog/9.jpg', 1),
    ('test/emu/8.tiff', 3),
  ]
  assert [(r.name, r.label) for r in records] == [
    (f'{root}/{file}', label) for file, label in expected
  ]
  assert [r.image for r in records] == [
    b'bytes of ' + file.encode() for file, _ in expected
  ]


@pytest.mark.parametrize(
  'files, found',
  [
    ([], 'no class folder'),
    (['1.jpg', '2.jpg'], 'no class folder'),
    (['train/1.jpg', 'test/1.jpg'], 'no class folder'),
    (['train/cat/1.txt'], r"no class folder .*'\.txt': 1"),
    # Splits and classes side by side.
    (['train/cat/1.jpg', 'dog/1.jpg'], '/train looks like a split'),
    (['a/cat/1.jpg', 'dog/1.jpg'], '/a looks like a split'),
    (['cat/1.jpg', 'dog/1.jpg', 'Test/1.jpg'], '/Test looks like a split'),
    # Nothing tells splits from classes.
    (
      ['One/cat/1.jpg', 'One/2.jpg', 'Two/cat/1.jpg', 'Two/2.jpg'],
      '/One holds images and folders of images',
    ),
  ],
)
def test_other_folder_layouts_are_refused(tmp_path, files, found):
  root = _make(tmp_path, files)
  with pytest.raises(ValueError, match=f'expected .*{found}.* classes:'):
    data.open_source(f'folder:{root}')


@pytest.mark.parametrize('kind', ['folder', 'classes'])
def test_class_folders_without_splits(tmp_path, kind):
  files = ['dog/1.jpg', 'dog/c.jpg', 'dog/b/2.png', 'ant/1.gif']
  files += ['train/1.jpg', '0/a.txt']
  root = _make(tmp_path, files)
  source = data.open_source(f'{kind}:{root}')
  assert source.info.splits == {'train': 5}
  assert source.info.class_names == ('0', 'ant', 'dog', 'train')
  assert source.info.spec == f'{kind}:{root}'
  records = list(data.View(source, 'train'))
  assert [(r.name, r.label) for r in records] == [
    (f'{root}/ant/1.gif', 1),
    (f'{root}/dog/1.jpg', 2),
    (f'{root}/dog/b/2.png', 2),
    (f'{root}/dog/c.jpg', 2),
    (f'{root}/train/1.jpg', 3),
  ]


@pytest.mark.parametrize(
  'stray, other', [('Training', 'Testing'), ('validation', 'validation')]
)
def test_a_stray_image_beside_class_folders(tmp_path, stray, other):
  files = [f'{s}/{c}/1.jpg' for s in {stray, other} for c in ('cat', 'dog')]
  stray = f'{stray}/preview.jpg'
  root = _make(tmp_path, [*files, stray, f'{other}/cat/notes.txt'])
  source = data.open_source(f'folder:{root}')
  assert source.info.class_names == ('cat', 'dog')
  assert set(source.info.splits.values()) == {2}
  outside = f'images of {os.path.dirname(f"{root}/{stray}")} outside of'
  assert source.others == {f'{outside} class folders': 1, '.txt': 1}


def test_files_with_other_suffixes_are_counted(tmp_path, caplog):
  files = ['a/1.jpg', 'a/2.HEIC', 'b/3.heic', 'b/4.avif', 'b/5', 'b/6.GIF']
  clutter = ['__MACOSX/a/1.jpg', 'train/__MACOSX/1.jpg', 'train/a/.DS_Store']
  root = _make(tmp_path, [*(f'train/{f}' for f in files), *clutter])
  source = data.open_source(f'folder:{root}')
  assert source.info.splits == {'train': 3}
  assert source.info.class_names == ('a', 'b')
  assert source.labels('train').tolist() == [0, 1, 1]
  [line] = caplog.messages
  assert '3 file(s) are not read, by suffix: .heic 2, no suffix 1.' in line
  assert '.jpg' in line


@pytest.mark.parametrize(
  'links',
  [
    {'train/a/top': ''},
    {'train/a/b/c': 'train/c', 'train/c/a': 'train/a'},
    {'train/a/b/self.jpg': 'train/a/b/self.jpg'},
  ],
)
def test_endless_links_are_refused(tmp_path, links):
  root = _make(tmp_path / 'set', ['train/a/b/1.jpg', 'train/c/1.jpg'])
  for link, target in links.items():
    os.symlink(f'{root}/{target}', f'{root}/{link}')
  with pytest.raises(OSError, match='symbolic links'):
    data.open_source(f'folder:{root}')


def test_other_links_are_followed(tmp_path):
  root = _make(tmp_path / 'set', ['train/a/1.jpg', 'train/c/2.jpg'])
  _make(tmp_path / 'out', ['d/3.jpg'])
  os.symlink('../a', f'{root}/train/c/a')
  os.symlink(f'{root}/train/c', f'{root}/train/e')
  for name in ('f', 'g'):
    os.symlink(tmp_path / 'out' / 'd', f'{root}/train/{name}')
  source = data.open_source(f'folder:{root}')
  names = [source.name('train', i) for i in range(source.info.splits['train'])]
  assert [name.removeprefix(f'{root}/train/') for name in names] == [
    *('a/1.jpg', 'c/2.jpg', 'c/a/1.jpg', 'e/2.jpg', 'e/a/1.jpg'),
    *('f/3.jpg', 'g/3.jpg'),
  ]
