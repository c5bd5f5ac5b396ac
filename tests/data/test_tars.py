"""Guards `tar:` and `wds:`: which files are records, and their classes."""

import collections
import gzip
import io
import json
import os
import pathlib
import pickle
import subprocess
import tarfile

import fsspec
import numpy as np
import pytest

from tests.prepare_data.imagenet21k import tar_file
from vit_jax import data
from vit_jax.data import kept_index, members, tars


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


def _records(spec, split='train'):
  source = data.open_source(spec)
  names = source.info.class_names
  view = data.View(source, split)
  records = [view[i] for i in range(len(view))]
  for i, record in enumerate(records):
    assert (view.label(i), view.name(i)) == (record.label, record.name)
  if source.info.splits.get(split):
    assert source.labels(split).tolist() == [r.label for r in records]
  return [(r.image.decode(), names[r.label]) for r in records]


# tar: -------------------------------------------------------------------------


def test_a_tar_file_per_class(tmp_path):
  root = _write(
    tmp_path / 'x',
    {
      'n02.tar': _files('n02_7.JPEG', 'n02_1.JPEG'),
      'n01.tar': _files('n01_3.JPEG', 'readme.txt', '._n01_3.JPEG'),
    },
  )
  assert _records(f'tar:{root}') == [
    ('bytes of n01_3.JPEG', 'n01'),
    ('bytes of n02_7.JPEG', 'n02'),
    ('bytes of n02_1.JPEG', 'n02'),
  ]
  source = data.open_source(f'tar:{root}')
  assert source.others == {'.txt': 1}
  assert source.name('train', 1) == f'{root}/n02.tar:n02_7.JPEG'
  assert source.size('train', 0) == len('bytes of n01_3.JPEG')


@pytest.mark.parametrize(
  'files, expected',
  [
    # Folders of splits.
    (
      {'val/a.tar': _files('1.jpg'), 'train/b.tar': _files('2.jpg')},
      {'train': ['b'], 'val': ['a']},
    ),
    # Class folders inside one tar file, below some other folder.
    (
      {'all.tar': _files('all/dog/1.jpg', 'all/cat/2.jpg', 'all/cat/3.jpg')},
      {'train': ['dog', 'cat', 'cat']},
    ),
    ({'all.tar': _files('./dog/1.jpg')}, {'train': ['dog']}),
    # Splits and classes inside one tar file.
    (
      {'all.tar': _files('x/train/dog/1.jpg', 'x/test/cat/2.jpg')},
      {'train': ['dog'], 'test': ['cat']},
    ),
    # Tar files inside a tar file, as in the release of winter 2021.
    (
      {
        'winter21_whole.tar': {
          'winter21_whole/n1.tar': tar_file(_files('n1_1.JPEG')),
          'winter21_whole/n2.tar': tar_file(_files('n2_1.JPEG', 'n2_2.JPEG')),
        }
      },
      {'train': ['n1', 'n2', 'n2']},
    ),
  ],
)
def test_layouts(tmp_path, files, expected):
  root = _write(tmp_path / 'x', files)
  source = data.open_source(f'tar:{root}')
  assert source.info.splits == {k: len(v) for k, v in expected.items()}
  for split, classes in expected.items():
    found = _records(f'tar:{root}', split)
    assert [name for _, name in found] == classes
    assert all(content.endswith(('.jpg', '.JPEG')) for content, _ in found)
  if len(files) == 1:  # Also by the path of the file.
    [name] = files
    for split in expected:
      assert _records(f'tar:{root}/{name}', split) == _records(
        f'tar:{root}', split
      )


def test_imagenet_1k(tmp_path, monkeypatch):
  labels = {'datasets/imagenet2012/validation_labels.txt': b'n2\nn1\n'}
  package = _write(tmp_path / 'package', labels)
  monkeypatch.setattr(tars.importlib.resources, 'files', lambda name: package)
  root = _write(
    tmp_path / 'ILSVRC',
    {
      'ILSVRC2012_img_train.tar': {
        'n1.tar': tar_file(_files('n1_1.JPEG')),
        'n2.tar': tar_file(_files('n2_1.JPEG')),
      },
      'ILSVRC2012_img_val.tar': _files('val_2.JPEG', 'val_1.JPEG'),
      'ILSVRC2012_img_test.tar': _files('test_1.JPEG'),
    },
  )
  assert _records(f'tar:{root}') == [
    ('bytes of n1_1.JPEG', 'n1'),
    ('bytes of n2_1.JPEG', 'n2'),
  ]
  assert _records(f'tar:{root}', 'validation') == [
    ('bytes of val_1.JPEG', 'n2'),
    ('bytes of val_2.JPEG', 'n1'),
  ]
  source = data.open_source(f'tar:{root}')
  assert set(source.info.splits) == {'train', 'validation'}
  assert source.others == {'images of the test split, without a class': 1}
  extra = _files('val_1.JPEG', 'val_2.JPEG', 'val_3.JPEG')
  _write(root, {'ILSVRC2012_img_val.tar': extra})
  with pytest.raises(ValueError, match='holds 3 images, but ImageNet-1k has 2'):
    data.open_source(f'tar:{root}')


