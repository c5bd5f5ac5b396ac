"""`tar:PATH` and `wds:PATH`: images inside tar files, read one by one.

`tar:` takes the class from the folder or the tar file that an image lies in:

  PATH/n01440764.tar              with n01440764_10026.JPEG inside: ImageNet-21k
  PATH/train/cat.tar              with 1.jpg inside
  PATH.tar                        with train/cat/1.jpg or cat/1.jpg inside
  PATH/ILSVRC2012_img_train.tar   with a tar file per class inside
  PATH/ILSVRC2012_img_val.tar     with images alone; TFDS knows their classes

`wds:` reads WebDataset's shards: files that share a name up to the first dot
are one example, such as 00017.jpg and 00017.cls.
"""

import array
import collections
import importlib.resources
import itertools
import os
import posixpath
import re
import sys
from collections.abc import Sequence

import numpy as np
from etils import epath

from vit_jax.data import identity, source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing, members
from vit_jax.runtime import json_text, printable

# The tar files of ImageNet-1k -> TFDS's names of the splits.
_ILSVRC = {
  'ILSVRC2012_img_train': 'train',
  'ILSVRC2012_img_val': 'validation',
  'ILSVRC2012_img_test': 'test',
}
_CLASS_FILE = 'classes.txt'
# Split -> the numbers of the records among the members, and their labels.
_Found = dict[str, tuple[Sequence[int], list[int | str]]]


def _no_records() -> _Found:
  return collections.defaultdict(lambda: (array.array('q'), []))


class _Archived(labels_lib.Numbered):
  """Images in tar files, some of whose members are the records."""

  _KIND = ''

  def __init__(self, path: str, *, allow_damaged: bool = False):
    """Finds the images in the tar files; opens no image.

    Args:
      path: a tar file, or a folder of tar files; local or remote (`gs://`).
      allow_damaged: whether tar files may end early; the images before the
        damage are then the data set.

    Raises:
      ValueError: there are no tar files, or they are not laid out as described;
        a tar file is compressed or damaged.
    """
    spec = f'{self._KIND}:{path}'
    root = os.path.expanduser(path).rstrip('/')
    others = collections.Counter()
    try:
      # Beside tar files in a folder, other .gz files are no shards.
      archives = (
        [root]
        if root.lower().endswith('.gz')
        else listing.shards(root, ('.tar', '.tar.gz', '.tgz'))
      )
      self._members = members.find(archives)
      self.damaged = tuple(self._members.damaged)
      if self.damaged and not allow_damaged:
        listed = '\n  '.join(self.damaged[:20])
        raise ValueError(
          f'{len(self.damaged)} tar file(s) are damaged. Copy or download them'
          f' again.\n  {listed}'
        )
      found, names = self._find(root, others)
      if not found:
        raise ValueError(
          f'{len(archives):,} tar file(s) hold {len(self._members.names):,}'
          ' files, but no image. The suffixes of images are:'
          f' {" ".join(listing.SUFFIXES)}.'
        )
    except ValueError as error:
      raise ValueError(f'{spec}: {error}') from error
    # Split -> the members that are its records.
    self._rows = {
      split: np.array(found[split][0], np.int64) for split in sorted(found)
    }
    super().__init__(
      spec,
      {split: found[split][1] for split in self._rows},
      names,
      is_remote=listing.is_remote(root),
    )
    self.others = others
    listing.warn(spec, others)

  def _find(
    self, root: str, others: collections.Counter
  ) -> tuple[_Found, Sequence[str] | None]:
    """Finds the records and their labels.

    Args:
      root: the tar file, or the folder.
      others: gets what is no record.

    Returns:
      The records, and the names of the classes if there is a list of them.
    """
    raise NotImplementedError

  def read(self, split: str, index: int) -> source.Record:
    """Reads one file's bytes; its name is TAR_FILE:PATH."""
    row = int(self._rows[split][index])
    return source.Record(
      self._members.read(row),
      self.label(split, index),
      self._members.path(row),
    )

  def name(self, split: str, index: int) -> str:
    """Returns the name as `read` does, without a read."""
    return printable.name(self._members.path(int(self._rows[split][index])))

  def facts(self, split: str) -> dict[str, str]:
    """Returns digests of the files' places, sizes and labels."""
    rows = self._rows[split]
    return {
      'places of the files': identity.short_hash(self._members.start[rows]),
      'sizes of the files': identity.short_hash(self._members.size[rows]),
    } | super().facts(split)


