"""Writes the pairs, the lists of exclusions and a page, from all blocks.

A pair is a near-duplicate from `min_correlation` on. This needs no image to be
compared again, so another threshold takes a second.
"""

import collections
import pathlib

import numpy as np
import pandas as pd

from vit_jax import pages
from vit_jax.data import exclusion, retrying
from vit_jax.data.ops import decoding
from vit_jax.dedup import sets, work
from vit_jax.runtime import errors
from vit_jax.workdir import files

PAIRS, EXCLUDE, PAGE = 'pairs.csv', 'exclude.json', 'pairs.html'
# Pairs so little below the threshold are shown, but not excluded.
NEAR_MISS = 0.1
# The most pairs of each kind on the page.
_SHOWN = 300
COLUMNS = [
  *('index', 'name', 'test', 'test_index', 'test_name', 'kind'),
  *('correlation', 'distance'),
]


def judge(pairs: pd.DataFrame, min_correlation: float) -> pd.DataFrame:
  """Decides which pairs are near-duplicates.

  Args:
    pairs: see `work.Work.pairs`.
    min_correlation: the least correlation of a near-duplicate.

  Returns:
    Pairs with a `kind`, 'duplicate' or 'near miss', the most doubtful of each
    kind first.
  """
  above = pairs['correlation'].astype(float) - min_correlation
  kinds = np.where(above >= 0, 'duplicate', 'near miss')
  found = pairs.assign(kind=kinds, order=above.abs())[above >= -NEAR_MISS]
  return found.sort_values(['kind', 'order', 'index'], ignore_index=True)


def excluded(found: pd.DataFrame, *, inside: bool) -> set[int]:
  """Returns the images of the data to leave out.

  Inside one set, the first of several equal images stays: an image is left out
  if an earlier image that stays is its near-duplicate.
  """
  twins = found[found['kind'] == 'duplicate']
  if not inside:
    return set(twins['index'].tolist())
  out: set[int] = set()
  for index, other in sorted(twins[['index', 'test_index']].values.tolist()):
    if other not in out:
      out.add(index)
  return out


def write(job: work.Work, found: pd.DataFrame) -> list[str]:
  """Writes `pairs.csv`, the lists of exclusions and `pairs.html`.

  Args:
    job: the work whose pairs these are.
    found: see `judge`.

  Returns:
    Lines that sum up what was found.
  """
  kinds = collections.Counter(found['kind'])
  states = job.states().tolist()
  lines = [
    f'{len(states):,} images, of which {states.count(work.FLAT):,} are nearly'
    f' of one colour and {states.count(work.UNREADABLE):,} unreadable: these'
    ' are not compared.'
  ]
  for number, test in enumerate(job.tests):
    of_test = (found['kind'] == 'duplicate') & (found['test'] == number)
    twins = set(found['test_index'][of_test].tolist())
    file = f'exclude_test{f"_{number + 1}" * (len(job.tests) > 1)}.json'
    exclusion.write(job.folder / file, test.view.source, test.places(twins))
    lines.append(
      f'{test.spec}, {test.view.split}: {len(twins):,} of {len(test):,} images'
      f' have near-duplicates: {file}'
    )
  images, out = job.images, excluded(found, inside=not job.tests)
  exclusion.write(job.folder / EXCLUDE, images.view.source, images.places(out))
  lines += [
    f'{images.spec}, {images.view.split}: {len(out):,} of {len(images):,}'
    f' images to leave out: {EXCLUDE}',
    f'{kinds["duplicate"]:,} pairs are near-duplicates;'
    f' {kinds["near miss"]:,} nearly are, and are not left out.',
  ]
  _write_pairs(job, found, lines)
  return lines


def _write_pairs(job: work.Work, found: pd.DataFrame, lines: list[str]) -> None:
  """Writes the table, and the page with the first pairs of each kind."""
  queries = list(job.queries.values())
  places = zip(found['test'], found['test_index'], strict=True)
  found = found.assign(
    name=[job.images.view.name(index) for index in found['index']],
    test_name=[queries[test].view.name(index) for test, index in places],
  )
  table = found.assign(test=found['test'] + 1)[COLUMNS]
  text = table.to_csv(index=False, lineterminator='\n', float_format='%.4f')
  files.write_shared(job.folder / PAIRS, text.encode())
  rows = found.groupby('kind').head(_SHOWN).to_dict('records')
  for row in rows:
    row['pictures'] = [
      (row['test_name'], _picture(queries[row['test']], row['test_index'])),
      (row['name'], _picture(job.images, row['index'])),
    ]
  template = pathlib.Path(__file__).with_name('page.html')
  text = pages.render(template, lines=lines, rows=rows)
  files.write_shared(job.folder / PAGE, text.encode())


def _picture(images: sets.Set, index: int) -> str:
  """Returns an image for the page; '' if it cannot be read."""
  try:
    image = retrying.read(images.view, index).image
    colours = decoding.decode(image, 3, upright=images.upright)
    return pages.small_picture(colours)
  except (ValueError, OSError, errors.ReadError):
    return ''
