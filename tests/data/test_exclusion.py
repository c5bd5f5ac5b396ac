"""Guards lists of examples that a data spec leaves out."""

import json
import pathlib

import cv2
import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import exclusion


class Numbers(data.Source):
  """A source of ten numbered records without cheap labels."""

  info = data.SourceInfo('numbers', {'train': 10, 'test': 4}, ('a', 'b'))

  def read(self, split, index):
    return data.Record(b'', index, f'{split}/{index}')


def _list(tmp_path, excluded, whole=None):
  path = tmp_path / 'exclude.json'
  exclusion.write(path, whole or Numbers(), excluded)
  return str(path)


def _edit(path, **changes):
  content = json.loads(pathlib.Path(path).read_text())
  content['splits']['train'] |= changes
  pathlib.Path(path).write_text(json.dumps(content))


@pytest.fixture
def birds(tmp_path):
  """A folder with the classes robin (3 images) and wren (2 images)."""
  for name in ('robin/a', 'robin/b', 'robin/c', 'wren/a', 'wren/b'):
    path = tmp_path / 'birds' / 'train' / f'{name}.png'
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((4, 4, 3), np.uint8))
  return data.open_source(f'folder:{tmp_path}/birds')


def test_a_spec_is_split_at_its_list():
  assert exclusion.split('tfds:cifar10') == ('tfds:cifar10', '')
  assert exclusion.split('folder:/a,b,exclude=gs://c/d.json') == (
    'folder:/a,b',
    'gs://c/d.json',
  )
  assert exclusion.join('digits', 'f.json') == 'digits,exclude=f.json'
  assert exclusion.join('digits', '') == 'digits'


@pytest.mark.parametrize(
  'excluded, kept',
  [
    ([0, 4, 5, 9], [1, 2, 3, 6, 7, 8]),
    ([7], [0, 1, 2, 3, 4, 5, 6, 8, 9]),
    ([], list(range(10))),
    ([0, 1, 2, 3, 4, 5, 6, 7, 8], [9]),
  ],
)
def test_the_others_keep_their_order(tmp_path, excluded, kept):
  source = exclusion.Excluding(
    Numbers(), _list(tmp_path, {'train': excluded[::-1]})
  )
  assert source.info.splits == {'train': len(kept), 'test': 4}
  size = range(len(kept))
  assert [source.read('train', i).label for i in size] == kept
  assert [source.label('train', i) for i in size] == kept
  assert [source.name('train', i) for i in size] == [f'train/{i}' for i in kept]
  assert source.read('test', 3).name == 'test/3'


def test_the_digest_tells_lists_apart_and_counts(tmp_path, birds):
  digests = []
  for excluded in ([1, 4], [1, 3], [1, 4]):
    path = _list(tmp_path, {'train': excluded}, birds)
    source = data.open_source(f'{birds.info.spec},exclude={path}')
    digests.append(data.digest(data.View(source, 'train')))
  one, other, same = (d['train'][exclusion.FACTS]['digest'] for d in digests)
  assert one == same != other
  assert 'names of the files' in digests[0]['train']
  assert exclusion.note(digests[0]) == '2 of 5 excluded by exclude.json'
  assert exclusion.note(data.digest(data.View(birds, 'train'))) == ''


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'examples': 11}, "'examples' of the split 'train' has 11 in .* 10 in"),
    ({'names': ['train/1']}, "'names' .* 'train/1' in the list, and 'train/3'"),
    ({'excluded': [10], 'names': ['train/10']}, "'excluded' .* 10 .*None"),
    ({'excluded': [3, 2], 'names': ['train/3', 'train/2']}, "'excluded' .* 3"),
    # The list may be for a larger data set.
    ({'examples': 90, 'excluded': list(range(10))}, "'examples' .* has 90"),
    (
      {
        'excluded': list(range(10)),
        'names': [f'train/{i}' for i in range(10)],
      },
      'excludes all examples',
    ),
    ({'facts': 'other'}, "'facts' .* 'other'"),
  ],
)
def test_lists_of_other_data_are_refused(tmp_path, changes, message):
  path = _list(tmp_path, {'train': [3]})
  _edit(path, **changes)
  with pytest.raises(ValueError, match=message):
    exclusion.Excluding(Numbers(), path)


def test_files_that_are_no_lists_are_refused(tmp_path):
  with pytest.raises(ValueError, match='There is no list'):
    exclusion.Excluding(Numbers(), str(tmp_path / 'absent.json'))
  path = tmp_path / 'other.json'
  path.write_text('{"splits": {}}')
  with pytest.raises(ValueError, match='no list of exclusions'):
    exclusion.Excluding(Numbers(), str(path))
  path = _list(tmp_path, {'test': [0]})
  content = pathlib.Path(path).read_text().replace('"test": {', '"val": {')
  (tmp_path / 'exclude.json').write_text(content)
  with pytest.raises(ValueError, match=r"'val', .* \['test', 'train'\]\. Comp"):
    exclusion.Excluding(Numbers(), path)


def test_further_keys_of_a_list_are_ignored(tmp_path):
  path = _list(tmp_path, {'train': [3]})
  _edit(path, comment='by hand')
  source = exclusion.Excluding(Numbers(), path)
  assert source.info.splits == {'train': 9, 'test': 4}
