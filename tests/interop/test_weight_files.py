"""Guards paths of weights in buckets, and the checks of JSON files."""

import fsspec
import pytest

from vit_jax import convert, interop
from vit_jax.interop import json_files, weight_files


def test_a_bucket_without_its_library(monkeypatch):
  def missing(scheme):
    raise ImportError('Please install gcsfs')

  monkeypatch.setattr(fsspec, 'get_filesystem_class', missing)
  for call in (
    lambda: interop.read('gs://bucket/a.npz'),
    lambda: interop.load_huggingface('gs://bucket/folder', None, 8),
    lambda: interop.save_npz('gs://bucket/a.npz', {}, None),
    lambda: convert.convert('runs/a', 'gs://bucket/a.npz'),
  ):
    with pytest.raises(
      ValueError, match=r'^gs://bucket/.* Please install gcsfs.*jax\[gcs\]"\.$'
    ):
      call()
  assert weight_files.absolute('/a/b').as_posix() == '/a/b'


def test_a_file_of_class_names(tmp_path):
  path = tmp_path / 'names.txt'
  path.write_text('ant\nbee \x1b\n\n')
  assert weight_files.class_names(path) == ('ant', r'bee \x1b')
  path.write_text('ant\n \nbee\n')
  with pytest.raises(ValueError, match=r'names\.txt: line 2 is blank'):
    weight_files.class_names(path)


@pytest.mark.parametrize(
  'kind, good, bad',
  [
    ('COUNT', [1, 2**31 - 1], [0, -1, True, 1.0, '1', 2**31, None]),
    ('SIZE', [4, [4, 8]], [0, [4], [4, 8, 1], [4, 0.5], '4', [], [[4, 8]]]),
    ('POSITIVE', [1, 1e-12], [0, -1.0, 10**400, float('nan'), '1', [1]]),
    ('NUMBERS', [0, [0.5, -1]], [[], [[1]], float('inf'), '1', {}]),
    ('POSITIVES', [0.5, [1, 2]], [0, [1, 0]]),
    ('BOOL', [True, False], [0, 'false', None]),
    ('TEXT', ['', 'a'], [1, None, ['a']]),
    ('TEXTS', [[], ['a']], ['a', [1], None]),
    ('OBJECT', [{}, {'a': 1}], [[], 'a', None]),
    ('OBJECT_OF_TEXTS', [{}, {'a': 'b'}], [{'a': 1}, ['a']]),
  ],
)
def test_kinds(kind, good, bad):
  kind = getattr(json_files, kind)
  for value in good:
    json_files.check({'key': value}, {'key': kind, 'other': kind}, 'FILE')
  for value in bad:
    with pytest.raises(ValueError, match=r'^FILE is refused: key is .*, exp'):
      json_files.check({'key': value}, {'key': kind}, 'FILE')
  json_files.check({'key': None}, {'key': json_files.optional(kind)}, 'FILE')
