"""Writes the pairs and the lists of exclusions, from the results of all blocks.

A pair is a near-duplicate from `min_correlation` on. This needs no image to be
compared again, so another threshold takes a second.
"""

import csv
import dataclasses
import io
from collections.abc import Sequence

import numpy as np

from vit_jax.data import exclusion
from vit_jax.dedup import hashing, published, stored, work
from vit_jax.workdir import files

PAIRS, EXCLUDE = 'pairs.csv', 'exclude.json'
# Pairs so little below the threshold are shown, but not excluded.
NEAR_MISS = 0.1
COLUMNS = (
  *('index', 'name', 'test', 'test_index', 'test_name', 'kind'),
  *('correlation', 'distance', 'cosine', 'view'),
)


@dataclasses.dataclass
class Pair:
  """Two images.

  Attributes:
    index: of the image in the data.
    test: number of the set of the other image; 0 inside one set.
    test_index: of the other image there.
    kind: 'duplicate', or 'similar' if only the features match.
    correlation: of details, see `matching.correlation`.
    distance: of the hashes in bits; None if only features were compared.
    cosine: of the features; None if only hashes were compared.
    view: number of the view of the other image.
  """

  index: int
  test: int
  test_index: int
  kind: str
  correlation: float
  distance: int | None
  cosine: float | None
  view: int

  @property
  def view_name(self) -> str:
    mirrored, number = divmod(self.view, len(hashing.VIEWS))
    name = hashing.VIEWS[number].name
    return f'{name}, mirrored' if mirrored else name


@dataclasses.dataclass
class Found:
  """All pairs, the most doubtful first.

  Attributes:
    duplicates: pairs that match.
    near_misses: pairs that nearly match.
    similar: pairs with similar features that do not match.
    candidates: number of pairs with similar hashes.
  """

  duplicates: list[Pair]
  near_misses: list[Pair]
  similar: list[Pair]
  candidates: int


def judge(
  pairs: dict[str, np.ndarray],
  similar: dict[str, np.ndarray] | None,
  min_correlation: float,
) -> Found:
  """Decides which pairs are near-duplicates.

  Args:
    pairs: see `work.Work.pairs`.
    similar: see `similar.find`; None without features.
    min_correlation: the least correlation of a near-duplicate.
  """
  by_images: dict[tuple, Pair] = {}
  for row in zip(*(pairs[key].tolist() for key in _OF_HASHES), strict=True):
    *images, distance, view, correlation = row
    by_images[tuple(images)] = Pair(
      *(*images, 'duplicate', correlation, distance, None, view)
    )
  for row in _rows_of_features(similar):
    *images, cosine, correlation, view = row
    pair = by_images.get(tuple(images))
    if pair is None:
      pair = Pair(*(*images, 'similar', correlation, None, cosine, view))
      by_images[tuple(images)] = pair
    pair.cosine = cosine
    if correlation > pair.correlation:
      pair.correlation, pair.view = correlation, view
  found = Found([], [], [], len(pairs['index']))
  for pair in by_images.values():
    if pair.correlation >= min_correlation:
      pair.kind = 'duplicate'
      found.duplicates.append(pair)
    elif pair.cosine is not None:
      pair.kind = 'similar'
      found.similar.append(pair)
    elif pair.correlation >= min_correlation - NEAR_MISS:
      pair.kind = 'near miss'
      found.near_misses.append(pair)
  found.duplicates.sort(key=lambda pair: (pair.correlation, pair.index))
  found.near_misses.sort(key=lambda pair: (-pair.correlation, pair.index))
  found.similar.sort(key=lambda pair: (-pair.cosine, pair.index))
  return found


_OF_HASHES = ('index', 'test', 'test_index', 'distance', 'view', 'correlation')


def _rows_of_features(similar: dict[str, np.ndarray] | None) -> list[tuple]:
  columns = [] if similar is None else [c.tolist() for c in similar.values()]
  return list(zip(*columns, strict=True))


def excluded(found: Found, *, inside: bool) -> list[int]:
  """Returns the images of the data to leave out, ascending.

  Inside one set, the first of several equal images stays: an image is left out
  if an earlier image that stays is its near-duplicate.
  """
  if not inside:
    return sorted({pair.index for pair in found.duplicates})
  out: set[int] = set()
  for pair in sorted(found.duplicates, key=lambda p: (p.index, p.test_index)):
    if pair.test_index not in out:
      out.add(pair.index)
  return sorted(out)


def write(job: work.Work, found: Found) -> list[str]:
  """Writes `pairs.csv` and the lists of exclusions.

  Returns:
    Lines that sum up what was found.
  """
  _write_pairs(job, found)
  inside = not job.tests
  out = excluded(found, inside=inside)
  path = job.folder / EXCLUDE
  exclusion.write(path, job.images.view.source, job.images.places(out))
  size = len(job.images)
  lines = [_counts(job)]
  if inside:
    lines.append(
      f'{len(found.duplicates):,} pairs of near-duplicates in'
      f' {job.images.spec}.'
    )
  for number, test in enumerate(job.tests):
    twins = {p.test_index for p in found.duplicates if p.test == number}
    file = list_of_test(job.tests, number)
    exclusion.write(
      job.folder / file, test.view.source, test.places(sorted(twins))
    )
    known = published.note(test.spec, job.images.spec, len(test))
    lines.append(
      f'{test.spec}, {test.view.split}: {len(twins):,} of {len(test):,} images'
      f' have near-duplicates{f" ({known})" if known else ""}: {file}'
    )
  lines.append(
    f'{job.images.spec}, {job.images.view.split}: {len(out):,} of'
    f' {size:,} images to leave out: {EXCLUDE}'
  )
  if found.similar:
    lines.append(
      f'{len(found.similar):,} more pairs have similar features only, and are'
      ' not left out.'
    )
  return lines


def list_of_test(tests: Sequence, number: int) -> str:
  """Returns the name of the list of a test set."""
  return f'exclude_test{f"_{number + 1}" * (len(tests) > 1)}.json'


def _counts(job: work.Work) -> str:
  """Returns a line on the images that could not be compared."""
  states = job.states()
  flat, unreadable = (
    sum(int((state == kind).sum()) for state in states.values())
    for kind in (stored.FLAT, stored.UNREADABLE)
  )
  images = sum(map(len, states.values()))
  return (
    f'{images:,} images, of which {flat:,} are nearly of one colour and'
    f' {unreadable:,} unreadable: these are not compared.'
  )


def _write_pairs(job: work.Work, found: Found) -> None:
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(COLUMNS)
  for pair in found.duplicates + found.near_misses + found.similar:
    writer.writerow(
      (
        *(pair.index, job.images.name(pair.index), pair.test + 1),
        *(pair.test_index, job.queries[pair.test].name(pair.test_index)),
        *(pair.kind, f'{pair.correlation:.4f}'),
        '' if pair.distance is None else pair.distance,
        '' if pair.cosine is None else f'{pair.cosine:.4f}',
        pair.view_name,
      )
    )
  files.write_shared(job.folder / PAIRS, text.getvalue().encode())
