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
import os
import posixpath
import re
from collections.abc import Iterable, Sequence

import numpy as np
from absl import logging
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
_CLASS_FILES = ('classes.txt', 'classnames.txt', 'class_names.txt')


# Where the label of a sample of WebDataset is.
_LABELS = ('.cls', '.json')


class _Archived(source.Source):
  """Images in tar files, some of whose members are the records.

  Attributes:
    damaged: what is wrong with some tar files, if that was allowed.
    others: suffix, or what else they are -> number of files that are not read.
  """

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
    archives = _archives(root, spec)
    try:
      self._members = members.find(archives)
    except ValueError as error:
      raise ValueError(f'{spec}: {error}') from error
    self.damaged = tuple(self._members.facts['damaged'])
    if self.damaged and not allow_damaged:
      listed = '\n  '.join(self.damaged[:20])
      raise ValueError(
        f'{spec}: {len(self.damaged)} tar file(s) are damaged. Copy or download'
        f' them again.\n  {listed}'
      )
    self.others = collections.Counter()
    found, class_names = self._find(root, spec)
    if not any(found.values()):
      raise ValueError(
        f'{spec}: {len(archives):,} tar file(s) hold {len(self._members):,}'
        ' files, but no image. The suffixes of images are:'
        f' {" ".join(listing.SUFFIXES)}.'
      )
    # split -> the members that are its records, and their labels.
    self._rows = {k: np.array(found[k][0], np.int64) for k in sorted(found)}
    self._labels = {k: np.array(found[k][1], np.int32) for k in sorted(found)}
    self.info = source.SourceInfo(
      spec=spec,
      splits={split: len(rows) for split, rows in self._rows.items()},
      class_names=tuple(class_names),
      is_remote=listing.is_remote(root),
    )
    if self.others:
      logging.warning(
        '%s: %s file(s) in the tar files are not read: %s.',
        *(self.info.spec, f'{self.others.total():,}'),
        ', '.join(f'{k} {n:,}' for k, n in self.others.most_common(10)),
      )

  def _find(
    self, root: str, spec: str
  ) -> tuple[dict[str, tuple[Sequence[int], Sequence[int]]], Sequence[str]]:
    """Returns the members and labels of each split, and the class names."""
    raise NotImplementedError

  def read(self, split: str, index: int) -> source.Record:
    """Reads one file's bytes; its name is TAR_FILE:PATH."""
    row = int(self._rows[split][index])
    return source.Record(
      members.read(self._members, row),
      self.label(split, index),
      members.path(self._members, row),
    )

  def size(self, split: str, index: int) -> int:
    """Returns the size of the image in bytes, without a read."""
    return int(self._members.arrays['size'][self._rows[split][index]])

  def name(self, split: str, index: int) -> str:
    """Returns the name as `read` does, without a read."""
    return printable.name(
      members.path(self._members, int(self._rows[split][index]))
    )

  def label(self, split: str, index: int) -> int:
    """Returns the label without a read."""
    return int(self._labels[split][index])

  def labels(self, split: str) -> np.ndarray:
    """Returns the labels of a whole split, int32 [n], without a read."""
    return self._labels[split]

  def facts(self, split: str) -> dict[str, str]:
    """Returns digests of the files' places, sizes and labels."""
    rows = self._rows[split]
    return {
      'places of the files': identity.short_hash(
        self._members.arrays['start'][rows]
      ),
      'sizes of the files': identity.short_hash(
        self._members.arrays['size'][rows]
      ),
      'labels': identity.short_hash(self._labels[split]),
    }