def test_labels_of_imagenet_come_from_tfds():
  labels = tars._ilsvrc_labels(50_000, '')
  assert set(collections.Counter(labels).values()) == {50}
  assert len(set(labels)) == 1000
  assert labels[:2] == ['n01751748', 'n09193705']  # A sea snake, and the Alps.


def test_long_names(tmp_path):
  name = 'dog/' + 'very' * 60 + '.jpg'
  root = _write(tmp_path / 'x', {'a.tar': _files(name)})
  assert _records(f'tar:{root}') == [(f'bytes of {name}', 'dog')]


def _cut(tmp_path, keep):
  root = _write(tmp_path / 'x', {'a.tar': _files('dog/1.jpg', 'dog/2.jpg')})
  path = root / 'a.tar'
  path.write_bytes(keep(path.read_bytes()))
  return root


@pytest.mark.parametrize(
  'keep, words, images',
  [
    (lambda b: b[: 512 + 5], "ends within 'dog/1.jpg'", 0),
    (lambda b: b[: 1024 + 300], 'after dog/1.jpg', 1),
    (lambda b: b[: 1024 + 512 + 5], "ends within 'dog/2.jpg'", 1),
    (lambda b: b[:2048], 'mark of the end is missing', 2),
    (lambda b: b + tar_file({'dog/3.jpg': b'x'}), 'another tar file', 2),
    (lambda b: b'no tar file' * 99, 'after its beginning', 0),
    (lambda b: b'', 'after its beginning', 0),
  ],
)
def test_damaged_tar_files(tmp_path, keep, words, images):
  root = _cut(tmp_path, keep)
  with pytest.raises(ValueError, match=words):
    data.open_source(f'tar:{root}')
  if images:
    source = data.open_source(f'tar:{root}', allow_damaged=True)
    assert source.info.splits == {'train': images}
    assert len(source.damaged) == 1


def _header(size=b'00000000005\0', kind=b'0', *, name='dog/2.jpg', **pax):
  """Returns a file of 5 bytes, or only a header of another kind."""
  info = tarfile.TarInfo(name)
  info.pax_headers = {k.replace('_', '.'): v for k, v in pax.items()}
  content = bytearray(info.tobuf(tarfile.PAX_FORMAT))
  content[-388:-376], content[-356:-355] = size, kind
  content[-364:-356] = b' ' * 8
  content[-364:-356] = b'%06o\0 ' % sum(content[-512:])
  return bytes(content) + b'bytes'.ljust(512, b'\0')


@pytest.mark.parametrize(
  'broken',
  [
    _header(GNU_sparse_map='a,b'),
    _header(GNU_sparse_map='0,5', GNU_sparse_size='x'),
    _header(GNU_sparse_major='1', GNU_sparse_minor='0'),
    # As many headers that each name the next one.
    _header(kind=b'L') * 1000,
    # A terabyte of them; and sizes that lead back, also to the same header.
    _header(b'\x80' + (2**40).to_bytes(11), b'x'),
    _header(b'\xff' + (2**88 - 2048).to_bytes(11)),
    _header(b'\xff' + (2**88 - 512).to_bytes(11)),
  ],
  ids=['map', 'size', 'no map', 'many', 'large', 'back', 'same'],
)
def test_broken_headers_name_their_file(tmp_path, broken):
  whole = tar_file(_files('dog/1.jpg'))[:1024]
  for first, after in ((b'', 'its beginning'), (whole, 'dog/1')):
    (tmp_path / 'a.tar').write_bytes(first + broken + bytes(1024))
    with pytest.raises(ValueError, match=rf'a\.tar is damaged after {after}'):
      data.open_source(f'tar:{tmp_path}/a.tar')


@pytest.mark.parametrize('depth', [8, 9, 600])
def test_tar_files_in_one_another(tmp_path, depth):
  content = b'image'
  for level in range(depth):
    # All levels take the space of one with a larger header.
    content = tar_file({f'{level}.tar' if level else 'dog/1.jpg': content})
  (tmp_path / 'a.tar').write_bytes(content)
  if depth <= 8:
    assert _records(f'tar:{tmp_path}/a.tar') == [('image', 'dog')]
    return
  with pytest.raises(ValueError, match=r'a\.tar:.* 8 tar files'):
    data.open_source(f'tar:{tmp_path}/a.tar')


