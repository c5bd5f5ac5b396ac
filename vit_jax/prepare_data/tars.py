"""`tar:PATH` and `wds:PATH`: images inside tar files, which are only prepared.

`tar:` takes the class from the folder or the tar file that an image lies in:

  PATH/n01440764.tar              with n01440764_10026.JPEG inside: ImageNet-21k
  PATH/train/cat.tar              with 1.jpg inside
  PATH.tar                        with train/cat/1.jpg or cat/1.jpg inside
  PATH/ILSVRC2012_img_train.tar   with a tar file per class inside
  PATH/ILSVRC2012_img_val.tar     with images alone; TFDS knows their classes

`wds:` reads WebDataset's shards: files that share a name up to the first dot
are one example, such as 00017.jpg and 00017.cls.

A tar file holds its files one after another, each behind a header. All headers
are walked once, also those of tar files inside a tar file, to note where the
bytes of each file begin. So each file can be read by itself, in any order.
"""

import array
import collections
import dataclasses
import importlib.resources
import io
import itertools
import os
import posixpath
import re
import sys
import tarfile
from collections.abc import Iterator, Sequence

import fsspec
import numpy as np
from etils import epath

from vit_jax.data import identity, source
from vit_jax.data.sources import labels as labels_lib
from vit_jax.data.sources import listing
from vit_jax.runtime import json_text, printable
from vit_jax.workdir import files as files_lib

# The tar files of ImageNet-1k -> TFDS's names of the splits.
_ILSVRC = {
  'ILSVRC2012_img_train': 'train',
  'ILSVRC2012_img_val': 'validation',
  'ILSVRC2012_img_test': 'test',
}
_CLASS_FILE = 'classes.txt'
# Files whose loss would matter.
_HELD = (*listing.SUFFIXES, '.tar')
_GZIP = b'\x1f\x8b'
# Where a tar file ends, as many bytes are looked at; tar pads with fewer.
_LOOK = 2**16


class Tars(labels_lib.Numbered):
  """Images in tar files.

  Attributes:
    damaged: what is wrong with some tar files, whose first images are here.
  """

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
    try:
      if not root:
        raise ValueError('expected the path of a tar file or a folder.')
      archives = _archives(root)
      self._files, self.damaged = _walk(archives)
      if self.damaged and not skip_damaged:
        listed = '\n  '.join(self.damaged[:20])
        raise ValueError(
          f'{len(self.damaged)} tar file(s) are damaged. Copy or download them'
          f' again.\n  {listed}'
        )
      found, names = KINDS[kind](self._files, root, others)
      if not found:
        raise ValueError(
          f'{len(archives):,} tar file(s) hold {len(self._files.names):,}'
          ' files, but no image. The suffixes of images are:'
          f' {" ".join(listing.SUFFIXES)}.'
        )
    except ValueError as error:
      raise ValueError(f'{spec}: {error}') from error
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
    self.others = others
    listing.warn(spec, others)

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


# ---- Where files begin -------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Files:
  """The regular files in some tar files, in their order.

  Attributes:
    archives: the paths of the tar files.
    names: the paths of the files inside them.
    archive: the number of each file's tar file, int32.
    start: where each begins there in bytes, int64.
    size: of each in bytes, int64.
  """

  archives: Sequence[str]
  names: listing.Names
  archive: np.ndarray
  start: np.ndarray
  size: np.ndarray

  def path(self, row: int) -> str:
    """Returns the path of a file's tar file, and the file's path in it."""
    return f'{self.archives[self.archive[row]]}:{self.names[row]}'

  def read(self, row: int) -> bytes:
    """Returns the bytes of a file.

    Raises:
      OSError: the tar file is gone, or ends before the file does.
    """
    archive = self.archives[self.archive[row]]
    start, size = int(self.start[row]), int(self.size[row])
    if listing.is_remote(archive):
      system, place = fsspec.core.url_to_fs(archive)
      content = system.cat_file(place, start=start, end=start + size)
    else:
      with open(archive, 'rb', opener=files_lib.open_regular) as f:
        content = os.pread(f.fileno(), size, start)
    if len(content) < size:
      raise OSError(f'{self.path(row)} has {len(content)} of {size} bytes.')
    return content


def _walk(archives: Sequence[str]) -> tuple[_Files, list[str]]:
  """Finds the regular files in tar files, and what is wrong with these."""
  numbers, starts, sizes = array.array('i'), array.array('q'), array.array('q')
  damaged = []

  def walk():
    for number, archive in enumerate(archives):
      with _open(archive) as f:
        for name, start, size in _files(f, archive, damaged):
          numbers.append(number)
          starts.append(start)
          sizes.append(size)
          yield name

  # Millions of tuples would take gigabytes.
  names = listing.Names.of(walk())
  arrays = map(np.array, (numbers, starts, sizes))
  return _Files(archives, names, *arrays), damaged


def _open(path: str) -> io.BufferedIOBase:
  if listing.is_remote(path):
    system, path = fsspec.core.url_to_fs(path)
    # Headers lie far apart, so reading ahead would read everything.
    return system.open(path, 'rb', block_size=2**16)
  return open(path, 'rb', opener=files_lib.open_regular)


