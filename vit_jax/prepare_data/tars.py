"""`tar:PATH`: images inside tar files, which are only prepared.

The headers of a tar file, and of tar files inside it, are walked once for where
each file begins. So images can be read in any order.

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
import io
import os
import posixpath
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence

import fsspec
import numpy as np
from etils import epath

from vit_jax.data import identity, source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing
from vit_jax.runtime import printable

# The tar files of ImageNet-1k -> TFDS's names of the splits.
_ILSVRC = {
  'ILSVRC2012_img_train': 'train',
  'ILSVRC2012_img_val': 'validation',
  'ILSVRC2012_img_test': 'test',
}
_GZIP = b'\x1f\x8b'
# Where a tar file ends, as many bytes are looked at; tar pads with fewer.
_LOOK = 2**16
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
    self._archives = _archives(spec, root)
    others, damaged = collections.Counter(), []
    # Millions of tuples would take gigabytes.
    places = array.array('q')
    found = collections.defaultdict(lambda: (array.array('q'), []))

    def images():
      for number, archive in enumerate(self._archives):
        for name, *place in _files(archive, damaged):
          if not name.lower().endswith(listing.SUFFIXES):
            others[posixpath.splitext(name)[1].lower() or 'no suffix'] += 1
            continue
          split, label = _split_and_class(name, archive, root)
          rows, labels = found[split]
          rows.append(len(places) // 3)
          labels.append(label)
          places.extend((number, *place))
          yield name

    self._names = listing.Names(images())
    # Which tar file, where the image begins there, and its size in bytes.
    self._places = np.array(places, np.int64).reshape(-1, 3)
    if damaged and not skip_damaged:
      listed = '\n  '.join(damaged[:20])
      raise ValueError(
        f'{spec}: {len(damaged)} tar file(s) are damaged. Copy or download them'
        f' again.\n  {listed}'
      )
    found = _with_classes(found, self._names, others)
    if not found:
      raise ValueError(
        f'{spec}: {len(self._archives):,} tar file(s) hold {others.total():,}'
        ' files, but no image with a class. The suffixes of images are:'
        f' {" ".join(listing.SUFFIXES)}.'
      )
    self._rows = {split: np.array(rows) for split, (rows, _) in found.items()}
    classes = {split: labels for split, (_, labels) in found.items()}
    super().__init__(spec, classes, None, is_remote=listing.is_remote(root))
    listing.warn(spec, others)
    others.update(f'images are missing: {text}' for text in damaged)
    self.others = others

  def read(self, split: str, index: int) -> source.Record:
    """Reads one file's bytes; its name is TAR_FILE:PATH.

    Raises:
      OSError: the tar file is gone, or ends before the file does.
    """
    number, start, size = self._places[self._rows[split][index]].tolist()
    system, path = fsspec.core.url_to_fs(self._archives[number])
    content = system.cat_file(path, start=start, end=start + size)
    name = self.name(split, index)
    if len(content) < size:
      raise OSError(f'{name} has {len(content)} of {size} bytes.')
    return source.Record(content, self.label(split, index), name)

  def name(self, split: str, index: int) -> str:
    """Returns the name as `read` does, without a read."""
    row = int(self._rows[split][index])
    archive = self._archives[self._places[row, 0]]
    return printable.name(f'{archive}:{self._names[row]}')

  def facts(self, split: str) -> dict[str, str]:
    """Returns digests of the files' places, sizes and labels."""
    places = self._places[self._rows[split]]
    return {
      'places of the files': identity.short_hash(places[:, 1]),
      'sizes of the files': identity.short_hash(places[:, 2]),
    } | super().facts(split)


def _split_and_class(
  name: str, archive: str, root: str
) -> tuple[str, str | None]:
  """Returns the split of an image, and the class if there is one.

  Args:
    name: its path in the tar file.
    archive: the path of that file.
    root: the only tar file, or the folder of all.
  """
  own = os.path.basename(archive).removesuffix('.tar')
  outside = archive.removesuffix('.tar')[len(root) :].strip('/').split('/')
  if archive == root:
    outside = [own] if own in _ILSVRC else []
  inside = [
    folder.removesuffix('.tar')
    for folder in name.split('/')[:-1]
    if folder not in ('.', '..')
  ]
  folders = outside + inside
  # A tar file that holds folders of classes is no class itself, so its folders
  # or its name may state a split, such as ROOT/val/0001.tar or birds-test.tar.
  named = archive[len(root) :].strip('/') or os.path.basename(archive)
  words = [] if inside in ([], [own]) else re.split('[-_./]', named)
  split = next((word for word in words if word in listing.SPLITS), 'train')
  for i, folder in enumerate(folders):
    if folder in _SPLITS:
      split, folders = _SPLITS[folder], folders[i + 1 :]
      break
  return split, sys.intern(folders[-1]) if folders else None