def test_a_tar_file_of_classes_names_its_split(tmp_path):
  root = _write(
    tmp_path,
    {
      'birds-train.tar': _files('a/0.png', 'b/1.png'),
      'birds-test.tar': _files('a/2.png'),
      # A class, although its name has the word.
      'test-tube.tar': _files('3.png', 'test-tube/4.png'),
    },
  )
  source = data.open_source(f'tar:{root}/')
  assert source.info.splits == {'test': 1, 'train': 4}
  assert source.info.class_names == ('a', 'b', 'test-tube')
  source = data.open_source(f'tar:{root}/birds-test.tar')
  assert source.info.splits == {'test': 1}


def test_paths_that_go_up_are_not_hidden(tmp_path):
  root = _write(tmp_path, {'x.tar': _files('../birds/a/0.png', 'a/1.png')})
  assert sorted(_records(f'tar:{root}/x.tar')) == [
    ('bytes of ../birds/a/0.png', 'a'),
    ('bytes of a/1.png', 'a'),
  ]


def test_sparse_files_are_told(tmp_path):
  whole = bytes(2**20) + b'end' + bytes(2**20)
  (tmp_path / 'a').mkdir()
  with open(tmp_path / 'a/1.png', 'wb') as f:
    f.truncate(len(whole))
    f.seek(2**20)
    f.write(b'end')
  (tmp_path / 'a/2.png').write_bytes(b'two')
  command = ['tar', '--sparse', '--format=gnu', '-cf', 'x.tar', 'a']
  subprocess.run(command, cwd=tmp_path, check=True)
  with pytest.raises(ValueError, match=r'1 sparse files, such as a/1\.png'):
    data.open_source(f'tar:{tmp_path}/x.tar')
  source = data.open_source(f'tar:{tmp_path}/x.tar', allow_damaged=True)
  assert [source.read('train', 0).image] == [b'two']
  assert source.info.splits == {'train': 1}


