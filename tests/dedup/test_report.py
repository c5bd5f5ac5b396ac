"""Guards: pairs become lists of exclusions, a table and a page."""

import csv
import html.parser

import numpy as np
import pytest
from etils import epath

from tests.dedup import pictures
from vit_jax import data
from vit_jax.data import exclusion
from vit_jax.dedup import page, report, sets, work


def _pairs(*rows):
  keys = ('index', 'test', 'test_index', 'distance', 'view', 'correlation')
  columns = zip(*rows, strict=True) if rows else [()] * len(keys)
  return {k: np.array(c) for k, c in zip(keys, columns, strict=True)}


def _similar(*rows):
  keys = ('index', 'test', 'test_index', 'cosine', 'correlation', 'view')
  return {
    k: np.array(c) for k, c in zip(keys, zip(*rows, strict=True), strict=True)
  }


def test_pairs_are_judged_by_their_correlation():
  pairs = _pairs(
    (4, 0, 1, 9, 0, 0.95),
    (5, 0, 2, 20, 3, 0.8),
    (6, 0, 2, 30, 0, 0.79),
    (7, 0, 2, 30, 0, 0.69),
  )
  found = report.judge(pairs, None, 0.8)
  assert [pair.index for pair in found.duplicates] == [5, 4]
  assert [pair.index for pair in found.near_misses] == [6]
  assert found.candidates == 4
  assert found.duplicates[0].view_name == 'crop(0, 0.1)'
  found = report.judge(pairs, None, 0.69)
  assert [pair.index for pair in found.duplicates] == [7, 6, 5, 4]


def test_features_add_pairs_and_only_pixels_make_duplicates():
  pairs = _pairs((4, 0, 1, 9, 0, 0.5), (5, 0, 1, 9, 0, 0.9))
  similar = _similar(
    (4, 0, 1, 0.99, 0.85, 19), (6, 0, 0, 0.97, 0.9, 0), (7, 0, 0, 0.96, 0.1, 0)
  )
  found = report.judge(pairs, similar, 0.8)
  assert [(p.index, p.correlation) for p in found.duplicates] == [
    *((4, 0.85), (5, 0.9), (6, 0.9)),
  ]
  assert found.duplicates[0].view_name == 'whole, mirrored'
  assert [(p.index, p.kind) for p in found.similar] == [(7, 'similar')]


def test_the_first_of_equal_images_stays():
  """2 is like 1, 3 is like 2 only, 5 is like 3 and 4."""
  rows = ((2, 0, 1), (3, 0, 2), (5, 0, 3), (5, 0, 4))
  found = report.judge(_pairs(*((*r, 0, 0, 0.9) for r in rows)), None, 0.8)
  assert report.excluded(found, inside=True) == [2, 5]
  assert report.excluded(found, inside=False) == [2, 3, 5]


class Shape(html.parser.HTMLParser):
  """Counts elements, and checks that they are closed."""

  def __init__(self, text):
    super().__init__()
    self.open, self.seen = [], []
    self.feed(text)
    assert not self.open

  def handle_starttag(self, tag, attributes):
    self.seen.append(tag)
    if tag not in ('meta', 'img'):
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


@pytest.fixture
def job(tmp_path):
  """Returns finished work: images 1 and 4 of 6 are test images 0 and 2 of 3."""
  tests = [pictures.picture(seed) for seed in range(3)]
  images = [pictures.picture(50 + seed) for seed in range(6)]
  images[1], images[4] = tests[0], pictures.jpeg(tests[2], 30)
  opened = [
    sets.Set(data.View(pictures.Pictures(i, s, n), x), upright=False)
    for i, s, n, x in (
      (images, 'photos <b>', 'train', 'train[1:]'),
      (tests, 'exam', 'test', 'test'),
    )
  ]
  done = work.Work(
    epath.Path(tmp_path / 'dedup'), opened[0], opened[1:], work.Settings()
  )
  done.run()
  return done


def test_lists_name_places_in_whole_splits(job):
  found = report.judge(job.pairs(), None, 0.8)
  lines = report.write(job, found)
  images, tests = (s.view.source for s in (job.images, *job.tests))
  clean = exclusion.Excluding(images, str(job.folder / 'exclude.json'))
  names = [clean.name('train', i) for i in range(4)]
  assert names == ['train/0', 'train/2', 'train/3', 'train/5']
  clean = exclusion.Excluding(tests, str(job.folder / 'exclude_test.json'))
  assert [clean.name('test', 0), clean.info.splits] == ['test/1', {'test': 1}]
  assert lines == [
    '8 images, of which 0 are nearly of one colour and 0 unreadable: these are'
    ' not compared.',
    'exam, test: 2 of 3 images have near-duplicates: exclude_test.json',
    'photos <b>, train[1:]: 2 of 5 images to leave out: exclude.json',
  ]
  rows = list(csv.DictReader((job.folder / 'pairs.csv').open()))
  assert [(r['name'], r['test_name'], r['kind']) for r in rows] == [
    ('train/4', 'test/2', 'duplicate'),
    ('train/1', 'test/0', 'duplicate'),
  ]
  assert float(rows[0]['correlation']) < float(rows[1]['correlation'])


def test_the_page_shows_pairs_the_most_doubtful_first(job):
  pairs = job.pairs()
  pairs['correlation'] = pairs['correlation'].copy()
  pairs['correlation'][0] = 0.75
  found = report.judge(pairs, None, 0.8)
  page.write(job, found, ['a <b> line'], min_correlation=0.8, shown=10)
  text = (job.folder / 'pairs.html').read_text()
  shape = Shape(text)
  assert shape.seen.count('img') == 4
  assert shape.seen.count('h2') == 2
  assert 'a &lt;b&gt; line' in text
  assert 'prefers-color-scheme: dark' in text
  assert 'name="viewport"' in text
  assert '<script src' not in text
  assert 'http' not in text
  page.write(job, found, [], min_correlation=0.8, shown=0)
  assert 'img' not in Shape((job.folder / 'pairs.html').read_text()).seen
