"""Recognises released data sets by their numbers of classes and images.

Sources: the data sets' own pages and papers; ImageNet-21K-P: Ridnik et al.,
arXiv:2104.10972.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

_WORDNET = re.compile(r'n\d{8}')


@dataclasses.dataclass(frozen=True)
class Release:
  """A released data set.

  Attributes:
    name: what it is called.
    classes: number of classes.
    splits: split -> number of images, for splits whose number is known.
    note: what users should know of it.
  """

  name: str
  classes: int
  splits: Mapping[str, int]
  note: str = ''


_PAPER_21K = (
  'The paper speaks of 14M images and 21k classes. Its authors have since'
  ' quoted 12.4M training images, and their code holds out the first 51,200; no'
  ' source explains the difference, so steps per epoch are reckoned from the'
  ' images that are here. Their heads have 21,843 outputs, two more than this'
  ' release has classes: the two have no images.'
)
RELEASES = (
  Release(
    *('ImageNet-1k (ILSVRC 2012)', 1000),
    {'train': 1_281_167, 'validation': 50_000, 'val': 50_000},
  ),
  Release(
    *('ImageNet-21k, release of fall 2011', 21_841, {'train': 14_197_122}),
    _PAPER_21K,
  ),
  Release(
    *('ImageNet-21k, release of winter 2021', 19_167, {}),
    'It lacks 2,674 classes of the release of fall 2011, which the paper used;'
    ' most of them are kinds of persons. A head of a released checkpoint has'
    ' 21,843 outputs and does not fit.',
  ),
  Release(
    'ImageNet-21K-P of fall 2011', 11_221, {}, 'Rare classes are left out.'
  ),
  Release(
    'ImageNet-21K-P of winter 2021', 10_450, {}, 'Rare classes are left out.'
  ),
  Release('CIFAR-10', 10, {'train': 50_000, 'test': 10_000}),
  Release('CIFAR-100', 100, {'train': 50_000, 'test': 10_000}),
  Release('Oxford Flowers-102', 102, {'train': 1020, 'test': 6149}),
  Release('Oxford-IIIT Pet', 37, {'train': 3680, 'test': 3669}),
)
# The fewest classes of a set that is compared with the sizes of ImageNet-21k.
_LARGE = 2000
# The part of classes that a copy may lack and still pass for a release.
_NEAR = 0.05


def is_imagenet21k(class_names: Sequence[str]) -> bool:
  """Returns whether classes are many of WordNet's synsets."""
  return len(class_names) > _LARGE and _are_synsets(class_names)


def explain(class_names: Sequence[str], found: Mapping[str, int]) -> list[str]:
  """Says which release a data set is, and in what it differs.

  Args:
    class_names: all classes.
    found: split -> number of images that were found, unreadable ones included.

  Returns:
    Sentences; none if nothing is known of such a data set.
  """
  classes = len(class_names)
  synsets = _are_synsets(class_names)
  for release in RELEASES:
    known = {s: n for s, n in release.splits.items() if s in found}
    same = all(found[split] == n for split, n in known.items())
    named = synsets and release.name.startswith('ImageNet')
    if release.classes != classes or not (named or (known and same)):
      continue
    lines = [f'This is {release.name}: {classes:,} classes.']
    lines += [
      f'Split {split!r} has {found[split]:,} images, and {n:,} in the release.'
      f' {_difference(found[split] - n)}'
      for split, n in known.items()
      if found[split] != n
    ]
    return lines + [release.note] * bool(release.note)
  if not synsets:
    return []
  nearest = min(RELEASES[:5], key=lambda r: abs(r.classes - classes))
  difference = nearest.classes - classes
  if abs(difference) > _NEAR * nearest.classes:
    return []
  return [
    f'These {classes:,} WordNet synsets are no known release. The nearest is'
    f' {nearest.name}, with {nearest.classes:,} classes:'
    f' {abs(difference):,} are {"missing" if difference > 0 else "too many"}.'
    ' A download that has ended early often lacks the last tar files.',
    *[nearest.note] * bool(nearest.note),
  ]


def _difference(more: int) -> str:
  if more < 0:
    return f'{-more:,} are missing: look for tar files that ended early.'
  return f'{more:,} are too many: look for files that were added or copied.'


def _are_synsets(class_names: Sequence[str]) -> bool:
  return all(map(_WORDNET.fullmatch, class_names))
