"""`tar:PATH` and `wds:PATH`: images inside tar files, which are only prepared.

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
from vit_jax.data.sources import listing
from vit_jax.prepare_data import tar_files
from vit_jax.runtime import json_text, printable

# The tar files of ImageNet-1k -> TFDS's names of the splits.
_ILSVRC = {
  'ILSVRC2012_img_train': 'train',
  'ILSVRC2012_img_val': 'validation',
  'ILSVRC2012_img_test': 'test',
}
# Folders that name a split -> its name.
_SPLITS = {**{name: name for name in listing.SPLITS}, **_ILSVRC}
_CLASS_FILE = 'classes.txt'


class Tars(labels_lib.Numbered):
  """Images in tar files; `others` also names those that are damaged."""

  def __init__(self, kind: str, path: str, *, skip_damaged: bool = False):
    """Finds the images in the tar files; opens no image.

    Args:
      kind: one of `KINDS`.
      path: a tar file, or a folder of tar files; local or remote (`gs://`).
      skip_damaged: whether tar files may end early; the images before the
        damage are then the data set.

    Raises:
      ValueError: there are no tar files, or they are not laid out as described;
        a tar file is compressed or damaged.
    """
    spec = f'{kind}:{path}'
    root = os.path.expanduser(path).rstrip('/')
    others = collections.Counter()
    archives = _archives(spec, root)
    self._files, damaged = tar_files.walk(archives)
    if damaged and not skip_damaged:
      listed = '\n  '.join(damaged[:20])
      raise ValueError(
        f'{spec}: {len(damaged)} tar file(s) are damaged. Copy or download them'
        f' again.\n  {listed}'
      )
    found, names = KINDS[kind](self._files, root, others)
    if not found:
      raise ValueError(
        f'{spec}: {len(archives):,} tar file(s) hold'
        f' {len(self._files.names):,} files, but no image. The suffixes of'
        f' images are: {" ".join(listing.SUFFIXES)}.'
      )
    # Split -> the files that are its records.
    self._rows = {
      split: np.array(found[split][0], np.int64) for split in sorted(found)
    }
    super().__init__(
      spec,
      {split: found[split][1] for split in self._rows},
      names,
      is_remote=listing.is_remote(root),
    )
    listing.warn(spec, others)
    others.update(f'images are missing: {text}' for text in damaged)
    self.others = others

  def read(self, split: str, index: int) -> source.Record:
    """Reads one file's bytes; its name is TAR_FILE:PATH."""
    row = int(self._rows[split][index])
    return source.Record(
      self._files.read(row), self.label(split, index), self._files.path(row)
    )

  def name(self, split: str, index: int) -> str:
    """Returns the name as `read` does, without a read."""
    return printable.name(self._files.path(int(self._rows[split][index])))

  def facts(self, split: str) -> dict[str, str]:
    """Returns digests of the files' places, sizes and labels."""
    rows = self._rows[split]
    return {
      'places of the files': identity.short_hash(self._files.start[rows]),
      'sizes of the files': identity.short_hash(self._files.size[rows]),
    } | super().facts(split)


# Split -> the numbers of the records among the files, and their labels.
_Found = dict[str, tuple[Sequence[int], list[int | str]]]


def _no_records() -> _Found:
  return collections.defaultdict(lambda: (array.array('q'), []))


def _in_folders(
  files: tar_files.Files, root: str, others: collections.Counter
) -> tuple[_Found, None]:
  """Finds images whose class is the folder, or the tar file, that holds them.

  Args:
    files: all files in the tar files.
    root: the tar file, or the folder of them.
    others: gets what is no record.

  Returns:
    The records; and None, as there is no list of classes.
  """
  found = _no_records()
  flat = collections.defaultdict(list)  # Images without a class.
  for row, name in enumerate(files.names):
    if not name.lower().endswith(listing.SUFFIXES):
      others[posixpath.splitext(name)[1].lower() or 'no suffix'] += 1
      continue
    archive = files.archives[files.archive[row]]
    own = os.path.basename(archive).removesuffix('.tar')
    outside = archive.removesuffix('.tar')[len(root) :].strip('/').split('/')
    if archive == root:
      outside = [own] if own in _ILSVRC else []
    inside = [
      folder.removesuffix('.tar')
      for folder in name.split('/')[:-1]
      if folder not in ('.', '..')
    ]
    # A tar file that holds folders of classes is no class itself, so its name
    # may state a split, such as birds-test.tar.
    is_class = inside in ([], [own])
    split = 'train' if is_class else _named_split(archive, root)
    folders = outside + inside
    for i, folder in enumerate(folders):
      if folder in _SPLITS:
        split, folders = _SPLITS[folder], folders[i + 1 :]
        break
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
    rows.sort(key=files.names.__getitem__)
    found['validation'] = rows, _ilsvrc_labels(len(rows))
  return found, None


