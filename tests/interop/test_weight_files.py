"""Guards paths of weights in buckets, and the checks of JSON files."""

import fsspec
import pytest

from tests.interop import tiny
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


@pytest.mark.parametrize('kind', ['npz', 'huggingface', 'run'])
def test_a_class_without_a_name_has_its_number(tmp_path, kind):
  model, names = tiny.vit(), ['ant', '', 'cat', ' ', 'eel']
  to = tmp_path / 'a.npz'
  interop.save_npz(
    to, tiny.params(model), model, image_size=8, class_names=names
  )
  expected = ('ant', 'class 1', 'cat', 'class 3', 'eel')
  if kind != 'npz':
    to, source = tmp_path / kind, to
    convert.convert(str(source), str(to), format_=kind, preprocess='resize')
  if kind == 'run':
    (to / 'class_names.txt').write_text('ant\n\ncat\n \neel\n')
  assert interop.read(to).class_names == expected


def test_a_file_of_class_names(tmp_path):
  path = tmp_path / 'names.txt'
  path.write_text('ant\nbee \x1b\n\n')
  assert weight_files.class_names(path) == ('ant', r'bee \x1b')
  path.write_text('ant\n \nbee\n')
  with pytest.raises(ValueError, match=r'names\.txt: line 2 is blank'):
    weight_files.class_names(path)


@pytest.mark.parametrize(
  'text, message',
  [
    ('[' * 100_000, 'is not readable JSON: Nested too deeply'),
    ('{"a":' + '9' * 5000 + '}', 'is not readable JSON: Exceeds the limit'),
    (b'{"a": "\xff"}', "is not readable JSON: 'utf-8' codec"),
    ('{"a": 1', 'is not readable JSON'),
    ('[1]', r'holds \[1\], expected an object'),
  ],
)
def test_json_that_cannot_be_read(tmp_path, text, message):
  path = tmp_path / 'a.json'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  with pytest.raises(ValueError, match=rf'a\.json {message}'):
    json_files.read(path)


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


def test_all_wrong_values_are_listed():
  kinds = {'a': json_files.COUNT, 'b': json_files.TEXT, 'c': json_files.BOOL}
  with pytest.raises(ValueError) as error:  # noqa: PT011
    json_files.check({'a': '1', 'b': 2, 'c': True}, kinds, 'FILE')
  assert str(error.value) == (
    "FILE is refused: a is '1', expected a whole number of at least 1; b is 2,"
    ' expected text.'
  )
