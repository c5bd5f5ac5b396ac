"""Guards: blocks, interruptions and parts do not change what is found."""

import numpy as np
import pytest
from etils import epath

from tests.dedup import pictures
from vit_jax import data
from vit_jax.dedup import pairing, sets, stored, work

ORIGINALS = [pictures.picture(seed) for seed in range(10)]


def _set(images, spec='pictures'):
  view = data.View(pictures.Pictures(images, spec), 'train')
  return sets.Set(view, upright=False)


def _data():
  """Returns 14 images; 3, 7 and 12 are changed originals 0, 4 and 0."""
  images = [pictures.picture(100 + seed) for seed in range(14)]
  images[3] = ORIGINALS[0][5:113, 3:138]
  images[7] = pictures.jpeg(ORIGINALS[4], 40)
  images[12] = ORIGINALS[0]
  images[1] = np.full((40, 40, 3), 90, np.uint8)
  images[5] = b'no image'
  return images


def _job(folder, tests=None, images=None, **settings):
  settings = {'block_size': 4, 'threads': 2} | settings
  tests = [ORIGINALS[:6], ORIGINALS[6:]] if tests is None else tests
  return work.Work(
    epath.Path(folder),
    _set(_data() if images is None else images),
    [_set(test, f'test{i}') for i, test in enumerate(tests)],
    work.Settings(**settings),
  )


def _found(job):
  found = job.pairs()
  return {
    key: found[key].tolist()
    for key in ('index', 'test', 'test_index', 'distance', 'view')
  } | {'correlation': found['correlation'].round(4).tolist()}


@pytest.fixture
def expected(tmp_path):
  job = _job(tmp_path / 'expected')
  job.run()
  return _found(job)


def test_duplicates_of_several_test_sets_are_found(tmp_path):
  tests = [ORIGINALS[:4], [*ORIGINALS[4:], ORIGINALS[0]]]
  job = _job(tmp_path, tests)
  job.run()
  found = job.pairs()
  kept = found['correlation'] >= 0.8
  assert {
    key: found[key][kept].tolist() for key in ('index', 'test', 'test_index')
  } == {
    'index': [3, 3, 7, 12, 12],
    'test': [0, 1, 1, 0, 1],
    'test_index': [0, 6, 0, 0, 6],
  }
  states = job.states()
  assert list(states) == ['test_1', 'test_2', 'data']
  assert states['data'].tolist() == [
    stored.FLAT if i == 1 else stored.UNREADABLE if i == 5 else stored.HASHED
    for i in range(14)
  ]
  assert job.unreadable() == 1


@pytest.mark.parametrize('done', [1, 5, 7])
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, expected, done):
  """Dies after a number of files, and is started again."""

  class DeathError(Exception):
    pass

  save, saved = stored.save, []

  def dying(path, columns):
    if len(saved) == done:
      raise DeathError
    saved.append(path)
    save(path, columns)

  monkeypatch.setattr(stored, 'save', dying)
  with pytest.raises(DeathError):
    _job(tmp_path / 'run').run()
  monkeypatch.setattr(
    stored, 'save', lambda path, c: (saved.append(path), save(path, c))
  )
  job = _job(tmp_path / 'run')
  job.run()
  assert _found(job) == expected
  assert len(saved) == len(set(saved)) == 4 + 4 + 3  # No block twice.


@pytest.mark.parametrize('order', [(0, 1, 2), (2, 0, 1)])
def test_parts_share_the_work(tmp_path, monkeypatch, expected, order):
  blocks = []
  compute = pairing.of_block
  monkeypatch.setattr(
    pairing, 'of_block', lambda job, n: blocks.append(n) or compute(job, n)
  )
  missing = []
  for part in order:
    job = _job(tmp_path / 'run')
    job.run(part, 3)
    missing.append(job.missing())
  assert _found(job) == expected
  assert sorted(blocks) == [0, 1, 2, 3]
  assert missing[-1] == 0
  assert missing[0] == (2 if order[0] == 0 else 3)


@pytest.mark.parametrize('block_size', [3, 100])
def test_inside_one_set_each_pair_counts_once(tmp_path, block_size):
  images = [*ORIGINALS[:3], ORIGINALS[1][6:114, 15:], ORIGINALS[1]]
  job = _job(tmp_path, [], images, block_size=block_size)
  job.run(1, 2)
  job.run(0, 2)
  found = job.pairs()
  pairs = list(zip(found['index'], found['test_index'], strict=True))
  assert pairs == [(3, 1), (4, 1), (4, 3)]
  assert (found['correlation'] > 0.8).all()


def test_flips_are_found_on_request(tmp_path):
  images = [np.ascontiguousarray(ORIGINALS[2][:, ::-1])]
  job = _job(tmp_path / 'without', images=images)
  job.run()
  assert not len(job.pairs()['index'])
  job = _job(tmp_path / 'with', images=images, flips=True)
  job.run()
  assert job.pairs()['test_index'].tolist() == [2]
  assert job.pairs()['view'].tolist() == [19]


def test_another_comparison_is_refused(tmp_path):
  _job(tmp_path)
  _job(tmp_path)
  for settings in ({'flips': True}, {'max_distance': 7}, {'block_size': 5}):
    with pytest.raises(ValueError, match=f'{next(iter(settings))}='):
      _job(tmp_path, **settings)
  with pytest.raises(ValueError, match=r'data=.*there'):
    _job(tmp_path, images=ORIGINALS)
  (tmp_path / 'other' / 'hashes').mkdir(parents=True)
  with pytest.raises(ValueError, match='hashes without settings'):
    _job(tmp_path / 'other')
