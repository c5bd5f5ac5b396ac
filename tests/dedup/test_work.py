"""Guards: blocks, interruptions and parts do not change what is found."""

import re

import numpy as np
import pytest
from etils import epath

from tests.dedup import pictures
from vit_jax.dedup import report, work

ORIGINALS = [pictures.picture(seed) for seed in range(10)]


def _data():
  """Returns 14 images; 3, 7, 12 and 13 are originals 0, 4, 0 and 9."""
  images = [pictures.picture(100 + seed) for seed in range(14)]
  images[3] = ORIGINALS[0][5:113, 3:138]
  images[7] = pictures.jpeg(ORIGINALS[4], 40)
  images[12], images[13] = ORIGINALS[0], pictures.jpeg(ORIGINALS[9])
  images[1] = np.full((40, 40, 3), 90, np.uint8)
  images[5] = b'no image'
  return images


def _job(folder, tests=None, images=None, **settings):
  tests = [ORIGINALS[:6], ORIGINALS[6:]] if tests is None else tests
  return work.Work(
    epath.Path(folder),
    pictures.opened(_data() if images is None else images),
    [pictures.opened(test, f'test{i}') for i, test in enumerate(tests)],
    **{'block_size': 4} | settings,
  )


def _rows(found):
  return found[work.PAIR].values.tolist()


@pytest.fixture(scope='module')
def expected(tmp_path_factory):
  job = _job(tmp_path_factory.mktemp('expected'))
  job.run()
  states = job.states().tolist()
  assert len(states) == 14 + 6 + 4
  assert states.count(work.FLAT) == states.count(work.UNREADABLE) == 1
  found = job.pairs()
  rows = _rows(found[found['correlation'] >= 0.8])
  assert rows == [[3, 0, 0], [7, 0, 4], [12, 0, 0], [13, 1, 3]]
  return found


@pytest.mark.parametrize('done', [1, 7])
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, expected, done):
  """Dies after a number of files, and is started again."""

  write, written = work.files.write_shared, []

  def dying(path, content):
    if len(written) == done:
      raise KeyboardInterrupt
    written.append(path)
    write(path, content)

  job = _job(tmp_path / 'run')
  with monkeypatch.context() as patch:
    patch.setattr(work.files, 'write_shared', dying)
    with pytest.raises(KeyboardInterrupt):
      job.run()
  times = {path: path.stat().mtime for path in written}
  job = _job(tmp_path / 'run')
  job.run()
  assert job.pairs().equals(expected)
  assert {path: path.stat().mtime for path in written} == times
  assert len(list(tmp_path.rglob('*.npz'))) == 4 + 4 + 3


def test_parts_share_the_work(tmp_path, expected):
  missing = []
  for part in (2, 0, 1):
    job = _job(tmp_path / 'run')
    job.run(part, 3)
    missing.append(job.missing())
  assert job.pairs().equals(expected)
  assert missing == [3, 1, 0]


@pytest.mark.parametrize('block_size', [3, 100])
def test_inside_one_set_each_pair_counts_once(tmp_path, block_size):
  images = [*ORIGINALS[:3], ORIGINALS[1][6:114, 15:], ORIGINALS[1]]
  job = _job(tmp_path, [], images, block_size=block_size)
  job.run(1, 2)
  job.run(0, 2)
  assert _rows(job.pairs()) == [[3, 0, 1], [4, 0, 1], [4, 0, 3]]
  assert (job.pairs()['correlation'] > 0.8).all()


def test_another_comparison_is_refused(tmp_path):
  _job(tmp_path)
  for settings in ({'flips': True}, {'max_distance': 7}, {'block_size': 5}):
    with pytest.raises(ValueError, match=f'{next(iter(settings))}: '):
      _job(tmp_path, **settings)
  with pytest.raises(ValueError, match=r'data: .*there'):
    _job(tmp_path, images=ORIGINALS)


def test_blocks_without_pairs_change_nothing(tmp_path, caplog):
  caplog.set_level('INFO', logger='absl')
  job = _job(tmp_path, block_size=2)
  job.run()
  # The time left is told after each block.
  assert len(re.findall(r'\d:\d\d:\d\d', caplog.text)) >= 7 + 5
  found = report.judge(job.pairs(), 0.8)
  assert len(found) == 4
  report.write(job, found)