class Tar(_Archived):
  """Images whose class is the folder, or the tar file, that holds them."""

  _KIND = 'tar'

  def _find(self, root, spec):
    found, flat, numbers = _splits(), collections.defaultdict(list), {}
    prefixes = [_prefix(a, root) for a in self._members.facts['archives']]
    for row in range(len(self._members)):
      name = self._members.name(row)
      if not name.lower().endswith(listing.SUFFIXES):
        suffix = posixpath.splitext(name)[1].lower() or 'no suffix'
        self.others[suffix] += 1
        continue
      folders = name.split('/')[:-1]
      folders = [
        f.removesuffix('.tar') for f in folders if f not in ('.', '..')
      ]
      number = self._members.arrays['archive'][row]
      archive = self._members.facts['archives'][number]
      # A tar file that holds folders of classes is no class itself, so its name
      # may state a split, such as birds-test.tar.
      own = os.path.basename(archive).removesuffix('.tar')
      is_class = folders in ([], [own])
      split, folders = _split(
        prefixes[number] + folders,
        'train' if is_class else shard_split(archive, root),
      )
      if folders:
        label = numbers.setdefault(folders[-1], len(numbers))
        found[split][0].append(row)
        found[split][1].append(label)
      else:
        flat[split].append(row)
    _check_flat(flat, found, spec)
    if unknown := len(flat.get('test', ())):
      self.others['images of the test split, without a class'] = unknown
    if rows := flat.get('validation'):
      rows.sort(key=self._members.name)
      for row, name in zip(rows, _ilsvrc_labels(len(rows), spec), strict=True):
        label = numbers.setdefault(name, len(numbers))
        found['validation'][0].append(row)
        found['validation'][1].append(label)
    class_names = sorted(numbers)
    return _renumber(found, numbers, class_names), class_names


class WebDataset(_Archived):
  """Images and labels in WebDataset's shards.

  The label is what NAME.cls holds: a class index, or a class name. Without that
  file, it is `label` (or `cls`) of NAME.json. The class names are the lines of
  classes.txt beside the shards; without it, the names or numbers that occur.
  """

  _KIND = 'wds'

  def _find(self, root, spec):
    splits = [shard_split(a, root) for a in self._members.facts['archives']]
    found, numbers, sample, files = _splits(), {}, None, {}

    def add():
      image = _image(files)
      if image is None:
        self.others[' '.join(sorted(files))] += 1
        return
      text = self._sample_label(files, image, spec)
      rows, labels = found[splits[self._members.arrays['archive'][image]]]
      rows.append(image)
      labels.append(numbers.setdefault(text, len(numbers)))

    for row in range(len(self._members)):
      folder, base = posixpath.split(self._members.name(row))
      stem, _, suffix = base.partition('.')
      key = self._members.arrays['archive'][row], folder, stem
      if key != sample:
        if files:
          add()
        sample, files = key, {}
      files[f'.{suffix.lower()}'] = row
    if files:
      add()
    folders = {os.path.dirname(a) for a in self._members.facts['archives']}
    order, class_names = _order(numbers, _class_file({root, *folders}), spec)
    return _renumber(found, numbers, order), class_names

  def _sample_label(self, files, image, spec) -> str:
    label, source_of = None, next((s for s in _LABELS if s in files), None)
    if source_of:
      path = members.path(self._members, files[source_of])
      try:
        text = members.read(self._members, files[source_of]).decode()
        label = _json_label(text) if source_of == '.json' else text.strip()
        if label and label.isdecimal():
          label = str(int(label))
      except ValueError as error:
        raise ValueError(f'{spec}: {path}: {error}') from error
    if not label:
      raise ValueError(
        f'{spec}: {members.path(self._members, image)} has neither a .cls'
        ' file nor a .json file with label or cls; beside it are'
        f' {sorted(files)}.'
      )
    if re.fullmatch(r'-\d+', label):
      raise ValueError(
        f'{spec}: {path} has the label {label}; class indices begin at 0.'
      )
    return label


def _json_label(text: str) -> str | None:
  """Returns `label` or `cls` of a sample's JSON; None if it has neither."""
  facts = json_text.loads(text)
  if not isinstance(facts, dict):
    return None
  label = facts.get('label', facts.get('cls'))
  if isinstance(label, float) and label.is_integer():
    label = int(label)
  if label is not None and type(label) not in (int, str):
    raise ValueError(
      f'the label is {label!r}; expected one whole number or text'
    )
  return None if label is None else str(label)


def _image(files: dict[str, int]) -> int | None:
  """Returns the member that is the image of an example; None if none is."""
  images = [s for s in files if s.endswith(listing.SUFFIXES)]
  # 1.jpg is more likely than 1.mask.png.
  return files[min(images, key=lambda s: s.count('.'))] if images else None


