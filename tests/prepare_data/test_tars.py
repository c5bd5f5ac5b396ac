"""Guards `tar:`: which files are records, and their classes."""

import gzip
import tarfile

import fsspec
import pytest

from tests.prepare_data.imagenet21k import tar_file
from vit_jax import data
from vit_jax.prepare_data import tars


def _files(*paths):
  return {path: f'bytes of {path}'.encode() for path in paths}


def _write(root, files):
  """Writes PATH -> content, where a dictionary becomes a tar file."""
  for path, content in files.items():
    path = root / path
    path.parent.mkdir(parents=True, exist_ok=True)
    is_tar = isinstance(content, dict)
    path.write_bytes(tar_file(content) if is_tar else content)
  return root


def _open(spec, **options):
  return tars.Tars(spec.removeprefix('tar:'), **options)


def _records(spec, split='train'):
  source = _open(spec)
  names = source.info.class_names
  view = data.View(source, split)
  records = [view[i] for i in range(len(view))]
  assert [view.name(i) for i in range(len(view))] == [r.name for r in records]
  assert source.labels(split).tolist() == [r.label for r in records]
  return [(r.image.decode(), names[r.label]) for r in records]


def _tar(*paths):
  return tar_file(_files(*paths))


@pytest.mark.parametrize(
  'files, expected',
  [
    # Folders of splits.
    ({'val/a.tar': ['1.jpg'], 'train/b.tar': ['2.jpg']}, 'val a, train b'),
    # Class folders inside one tar file, below some other folder.
    ({'all.tar': ['all/dog/1.jpg', 'all/cat/2.jpg']}, 'train dog, train cat'),
    ({'all.tar': ['./dog/1.jpg']}, 'train dog'),
    # Splits and classes inside one tar file; its name.
    (
      {'all.tar': ['x/train/dog/1.jpg', 'x/test/cat/2.jpg']},
      'train dog, test cat',
    ),
    (
      {'x-val.tar': ['dog/1.jpg'], 'test-tube.tar': ['1.jpg']},
      'val dog, train test-tube',
    ),
  ],
)
def test_layouts(tmp_path, files, expected):
  files = {path: _files(*inside) for path, inside in files.items()}
  root = _write(tmp_path / 'x', files)
  expected = [pair.split() for pair in expected.split(', ')]
  for path in [root] if len(files) > 1 else [root, root / min(files)]:
    source = _open(f'tar:{path}')
    assert sum(source.info.splits.values()) == len(expected)
    for split in source.info.splits:
      found = [name for _, name in _records(f'tar:{path}', split)]
      assert found == [name for of, name in expected if of == split]


def test_tar_files_inside_a_tar_file(tmp_path):
  """As in the release of winter 2021."""
  inside = {'w/n1.tar': _tar('n1_1.JPEG'), 'w/n2.tar': _tar('n2_1.JPEG')}
  root = _write(tmp_path / 'x', {'w.tar': inside})
  found = [('bytes of n1_1.JPEG', 'n1'), ('bytes of n2_1.JPEG', 'n2')]
  assert _records(f'tar:{root}') == _records(f'tar:{root}/w.tar') == found


def test_imagenet_1k(tmp_path, monkeypatch):
  labels = {'datasets/imagenet2012/validation_labels.txt': b'n2\nn1\n'}
  package = _write(tmp_path / 'package', labels)
  monkeypatch.setattr(tars.importlib.resources, 'files', lambda name: package)
  train = {'n1.tar': _tar('n1_1.JPEG'), 'n2.tar': _tar('n2_1.JPEG')}
  files = {
    'ILSVRC2012_img_train.tar': train,
    'ILSVRC2012_img_val.tar': _files('val_2.JPEG', 'val_1.JPEG'),
    'ILSVRC2012_img_test.tar': _files('test_1.JPEG'),
  }
  root = _write(tmp_path / 'ILSVRC', files)
  found = _records(f'tar:{root}')
  assert found == [('bytes of n1_1.JPEG', 'n1'), ('bytes of n2_1.JPEG', 'n2')]
  found = _records(f'tar:{root}', 'validation')
  assert found == [('bytes of val_1.JPEG', 'n2'), ('bytes of val_2.JPEG', 'n1')]
  source = _open(f'tar:{root}')
  assert set(source.info.splits) == {'train', 'validation'}
  assert source.others == {'images of the test split, without a class': 1}
  extra = _files('val_1.JPEG', 'val_2.JPEG', 'val_3.JPEG')
  _write(root, {'ILSVRC2012_img_val.tar': extra})
  with pytest.raises(ValueError, match='holds 3 images, but ImageNet-1k has 2'):
    _open(f'tar:{root}')


@pytest.mark.parametrize(
  'keep, words, images',
  [
    (lambda b: b[: 512 + 5], "ends within 'dog/1.jpg'", 0),
    (lambda b: b[: 1024 + 300], 'after dog/1.jpg', 1),
    (lambda b: b[:2048], 'after dog/2.jpg: no mark of the end', 2),
    # The second header is wrong; and another tar file follows.
    (lambda b: b[:1024] + b'x' + b[1025:], 'after dog/1.jpg', 1),
    (lambda b: b + b, 'after dog/2.jpg', 2),
    (lambda b: b'', 'after its beginning', 0),
  ],
)
def test_damaged_tar_files(tmp_path, keep, words, images):
  content = keep(tar_file(_files('dog/1.jpg', 'dog/2.jpg')))
  root = _write(tmp_path / 'x', {'a.tar': content})
  with pytest.raises(ValueError, match=words):
    _open(f'tar:{root}')
  if images:
    source = _open(f'tar:{root}', skip_damaged=True)
    assert source.info.splits == {'train': images}
    assert len(source.others) == 1


def test_links_are_reported_and_the_files_behind_them_are_read(tmp_path):
  root = _write(tmp_path / 'x', dict.fromkeys(['1.jpg', '3.jpg'], b'image'))
  (root / '2.jpg').symlink_to('1.jpg')
  with tarfile.open(root / 'dog.tar', 'w') as tar:
    for name in ('1.jpg', '2.jpg', '3.jpg'):
      tar.add(root / name, name)
  with pytest.raises(ValueError, match=r'1 links .* 2\.jpg.*dereference'):
    _open(f'tar:{root}')
  source = _open(f'tar:{root}', skip_damaged=True)
  assert source.read('train', 1).image == b'image'
  assert source.info.splits == {'train': 2}


@pytest.mark.parametrize(
  'files, path, words',
  [
    ({}, '', 'expected a file'),
    ({'a.tar': _files('dog/1.txt')}, '', 'no image'),
    ({'a.tar.gz': gzip.compress(b'')}, '', 'a.tar.gz is compressed.*gunzip'),
    ({'a.tar': gzip.compress(b'')}, '', 'a.tar is compressed.*gunzip'),
    ({'labels.csv.gz': gzip.compress(b'')}, '/labels.csv.gz', 'is compressed'),
  ],
)
def test_wrong_layouts(tmp_path, files, path, words):
  _write(tmp_path / 'x', files)
  with pytest.raises(ValueError, match=words):
    _open(f'tar:{tmp_path}/x{path}')


def test_a_remote_tar_file():
  content = tar_file(_files('dog/1.jpg', 'cat/2.jpg'))
  fsspec.filesystem('memory').pipe_file('/remote/a.tar', content)
  source = _open('tar:memory://remote/a.tar')
  assert source.info.is_remote
  assert source.read('train', 1).image == b'bytes of cat/2.jpg'