def _with_classes(
  found: Mapping[str, tuple[Sequence[int], list[str | None]]],
  names: Sequence[str],
  others: collections.Counter,
) -> dict[str, tuple[Sequence[int], list[str]]]:
  """Completes what is known of the images of ImageNet-1k without a folder.

  Args:
    found: split -> numbers of images, and their classes.
    names: of all images.
    others: counts images that are not read.

  Returns:
    The same; all images have a class, and the splits are sorted.

  Raises:
    ValueError: other images lie in no folder of a class.
  """
  known = {}
  for split, (rows, labels) in sorted(found.items()):
    if None not in labels:
      known[split] = rows, labels
    elif split == 'validation' and not any(labels):
      rows = sorted(rows, key=names.__getitem__)
      known[split] = rows, _ilsvrc_labels(len(rows))
    elif split == 'test' and not any(labels):
      others['images of the test split, without a class'] = len(rows)
    else:
      raise ValueError(
        f'{labels.count(None):,} images of split {split!r} lie in no folder of'
        ' a class. Expected a tar file per class, or a folder per class inside'
        ' a tar file.'
      )
  return known


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


def _files(archive: str, damaged: list[str]) -> Iterator[tuple[str, int, int]]:
  """Yields the regular files in a tar file, in their order.

  Args:
    archive: the path of the tar file, local or remote.
    damaged: gets what is wrong with it.

  Yields:
    The file's path in it, where it begins there in bytes, and its size.
  """
  system, path = fsspec.core.url_to_fs(archive)
  # Headers lie far apart, so reading ahead would read everything.
  with system.open(path, 'rb', block_size=2**16) as f:
    yield from _files_inside(f, archive, damaged)


def _files_inside(
  f: io.BufferedIOBase, path: str, damaged: list[str], start: int = 0
) -> Iterator[tuple[str, int, int]]:
  """Yields what `_files` does, of a tar file that begins at `start`."""
  if f.read(2) == _GZIP:
    raise ValueError(
      f'{printable.name(path)} is compressed, so its files cannot be read one'
      ' by one. Uncompress it first, for example by `gunzip`; images are'
      ' compressed already, so that takes no more room.'
    )
  total = f.seek(0, io.SEEK_END)
  f.seek(0)
  last, unread = 'its beginning', []
  try:
    with tarfile.open(fileobj=f, mode='r:') as tar:
      while member := tar.next():
        tar.members.clear()  # All headers would stay in memory.
        sparse, begin = member.issparse(), start + member.offset_data
        if not sparse and member.offset_data + member.size > total:
          raise tarfile.ReadError(f'it ends within {member.name!r}')
        last = member.name
        if member.isdir() or _is_hidden(last):
          continue
        if not member.isfile() or sparse:
          # The bytes of a sparse file are not in one piece.
          unread += [last] * last.lower().endswith((*listing.SUFFIXES, '.tar'))
        elif last.lower().endswith('.tar'):
          with tar.extractfile(member) as part:
            inside = _files_inside(part, f'{path}:{last}', damaged, begin)
            for name, *place in inside:
              yield f'{last}/{name}', *place
        else:
          yield last, begin, member.size
      # A bad header and the end of the file pass for the mark of the end, too.
      f.seek(tar.offset)
      rest = f.read(_LOOK)
      if len(rest) < tarfile.BLOCKSIZE or rest.strip(b'\0'):
        raise tarfile.ReadError('no mark of the end, or more behind it')
  except (tarfile.TarError, ValueError) as error:
    damaged.append(printable.name(f'{path} is damaged after {last}: {error}'))
  if unread:
    damaged.append(
      printable.name(
        f'{path} holds {len(unread):,} links or sparse files, such as'
        f' {unread[0]}, which are not read: pack it again with `tar'
        ' --dereference --hard-dereference`, without `--sparse`'
      )
    )


def _is_hidden(name: str) -> bool:
  """Whether some part of a path is hidden, as macOS's `._` files are."""
  parts = name.split('/')
  return any(p.startswith('.') and p not in ('.', '..') for p in parts)