@pytest.mark.parametrize('kind', [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_in_place_of_images_are_told(tmp_path, kind):
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode='w') as tar:
    info = tarfile.TarInfo('dog/1.jpg')
    info.size = 5
    tar.addfile(info, io.BytesIO(b'bytes'))
    for name in ('dog/2.jpg', 'dog/notes.txt'):
      link = tarfile.TarInfo(name)
      link.type, link.linkname = kind, 'dog/1.jpg'
      tar.addfile(link)
  (tmp_path / 'a.tar').write_bytes(buffer.getvalue())
  with pytest.raises(ValueError, match='1 links in place of files, such as'):
    data.open_source(f'tar:{tmp_path}/a.tar')


def test_compressed_tar_files_are_refused(tmp_path):
  content = gzip.compress(tar_file(_files('dog/1.jpg')))
  for name in ('a.tar.gz', 'a.tar'):
    root = _write(tmp_path / name.replace('.', '_'), {name: content})
    with pytest.raises(ValueError, match=f'{name} is compressed.*gunzip'):
      data.open_source(f'tar:{root}')


@pytest.mark.parametrize(
  'files, words',
  [
    ({}, 'there is no file'),
    ({'a.tar': _files('dog/1.txt')}, 'no image'),
    ({'x': b''}, 'there is no file'),
    ({'train/a.tar': {}}, 'damaged after its beginning|no image'),
  ],
)
def test_wrong_layouts(tmp_path, files, words):
  _write(tmp_path / 'x', files)
  with pytest.raises(ValueError, match=words):
    data.open_source(f'tar:{tmp_path}/x')


def test_images_without_a_class(tmp_path):
  _write(tmp_path, {'a.tar': _files('1.jpg')})
  with pytest.raises(ValueError, match="1 images of split 'train' lie in"):
    data.open_source(f'tar:{tmp_path}/a.tar')


def test_a_file_that_shrinks_is_an_error_of_reading(tmp_path):
  root = _write(tmp_path / 'x', {'a.tar': _files('dog/1.jpg')})
  source = data.open_source(f'tar:{root}')
  (root / 'a.tar').write_bytes(b'')
  with pytest.raises(OSError, match=r'dog/1\.jpg has 0 of 18 bytes'):
    source.read('train', 0)


# The index --------------------------------------------------------------------


def test_a_large_index_is_kept(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setattr(members, '_KEPT_FROM', 2)
  root = _write(tmp_path / 'x', {'a.tar': _files('dog/1.jpg', 'cat/2.jpg')})
  before = _records(f'tar:{root}')
  source = data.open_source(f'tar:{root}')
  assert isinstance(source._members.start, np.memmap)
  assert len(pickle.dumps(source._members)) < 500
  with monkeypatch.context() as m:
    m.setattr(members, '_walk', None)
    assert _records(f'tar:{root}') == before
    again = pickle.loads(pickle.dumps(source))
    assert again.read('train', 1) == source.read('train', 1)
  # A changed tar file is walked again.
  _write(root, {'a.tar': _files('dog/1.jpg', 'cat/2.jpg', 'cat/3.jpg')})
  assert len(_records(f'tar:{root}')) == 3
  with pytest.raises(ValueError, match='has changed'):
    pickle.loads(pickle.dumps(source))


def test_an_index_that_cannot_be_kept_is_a_warning(
  tmp_path, monkeypatch, caplog
):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  monkeypatch.setattr(members, '_KEPT_FROM', 1)
  root = _write(tmp_path / 'x', {'a.tar': _files('dog/1.jpg')})
  assert _records(f'tar:{root}')
  assert 'Set XDG_CACHE_HOME' in caplog.text


def test_arrays_of_another_state_are_not_loaded(tmp_path):
  folder = str(tmp_path / 'x')
  assert kept_index.keep(folder, {'a': np.arange(3)}, 'one')
  assert kept_index.load(folder, 'one')['a'].tolist() == [0, 1, 2]
  assert kept_index.load(folder, 'two') is None
  before = os.stat(folder).st_ino
  # Readers of an equal state keep their files.
  assert kept_index.keep(folder, {'a': np.arange(3)}, 'one')
  assert os.stat(folder).st_ino == before
  assert kept_index.keep(folder, {'b': np.arange(2)}, 'two')
  assert list(kept_index.load(folder, 'two')) == ['b']


def test_a_remote_tar_file(monkeypatch):
  system = fsspec.filesystem('memory')
  content = tar_file(_files('dog/1.jpg', 'cat/2.jpg'))
  system.pipe_file('/remote/a.tar', content)
  reads = []
  cat_file = type(system).cat_file

  def spy(self, path, start=None, end=None, **options):
    reads.append((start, end))
    return cat_file(self, path, start=start, end=end, **options)

  monkeypatch.setattr(type(system), 'cat_file', spy)
  source = data.open_source('tar:memory://remote/a.tar')
  assert source.info.is_remote
  assert source.read('train', 1).image == b'bytes of cat/2.jpg'
  assert reads == [(1536, 1536 + len(b'bytes of cat/2.jpg'))]


def test_facts_tell_changed_files_apart(tmp_path):
  root = _write(tmp_path / 'x', {'a.tar': _files('dog/1.jpg', 'cat/2.jpg')})
  first = data.open_source(f'tar:{root}').facts('train')
  assert data.open_source(f'tar:{root}').facts('train') == first
  _write(root, {'a.tar': {'dog/1.jpg': b'others', 'cat/2.jpg': b'x'}})
  assert data.open_source(f'tar:{root}').facts('train') != first


# wds: -------------------------------------------------------------------------


def _shards(root, samples, suffix='cls', per_shard=2, name='x-train-{:04}.tar'):
  """Writes samples (image, label) as WebDataset's shards."""
  for start in range(0, len(samples), per_shard):
    files = {}
    for i, (image, label) in enumerate(samples[start : start + per_shard]):
      text = json.dumps({'label': label}) if suffix == 'json' else str(label)
      files[f'{start + i:05}.jpg'] = image
      files[f'{start + i:05}.{suffix}'] = text.encode()
      files[f'{start + i:05}.txt'] = b'a caption'
    _write(root, {name.format(start // per_shard): files})
  return root


@pytest.mark.parametrize('suffix', ['cls', 'json'])
def test_shards(tmp_path, suffix):
  samples = [(b'one', 2), (b'two', 0), (b'three', 2), (b'four', 1), (b'5', 4)]
  root = _shards(tmp_path / 'x', samples, suffix)
  _shards(root, [(b'six', 3)], suffix, name='x-val-{:04}.tar')
  assert _records(f'wds:{root}') == [(b.decode(), str(n)) for b, n in samples]
  assert _records(f'wds:{root}', 'val') == [('six', '3')]
  assert data.open_source(f'wds:{root}').info.num_classes == 5
  (root / 'classes.txt').write_text('ant\nbee\ncat\ndog\nemu\nfox\n')
  source = data.open_source(f'wds:{root}')
  assert source.info.class_names == ('ant', 'bee', 'cat', 'dog', 'emu', 'fox')
  assert source.read('train', 0).label == 2


def test_class_names_as_labels(tmp_path):
  root = _shards(tmp_path / 'x', [(b'one', 'owl'), (b'two', 'auk')])
  assert _records(f'wds:{root}') == [('one', 'owl'), ('two', 'auk')]
  assert data.open_source(f'wds:{root}').info.class_names == ('auk', 'owl')
  (root / 'classes.txt').write_text('auk\nemu\n')
  with pytest.raises(ValueError, match="class 'owl' is not among the 2"):
    data.open_source(f'wds:{root}')


def test_samples_of_neighbouring_shards_with_equal_names_stay_apart(tmp_path):
  for i in range(2):
    _write(tmp_path, {f'{i}.tar': {'1.jpg': b'%d' % i, '1.cls': b'%d' % i}})
  assert _records(f'wds:{tmp_path}') == [('0', '0'), ('1', '1')]


def test_samples_without_an_image_or_a_label(tmp_path):
  _write(tmp_path, {'a.tar': {'1.cls': b'1', '2.jpg': b'x', '2.cls': b'0'}})
  assert _records(f'wds:{tmp_path}') == [('x', '0')]
  assert data.open_source(f'wds:{tmp_path}').others == {'.cls': 1}
  _write(tmp_path, {'a.tar': {'1.jpg': b'1', '1.txt': b'no label'}})
  with pytest.raises(ValueError, match=r'1\.jpg has neither'):
    data.open_source(f'wds:{tmp_path}')
  _write(tmp_path, {'a.tar': {'1.jpg': b'1', '1.json': b'[3]'}})
  with pytest.raises(ValueError, match=r'1\.jpg has neither'):
    data.open_source(f'wds:{tmp_path}')


def test_class_indices_of_samples(tmp_path):
  samples = {'1.jpg': b'1', '1.cls': b'003', '2.jpg': b'2'}
  _write(tmp_path, {'a.tar': {**samples, '2.json': b'{"label": 1.0}'}})
  assert _records(f'wds:{tmp_path}') == [('1', '3'), ('2', '1')]
  # An empty line is a class without a name, and shifts no other.
  (tmp_path / 'classes.txt').write_text('cat\n\nowl\ndog\n')
  assert _records(f'wds:{tmp_path}') == [('1', 'dog'), ('2', '')]


@pytest.mark.parametrize(
  'content, words',
  [
    ({'1.json': b'{"label": [0, 1]}'}, r'1\.json: the label is \[0, 1\]'),
    ({'1.json': b'{"label": '}, r'1\.json: '),
    ({'1.cls': b'\xff'}, r'1\.cls: '),
    ({'1.cls': b'-1'}, r'1\.cls has the label -1; class indices begin at 0'),
    ({'1.cls': b''}, r'1\.jpg has neither'),
    ({'1.cls': b'2147483648'}, 'wds:.* 2147483648 .* ids'),
    ({'1.json': b'{"label": 16777216}'}, 'wds:.* 16777216 .* ids'),
    ({'1.cls': b'9' * 5000}, r'1\.cls: '),
  ],
)
def test_wrong_labels_of_samples(tmp_path, content, words):
  _write(tmp_path, {'a.tar': {'1.jpg': b'1', **content}})
  with pytest.raises(ValueError, match=words):
    data.open_source(f'wds:{tmp_path}')


@pytest.mark.parametrize(
  'path, split',
  [
    ('0001.tar', 'train'),
    ('imagenet1k-validation-00.tar', 'validation'),
    ('train-00001-of-01024.tar', 'train'),
    ('val/0001.tar', 'val'),
    ('data/test-00000-of-00001.parquet', 'test'),
    ('data/part-1.parquet', 'train'),
    ('constraint-1.tar', 'train'),
  ],
)
def test_splits_of_shards(path, split):
  assert tars.shard_split(f'/x/{path}', '/x') == split


def test_a_tar_file_of_python(tmp_path):
  """Other formats of headers than the default of `tar_file`."""
  for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w', format=form) as tar:
      info = tarfile.TarInfo('dög/1.jpg')
      info.size = 5
      tar.addfile(info, io.BytesIO(b'bytes'))
    (tmp_path / 'a.tar').write_bytes(buffer.getvalue())
    assert _records(f'tar:{tmp_path}/a.tar') == [('bytes', 'dög')]
    assert pathlib.Path(tmp_path / 'a.tar').exists()