class Tar(_Archived):
  """Images whose class is the folder, or the tar file, that holds them."""

  _KIND = 'tar'

  def _find(self, root, others):
    found = _no_records()
    flat = collections.defaultdict(list)  # Images without a class.
    archives, names = self._members.archives, self._members.names
    prefixes = [_prefix(archive, root) for archive in archives]
    for row, name in enumerate(names):
      if not name.lower().endswith(listing.SUFFIXES):
        others[posixpath.splitext(name)[1].lower() or 'no suffix'] += 1
        continue
      folders = [
        folder.removesuffix('.tar')
        for folder in name.split('/')[:-1]
        if folder not in ('.', '..')
      ]
      number = self._members.archive[row]
      # A tar file that holds folders of classes is no class itself, so its name
      # may state a split, such as birds-test.tar.
      own = os.path.basename(archives[number]).removesuffix('.tar')
      is_class = folders in ([], [own])
      split, folders = _split(
        prefixes[number] + folders,
        'train' if is_class else listing.shard_split(archives[number], root),
      )
      if folders:
        rows, labels = found[split]
        rows.append(row)
        labels.append(sys.intern(folders[-1]))
      else:
        flat[split].append(row)
    for split, rows in flat.items():
      if split not in ('validation', 'test') or split in found:
        raise ValueError(
          f'{len(rows):,} images of split {split!r} lie in no folder of a'
          ' class. Expected a tar file per class, or a folder per class inside'
          ' a tar file.'
        )
    if unknown := len(flat.get('test', ())):
      others['images of the test split, without a class'] = unknown
    if rows := flat.get('validation'):
      rows.sort(key=names.__getitem__)
      found['validation'] = rows, _ilsvrc_labels(len(rows))
    return found, None


class WebDataset(_Archived):
  """Images and labels in WebDataset's shards.

  The label is what NAME.cls holds: a class index, or a class name. Without that
  file, it is `label` (or `cls`) of NAME.json. The class names are the lines of
  classes.txt beside the shards; without it, the names or numbers that occur.
  """

  _KIND = 'wds'

  def _find(self, root, others):
    found = _no_records()
    archives, names = self._members.archives, self._members.names
    splits = [listing.shard_split(archive, root) for archive in archives]

    def sample(row):
      folder, base = posixpath.split(names[row])
      return int(self._members.archive[row]), folder, base.partition('.')[0]

    for (number, _, stem), rows in itertools.groupby(range(len(names)), sample):
      files = {
        posixpath.basename(names[row])[len(stem) :].lower(): row for row in rows
      }
      images = [s for s in files if s.endswith(listing.SUFFIXES)]
      if not images:
        others[' '.join(sorted(files))] += 1
        continue
      # 1.jpg is more likely than 1.mask.png.
      image = files[min(images, key=lambda suffix: suffix.count('.'))]
      chosen, labels = found[splits[number]]
      chosen.append(image)
      labels.append(self._label_of(files, image))
    known = set().union(*(labels for _, labels in found.values()))
    numbers = all(label.isdecimal() for label in known)
    if numbers:
      known = set(map(int, known))
      found = {
        split: (rows, [*map(int, labels)])
        for split, (rows, labels) in found.items()
      }
    beside = (
      epath.Path(folder) / _CLASS_FILE
      for folder in sorted({root, *map(os.path.dirname, archives)})
    )
    file = next((path for path in beside if path.exists()), None)
    if file is None:
      return found, None
    listed = file.read_text().rstrip().split('\n')
    if not numbers:  # Else an empty line is a class without a name.
      listed = list(filter(None, listed))
    if unknown := known.difference(range(len(listed)) if numbers else listed):
      raise ValueError(
        f'the class {min(unknown)!r} is not among the {len(listed):,} of'
        f' {printable.name(str(file))}. Correct the list.'
      )
    return found, listed

  def _label_of(self, files: dict[str, int], image: int) -> str:
    """Returns the label of a sample: a class index, or a name."""
    label, row = None, files.get('.cls', files.get('.json', image))
    path = self._members.path(row)
    try:
      if row != image:
        label = self._members.read(row).decode().strip()
      if row != image and '.cls' not in files:
        facts = json_text.loads(label)
        label = facts.get('label', facts.get('cls'))
        if isinstance(label, float) and label.is_integer():
          label = int(label)
        label = str(label) if type(label) is int else label
    except (ValueError, AttributeError) as error:
      raise ValueError(f'{path}: {error}') from error
    if not label or type(label) is not str or re.fullmatch(r'-\d+', label):
      raise ValueError(
        f'{path} has the label {label!r}; expected a class index from 0, or a'
        ' name, in a .cls file, or in a .json file as label or cls. Beside it'
        f' are {sorted(files)}.'
      )
    return str(int(label)) if label.isdecimal() else label


def _prefix(archive: str, root: str) -> list[str]:
  """Returns the folders of a tar file below the root, and its own name."""
  inside = [] if archive == root else archive[len(root) :].strip('/').split('/')
  if inside:
    inside[-1] = inside[-1].removesuffix('.tar')
  elif (name := os.path.basename(archive).removesuffix('.tar')) in _ILSVRC:
    inside = [name]
  return inside


def _split(folders: list[str], otherwise: str) -> tuple[str, list[str]]:
  """Returns the split that folders name, or the other, and what follows."""
  for i, folder in enumerate(folders):
    if folder in _ILSVRC:
      return _ILSVRC[folder], folders[i + 1 :]
    if folder in listing.SPLITS:
      return folder, folders[i + 1 :]
  return otherwise, folders


def _ilsvrc_labels(images: int) -> list[str]:
  """Returns the classes (WordNet ids) of ImageNet's validation images."""
  folder = importlib.resources.files('tensorflow_datasets')
  text = folder / 'datasets/imagenet2012/validation_labels.txt'
  names = text.read_text().split()
  if images != len(names):
    raise ValueError(
      f'ILSVRC2012_img_val.tar holds {images:,} images, but ImageNet-1k has'
      f' {len(names):,} for validation. Copy or download it again.'
    )
  return names
