"""Guards `folder:` and `classes:`: which files are read, and in which order."""

import os

import pytest

from vit_jax import data
from vit_jax.data.sources import listing

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


@pytest.fixture
def warnings(monkeypatch):
  """Returns a list that gets the warnings about what is left out."""
  lines = []
  monkeypatch.setattr(
    listing.logging, 'warning', lambda text, *args: lines.append(text % args)
  )
  return lines


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
    (['mappings/a.json'], 'no class folder'),
    ([], 'no class folder'),
    (['1.jpg', '2.jpg'], 'no class folder'),
    (['train/1.jpg'], 'no class folder'),
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


def test_files_with_other_suffixes_are_counted(tmp_path, warnings):
  files = ['a/1.jpg', 'a/2.HEIC', 'b/3.heic', 'b/4.avif', 'b/5', 'b/6.GIF']
  clutter = ['__MACOSX/a/1.jpg', 'train/__MACOSX/1.jpg', 'train/a/.DS_Store']
  root = _make(tmp_path, [*(f'train/{f}' for f in files), *clutter])
  source = data.open_source(f'folder:{root}')
  assert source.info.splits == {'train': 3}
  assert source.info.class_names == ('a', 'b')
  assert source.labels('train').tolist() == [0, 1, 1]
  [line] = warnings
  assert '3 file(s) are not read, by suffix: .heic 2, no suffix 1.' in line
  assert '.jpg' in line


@pytest.mark.parametrize(
  'links',
  [
    {'train/a/b/up': 'train/a'},
    {'train/a/top': ''},
    {'train/a/b/c': 'train/c', 'train/c/a': 'train/a'},  # Mutual links.
    {'train/a/b/out': '../out', '../out/in': 'train'},
    {'train/a/one': '../out', 'train/c/two': '../out', '../out/in': 'train/c'},
  ],
)
def test_links_to_folders_that_they_lie_in_are_refused(tmp_path, links):
  root = _make(tmp_path / 'set', ['train/a/b/1.jpg', 'train/c/1.jpg'])
  (tmp_path / 'out').mkdir()
  for link, target in links.items():
    os.symlink(f'{root}/{target}', f'{root}/{link}')
  words = f'^folder:{root}: {root}/.* links to a folder that it lies in; remove'
  with pytest.raises(ValueError, match=words):
    data.open_source(f'folder:{root}')


@pytest.mark.parametrize('link', ['train/a/self', 'train/a/b/self.jpg'])
def test_links_to_themselves_are_refused(tmp_path, link):
  root = _make(tmp_path / 'set', ['train/a/b/1.jpg', 'train/c/1.jpg'])
  os.symlink(f'{root}/{link}', f'{root}/{link}')
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
