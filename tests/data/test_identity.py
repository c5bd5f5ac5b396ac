"""Guards what tells data apart: digests, lists of exclusions, class counts."""

import json
import pathlib
import shutil

import pytest

from vit_jax import data
from vit_jax.data import __main__ as counting
from vit_jax.data import exclusion, retrying
from vit_jax.runtime import errors

# ---- Digests -----------------------------------------------------------------


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
  assert found['contents']['11'] == errors.UNKNOWN
  assert found['train'][SIZES] == errors.UNKNOWN
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


# ---- Lists -------------------------------------------------------------------


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


@pytest.mark.parametrize(
  'excluded, kept',
  [
    ([0, 4, 5, 9], [1, 2, 3, 6, 7, 8]),
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


def test_the_digest_tells_lists_apart_and_the_log_counts(tmp_path, caplog):
  caplog.set_level('INFO', logger='absl')
  birds = data.open_source(f'folder:{_make(tmp_path / "birds")}')
  digests = []
  for excluded in ([1, 4], [1, 3], [1, 4]):
    path = _list(tmp_path, {'train': excluded}, birds)
    source = data.open_source(f'{birds.info.spec},exclude={path}')
    digests.append(data.digest(data.View(source, 'train')))
  one, other, same = (d['train'][exclusion.FACTS]['digest'] for d in digests)
  assert one == same != other
  assert 'names of the files' in digests[0]['train']
  assert 'leaves out 2 of 12' in caplog.text


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'examples': 11}, "'examples' of the split 'train' has 11 in .* 10 in"),
    ({'names': ['train/1']}, "'names' .* 'train/1' in the list, and 'train/3'"),
    ({'excluded': [10], 'names': ['train/10']}, "'excluded' .* 10 .*None"),
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


# ---- Counts ------------------------------------------------------------------


class Labelled(data.Source):
  """Records with given labels and without images."""

  def __init__(self, labels):
    self._labels = labels
    self.info = data.SourceInfo('labelled', {'train': len(labels)}, 'abc')

  def read(self, split, index):
    return data.Record(b'', self._labels[index], f'{split}/{index}')


@pytest.mark.parametrize(
  'labels, counts',
  [
    ([0, 2, 2, 0, 2], [2, 0, 3]),
    # An example counts once for each of its labels.
    ([(0, 1), (), (1, 1), (2,)], [1, 2, 1]),
    ([0, 3], None),
    ([0, -1], None),
  ],
)
def test_counts(labels, counts):
  view = data.View(Labelled(labels), 'train')
  if counts:
    assert counting.class_balance(view).tolist() == counts
    return
  with pytest.raises(ValueError, match=rf'label {labels[1]}.* \[0, 3\)'):
    counting.class_balance(view)


def test_command(command):
  split = 'shuffled(train)[:9]'
  words = '--data=digits:01', f'--split={split}'
  assert command('vit_jax.data', *words).stdout.splitlines() == [
    'digits:01: train (288), test (72)',
    f'{split}: 9 examples; the first is train/233',
    '2 of 2 classes have examples:',
    *('           5  0', '           4  1'),
  ]


# ---- Reading again -----------------------------------------------------------


class _Unsteady(data.Source):
  """Digits whose reads fail a few times."""

  def __init__(self, failures, error):
    self._digits = data.open_source('digits')
    self.info = self._digits.info
    self.failures, self._error = failures, error

  def read(self, split, index):
    if self.failures:
      self.failures -= 1
      raise self._error
    return self._digits.read(split, index)


@pytest.fixture
def pauses(monkeypatch):
  found = []
  monkeypatch.setattr(retrying.time, 'sleep', found.append)
  return found


@pytest.mark.parametrize(
  'error, raised, waits',
  [
    (OSError('no answer'), errors.ReadError, 4),
    (FileNotFoundError(2, 'No such file'), FileNotFoundError, 0),
    (PermissionError(13, 'Permission denied'), PermissionError, 0),
  ],
)
def test_only_errors_that_may_pass_are_waited_for(pauses, error, raised, waits):
  with pytest.raises(raised):
    retrying.read(data.View(_Unsteady(9, error), 'train'), 3)
  assert len(pauses) == waits


def test_a_short_failure_costs_nothing(pauses):
  view = data.View(_Unsteady(2, OSError('no answer')), 'train')
  assert retrying.read(view, 3).name == 'train/3'
  assert pauses == [1, 2]