def _archives(root: str, spec: str) -> list[str]:
  """Returns the paths of the tar files, sorted."""
  if root.lower().endswith(('.tar', '.gz', '.tgz')):
    found = [root]
  else:
    found = sorted(_walk(root)) if epath.Path(root).is_dir() else []
  if not found:
    raise ValueError(
      f'{spec}: there is no file {root} with the suffix .tar, and no folder'
      f' {root} that holds such files.'
    )
  return found


def _walk(folder: str) -> Iterable[str]:
  for name, is_folder in listing.entries(folder):
    if is_folder:
      yield from _walk(f'{folder}/{name}')
    elif name.lower().endswith(('.tar', '.tar.gz', '.tgz')):
      yield f'{folder}/{name}'


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


def _check_flat(flat, found, spec) -> None:
  for split, rows in flat.items():
    if split not in ('validation', 'test') or split in found:
      raise ValueError(
        f'{spec}: {len(rows):,} images of split {split!r} lie in no folder of a'
        ' class. Expected a tar file per class, or a folder per class inside a'
        ' tar file.'
      )


def _ilsvrc_labels(images: int, spec: str) -> list[str]:
  """Returns the classes (WordNet ids) of ImageNet's validation images.

  Args:
    images: number of images that were found.
    spec: the data spec.
  """
  folder = importlib.resources.files('tensorflow_datasets')
  text = folder / 'datasets/imagenet2012/validation_labels.txt'
  names = text.read_text().split()
  if images != len(names):
    raise ValueError(
      f'{spec}: ILSVRC2012_img_val.tar holds {images:,} images, but ImageNet-1k'
      f' has {len(names):,} for validation. Copy or download it again.'
    )
  return names


def shard_split(path: str, root: str) -> str:
  """Returns the split that a shard's folders or its name state, or `train`.

  Args:
    path: the shard, such as ROOT/val/0001.tar or ROOT/data/birds-val-0001.tar.
    root: the folder of all shards, or the only shard.
  """
  inside = path[len(root) :].strip('/') or os.path.basename(path)
  words = re.split('[-_./]', inside)
  return next((word for word in words if word in listing.SPLITS), 'train')


def _class_file(folders: Iterable[str]) -> list[str] | None:
  """Returns the class names that lie beside the shards, if they do."""
  for folder in sorted(folders):
    for name in _CLASS_FILES:
      path = epath.Path(folder) / name
      if path.exists() and not path.is_dir():
        return path.read_text().split('\n')
  return None


def _order(
  texts: Iterable[str], names: list[str] | None, spec: str
) -> tuple[list[str], list[str]]:
  """Returns the texts of labels by number, and the names of these classes.

  Args:
    texts: all labels that occur.
    names: the list of class names that lies beside the shards; None if none.
    spec: the data spec.
  """
  are_numbers = all(text.isdecimal() for text in texts)
  if names is None and not are_numbers:
    order = names = sorted(texts)
  elif names is None:
    order = names = labels_lib.index_names(max(map(int, texts)) + 1, spec)
  else:
    if are_numbers:  # An empty line counts; only the file's end has some more.
      names = '\n'.join(names).rstrip().split('\n')
    else:
      names = [name for name in names if name]
    order = [str(i) for i in range(len(names))] if are_numbers else names
  if unknown := set(texts) - set(order):
    raise ValueError(
      f'{spec}: the class {min(unknown)!r} is not among the {len(names)} of the'
      f' list beside the shards ({_CLASS_FILES[0]}). Correct the list.'
    )
  return order, names


def _splits() -> dict[str, tuple[array.array, array.array]]:
  """Returns split -> (members, labels); lists of Python would take 70 bytes."""
  return collections.defaultdict(lambda: (array.array('q'), array.array('i')))


def _renumber(found, numbers: dict[str, int], order: Sequence[str]):
  """Replaces the labels as they were met by their places in `order`."""
  places = {text: place for place, text in enumerate(order)}
  places = np.array([places[text] for text in numbers], np.int32)
  return {
    split: (rows, places[np.array(labels)])
    for split, (rows, labels) in found.items()
  }
