"""`tar:PATH`: images inside tar files, which are only prepared.

The class is the folder, or the tar file, that an image lies in:

  PATH/n01440764.tar              with n01440764_10026.JPEG inside: ImageNet-21k
  PATH/train/cat.tar              with 1.jpg inside
  PATH.tar                        with train/cat/1.jpg or cat/1.jpg inside
  PATH/ILSVRC2012_img_train.tar   with a tar file per class inside
  PATH/ILSVRC2012_img_val.tar     with images alone; TFDS knows their classes
"""

import array
import collections
import importlib.resources
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
from vit_jax.runtime import printable

# The tar files of ImageNet-1k -> TFDS's names of the splits.
_ILSVRC = {
  'ILSVRC2012_img_train': 'train',
  'ILSVRC2012_img_val': 'validation',
  'ILSVRC2012_img_test': 'test',
}
# Folders that name a split -> its name.
_SPLITS = {**{name: name for name in listing.SPLITS}, **_ILSVRC}


class Tars(labels_lib.Numbered):
  """Images in tar files; `others` also names those that are damaged."""

  def __init__(self, path: str, *, skip_damaged: bool = False):
    """Finds the images in the tar files; opens no image.

    Args:
      path: a tar file, or a folder of tar files; local or remote (`gs://`).
      skip_damaged: whether tar files may end early; the images before the
        damage are then the data set.

    Raises:
      ValueError: there are no tar files, or they are not laid out as described;
        a tar file is compressed or damaged.
    """
    spec = f'tar:{path}'
    root = os.path.expanduser(path).rstrip('/')
    archives = _archives(spec, root)
    self._files, damaged = tar_files.walk(archives)
    if damaged and not skip_damaged:
      listed = '\n  '.join(damaged[:20])
      raise ValueError(
        f'{spec}: {len(damaged)} tar file(s) are damaged. Copy or download them'
        f' again.\n  {listed}'
      )
    found, others = _find(self._files, root)
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
      None,
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


def _find(
  files: tar_files.Files, root: str
) -> tuple[dict[str, tuple[Sequence[int], list[str]]], collections.Counter]:
  """Finds images whose class is the folder, or the tar file, that holds them.

  Args:
    files: all files in the tar files.
    root: the tar file, or the folder of them.

  Returns:
    Split -> the numbers of the records among the files, and their classes; and
    what is no record -> number of files.
  """
  found = collections.defaultdict(lambda: (array.array('q'), []))
  others = collections.Counter()
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
  return found, others


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