def _archives(spec: str, root: str) -> list[str]:
  """Returns a tar file, or the sorted ones below a folder."""
  suffixes = ('.tar', '.tar.gz', '.tgz')
  # Beside tar files in a folder, other .gz files are no tar files.
  if root.lower().endswith((*suffixes, '.gz')):
    return [root]
  found = []
  if root and epath.Path(root).is_dir():
    found = sorted(
      f'{root}/{folder}{name}'
      for folder, names in listing.walk(root)
      for name in names
      if name.lower().endswith(suffixes)
    )
  if not found:
    raise ValueError(
      f'{spec}: expected a file with the suffix .tar, or a folder that holds'
      ' such files.'
    )
  return found


def _named_split(path: str, root: str) -> str:
  """Returns the split that a tar file's folders or name state, or `train`.

  Args:
    path: the tar file, such as ROOT/val/0001.tar or ROOT/birds-val-0001.tar.
    root: the folder of all tar files, or the only one.
  """
  inside = path[len(root) :].strip('/') or os.path.basename(path)
  words = re.split('[-_./]', inside)
  return next((word for word in words if word in listing.SPLITS), 'train')


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


def _in_samples(
  files: tar_files.Files, root: str, others: collections.Counter
) -> tuple[_Found, list[str] | None]:
  """Finds images and labels in WebDataset's shards.

  The label is what NAME.cls holds: a class index, or a class name. Without that
  file, it is `label` (or `cls`) of NAME.json. The class names are the lines of
  classes.txt beside the shards; without it, the names or numbers that occur.

  Args:
    files: all files in the tar files.
    root: the tar file, or the folder of them.
    others: gets what is no record.

  Returns:
    The records, and the names of the classes if there is a list of them.
  """
  found = _no_records()
  splits = [_named_split(archive, root) for archive in files.archives]

  def sample(row):
    folder, base = posixpath.split(files.names[row])
    return int(files.archive[row]), folder, base.partition('.')[0]

  every = range(len(files.names))
  for (number, _, stem), rows in itertools.groupby(every, sample):
    parts = {
      posixpath.basename(files.names[row])[len(stem) :].lower(): row
      for row in rows
    }
    images = [s for s in parts if s.endswith(listing.SUFFIXES)]
    if not images:
      others[' '.join(sorted(parts))] += 1
      continue
    # 1.jpg is more likely than 1.mask.png.
    image = parts[min(images, key=lambda suffix: suffix.count('.'))]
    chosen, labels = found[splits[number]]
    chosen.append(image)
    labels.append(_label_of(files, parts, image))
  numbers = all(x.isdecimal() for _, labels in found.values() for x in labels)
  if numbers:
    found = {s: (rows, [*map(int, of)]) for s, (rows, of) in found.items()}
  for folder in sorted({root, *map(os.path.dirname, files.archives)}):
    if (path := epath.Path(folder) / _CLASS_FILE).exists():
      listed = path.read_text().rstrip().split('\n')
      # To numbers, an empty line is a class without a name.
      return found, listed if numbers else list(filter(None, listed))
  return found, None


def _label_of(files: tar_files.Files, parts: dict[str, int], image: int) -> str:
  """Returns the label of a sample: a class index, or a name.

  Args:
    files: all files in the tar files.
    parts: suffix -> the number of the sample's file with it.
    image: the number of the one that is the image.
  """
  row, label = parts.get('.cls', parts.get('.json', image)), None
  path = files.path(row)
  try:
    if '.cls' in parts:
      label = files.read(row).decode().strip()
    elif '.json' in parts:
      facts = json_text.loads(files.read(row))
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
      f' are {sorted(parts)}.'
    )
  return str(int(label)) if label.isdecimal() else label


# Kind of a source -> what finds its records.
KINDS = {'tar': _in_folders, 'wds': _in_samples}
