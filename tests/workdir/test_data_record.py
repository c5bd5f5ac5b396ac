"""Guards: all launches of a run read the same data."""

import json

import pytest

from vit_jax import data
from vit_jax.runtime import errors
from vit_jax.workdir import data_record, files


def _digests(root, **others):
  view = data.View(data.open_source(f'folder:{root}'), 'train')
  return {'training data': data.digest(view), **others}


@pytest.fixture
def images(tmp_path):
  for name in ('a/1.jpg', 'a/2.jpg', 'b/3.jpg'):
    path = tmp_path / 'images/train' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
  return tmp_path / 'images'


def test_data_that_was_changed_is_refused(images, tmp_path):
  data_record.check_same(tmp_path, _digests(images))  # No record yet.
  data_record.write(tmp_path, _digests(images))
  data_record.check_same(tmp_path, _digests(images))
  # They may be moved.
  images = images.rename(tmp_path / 'elsewhere')
  data_record.check_same(tmp_path, _digests(images))
  (images / 'train/b/3.jpg').write_text('b/4.jpg')
  with pytest.raises(ValueError, match='--allow_config_change') as error:
    data_record.check_same(tmp_path, _digests(images))
  assert 'training data: contents: 2: "b/3.jpg ' in str(error.value)


def test_what_could_not_be_read_is_not_compared(images, tmp_path):
  unknown = _digests(images)
  unknown['training data']['contents']['1'] = errors.UNKNOWN
  sizes = unknown['training data']['train']
  sizes['sizes of the files'] = errors.UNKNOWN
  data_record.write(tmp_path, _digests(images))
  data_record.check_same(tmp_path, unknown)


def test_evaluations_are_compared_on_the_same_split_only(images, tmp_path):
  def of(split, examples, dataset='folder:a'):
    part = {'dataset': dataset, 'split': split, 'examples': examples}
    return _digests(images, **{'test: test': part})

  data_record.write(tmp_path, of('test', 5))
  # One that is left out is remembered.
  data_record.write(tmp_path, _digests(images))
  for other in (of('test[:3]', 3), of('test', 3, 'folder:b'), _digests(images)):
    data_record.check_same(tmp_path, other)
  with pytest.raises(ValueError, match='test: test: examples: 3 now, 5 then'):
    data_record.check_same(tmp_path, of('test', 3))


@pytest.mark.parametrize('text', ['{', '[]', '\xff', '[' * 100_000])
def test_a_damaged_record_is_named(images, tmp_path, text):
  path = tmp_path / files.DATA
  path.write_bytes(text.encode('latin-1'))
  with pytest.raises(
    ValueError, match=r'is damaged .*: delete it to accept'
  ) as e:
    data_record.check_same(tmp_path, _digests(images))
  assert str(path) in str(e.value)
  path.write_text(json.dumps({'training data': 5}))
  data_record.check_same(tmp_path, _digests(images))