def _files(
  f: io.BufferedIOBase, path: str, damaged: list[str], start: int = 0
) -> Iterator[tuple[str, int, int]]:
  """Yields the name, the start and the size of the files in a tar file.

  Args:
    f: the tar file.
    path: its path, for messages.
    damaged: gets a message if the tar file is damaged.
    start: where it begins in the outermost tar file, in bytes.
  """
  if f.read(2) == _GZIP:
    raise ValueError(
      f'{printable.name(path)} is compressed, so its files cannot be read one'
      ' by one. Uncompress it first, for example by `gunzip`; images are'
      ' compressed already, so that takes no more room.'
    )
  total = f.seek(0, os.SEEK_END)
  f.seek(0)
  last, unread = 'its beginning', []
  try:
    with tarfile.open(fileobj=f, mode='r:') as tar:
      while member := tar.next():
        tar.members.clear()  # All headers would stay in memory.
        end = member.offset_data + member.size
        # With a negative size, the next header would lie before this one.
        if member.size < 0 or (not member.issparse() and end > total):
          raise tarfile.ReadError(f'it ends within {member.name!r}')
        last, held = member.name, member.name.lower().endswith(_HELD)
        if _is_hidden(last):
          continue
        if not member.isfile() or member.issparse():
          if held and not member.isdir():
            # The bytes of a sparse file are not in one piece.
            unread.append(last)
        elif last.lower().endswith('.tar'):
          begin = start + member.offset_data
          with tar.extractfile(member) as part:
            for name, *place in _files(part, f'{path}:{last}', damaged, begin):
              yield f'{last}/{name}', *place
        else:
          yield last, start + member.offset_data, member.size
      # A bad header passes for the end, too.
      f.seek(tar.offset)
      rest = f.read(_LOOK)
      if len(rest) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError('the mark of the end is missing')
      if rest.strip(b'\0'):
        raise tarfile.ReadError(
          'more follows the mark of the end, perhaps another tar file'
        )
      if unread:
        damaged.append(
          printable.name(
            f'{path} holds {len(unread):,} links or sparse files, such as'
            f' {unread[0]}, which are not read: pack it again with `tar'
            ' --dereference --hard-dereference`, without `--sparse`'
          )
        )
  except OSError:
    raise
  except Exception as error:  # A damaged header may cause any exception.
    damaged.append(printable.name(f'{path} is damaged after {last}: {error}'))


def _is_hidden(name: str) -> bool:
  """Whether some part of a path is hidden, as macOS's `._` files are."""
  parts = name.split('/')
  return any(p.startswith('.') and p not in ('.', '..') for p in parts)


# ---- Which of them are records -----------------------------------------------

# Split -> the numbers of the records among the files, and their labels.
_Found = dict[str, tuple[Sequence[int], list[int | str]]]


def _no_records() -> _Found:
  return collections.defaultdict(lambda: (array.array('q'), []))


def _in_folders(
  files: _Files, root: str, others: collections.Counter
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
  prefixes = [_prefix(archive, root) for archive in files.archives]
  for row, name in enumerate(files.names):
    if not name.lower().endswith(listing.SUFFIXES):
      others[posixpath.splitext(name)[1].lower() or 'no suffix'] += 1
      continue
    folders = [
      folder.removesuffix('.tar')
      for folder in name.split('/')[:-1]
      if folder not in ('.', '..')
    ]
    number = files.archive[row]
    archive = files.archives[number]
    # A tar file that holds folders of classes is no class itself, so its name
    # may state a split, such as birds-test.tar.
    own = os.path.basename(archive).removesuffix('.tar')
    is_class = folders in ([], [own])
    split, folders = _split(
      prefixes[number] + folders,
      'train' if is_class else _named_split(archive, root),
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
    rows.sort(key=files.names.__getitem__)
    found['validation'] = rows, _ilsvrc_labels(len(rows))
  return found, None


def _archives(root: str) -> list[str]:
  """Returns a tar file, or the sorted ones below a folder."""
  suffixes = ('.tar', '.tar.gz', '.tgz')
  # Beside tar files in a folder, other .gz files are no tar files.
  if root.lower().endswith((*suffixes, '.gz')):
    return [root]
  found = []
  if epath.Path(root).is_dir():
    found = sorted(
      f'{root}/{folder}{name}'
      for folder, names in listing.walk(root)
      for name in names
      if name.lower().endswith(suffixes)
    )
  if not found:
    raise ValueError(
      f'there is no file {root} with the suffix .tar, and no folder {root} that'
      ' holds such files.'
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


def _in_samples(
  files: _Files, root: str, others: collections.Counter
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
    for folder in sorted({root, *map(os.path.dirname, files.archives)})
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


def _label_of(files: _Files, parts: dict[str, int], image: int) -> str:
  """Returns the label of a sample: a class index, or a name.

  Args:
    files: all files in the tar files.
    parts: suffix -> the number of the sample's file with it.
    image: the number of the one that is the image.
  """
  label, row = None, parts.get('.cls', parts.get('.json', image))
  path = files.path(row)
  try:
    if row != image:
      label = files.read(row).decode().strip()
    if row != image and '.cls' not in parts:
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
      f' are {sorted(parts)}.'
    )
  return str(int(label)) if label.isdecimal() else label


# Kind of a source -> what finds its records.
KINDS = {'tar': _in_folders, 'wds': _in_samples}
