"""Guards: pairs become lists of exclusions, a table and a page."""

import csv

import pandas as pd
import pytest
from etils import epath

from tests.dedup import pictures
from vit_jax.data import exclusion
from vit_jax.dedup import report, work


def _pairs(*rows):
  columns = [*work.PAIR, 'distance', 'view', 'correlation']
  return pd.DataFrame(rows, columns=columns)


def _of_kind(found, kind):
  return found['index'][found['kind'] == kind].tolist()


def test_pairs_are_judged_by_their_correlation():
  pairs = _pairs(
    (4, 0, 1, 9, 0, 0.95),
    (5, 0, 2, 20, 3, 0.8),
    (6, 0, 2, 30, 0, 0.79),
    (7, 0, 2, 30, 0, 0.69),
  )
  found = report.judge(pairs, 0.8)
  assert _of_kind(found, 'duplicate') == [5, 4]
  assert _of_kind(found, 'near miss') == [6]
  assert len(found) == 3
  assert not len(report.judge(_pairs(), 0.8))
  found = report.judge(pairs, 0.69)
  assert _of_kind(found, 'duplicate') == [7, 6, 5, 4]


def test_the_first_of_equal_images_stays():
  """2 is like 1, 3 is like 2 only, 5 is like 3 and 4."""
  rows = ((2, 0, 1), (3, 0, 2), (5, 0, 3), (5, 0, 4))
  found = report.judge(_pairs(*((*r, 0, 0, 0.9) for r in rows)), 0.8)
  assert report.excluded(found, inside=True) == {2, 5}
  assert report.excluded(found, inside=False) == {2, 3, 5}


@pytest.fixture
def job(tmp_path):
  """Returns finished work: images 1 and 4 of 6 are test images 0 and 2 of 3."""
  tests = [pictures.picture(seed) for seed in range(3)]
  images = [pictures.picture(50 + seed) for seed in range(6)]
  images[1], images[4] = tests[0], pictures.jpeg(tests[2], 30)
  done = work.Work(
    epath.Path(tmp_path / 'dedup'),
    pictures.opened(images, 'photos <b>', selected='train[1:]'),
    [pictures.opened(tests, 'exam', 'test')],
  )
  done.run()
  return done


def test_lists_name_places_in_whole_splits(job):
  lines = report.write(job, report.judge(job.pairs(), 0.8))
  images, tests = (s.view.source for s in (job.images, *job.tests))
  clean = exclusion.Excluding(images, str(job.folder / 'exclude.json'))
  names = [clean.name('train', i) for i in range(4)]
  assert names == ['train/0', 'train/2', 'train/3', 'train/5']
  clean = exclusion.Excluding(tests, str(job.folder / 'exclude_test.json'))
  assert [clean.name('test', 0), clean.info.splits] == ['test/1', {'test': 1}]
  assert '2 of 3 images' in lines[1]
  assert '2 of 5 images' in lines[2]
  rows = list(csv.DictReader((job.folder / 'pairs.csv').open()))
  assert [(r['name'], r['test_name'], r['kind']) for r in rows] == [
    ('train/4', 'test/2', 'duplicate'),
    ('train/1', 'test/0', 'duplicate'),
  ]
  assert float(rows[0]['correlation']) < float(rows[1]['correlation'])


def test_the_page_shows_pairs(job):
  pairs = job.pairs()
  pairs.loc[0, 'correlation'] = 0.75
  report.write(job, report.judge(pairs, 0.8))
  text = (job.folder / 'pairs.html').read_text()
  assert (text.count('<img '), text.count('<tr>')) == (4, 2)
  assert 'photos &lt;b&gt;' in text
  assert '0.750' in text
  assert 'http' not in text
