"""`folder:PATH`: image files in class folders, `PATH/{split}/{class}/*.jpg`."""

import os

import numpy as np
from etils import epath

from vit_jax.data import source

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')


class Folder(source.Source):
  """Encoded images from a tree of folders, local or remote (`gs://`).

  Classes are the class folders of all splits, sorted: a split that lacks a
  class numbers the others as the rest does. Records are sorted by class, then
  by path inside the class folder, whose sub-folders belong to the class. Hidden
  files and folders and files with other suffixes are ignored.
  """

  def __init__(self, path: str):
    """Lists the files; none is opened.

    Args:
      path: the folder that holds one folder a split.

    Raises:
      ValueError: `path` is no folder, or not laid out as described.
    """
    self._root = os.path.expanduser(path)
    # split -> class -> sorted files, as paths inside the class folder.
    tree = {split: _read_split(self._root, split) for split in _splits(path)}
    # What holds other things than images, such as lists of classes.
    others = sorted(split for split, classes in tree.items() if not classes)
    tree = {split: classes for split, classes in tree.items() if classes}
    if not tree:
      raise _layout_error(
        self._root, self._root, f'folders {others[:5]} without any image'
      )
    names = sorted(set().union(*tree.values()))
    self._files = {
      split: [
        f'{name}/{file}' for name in names for file in classes.get(name, ())
      ]
      for split, classes in tree.items()
    }
    self._labels = {
      split: np.repeat(
        np.arange(len(names), dtype=np.int32),
        [len(classes.get(name, ())) for name in names],
      )
      for split, classes in tree.items()
    }
    self.info = source.SourceInfo(
      spec=f'folder:{path}',
      splits={split: len(files) for split, files in self._files.items()},
      class_names=tuple(names),
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one file's bytes; the record's name is the file's path."""
    path = os.path.join(self._root, split, self._files[split][index])
    if _is_remote(path):
      image = epath.Path(path).read_bytes()
    else:
      with open(path, 'rb') as f:
        image = f.read()
    return source.Record(image, int(self._labels[split][index]), path)

  def label(self, split: str, index: int) -> int:
    """Known from the folder's name; nothing is read."""
    return int(self._labels[split][index])


def _splits(path: str) -> list[str]:
  """Returns the split folders of a root that may start with `~`."""
  root = os.path.expanduser(path)
  if not epath.Path(root).is_dir():
    raise ValueError(f'folder:{path}: there is no folder {root}.')
  folders, images = _list(root)
  if not folders:
    raise _layout_error(root, root, f'{len(images)} images and no folders')
  return folders


def _read_split(root: str, split: str) -> dict[str, list[str]]:
  """Returns the sorted files of each class of a split; {} for other folders."""
  path = os.path.join(root, split)
  names, images = _list(path)
  if not names and not images and any(epath.Path(path).iterdir()):
    return {}
  if not names:
    raise _layout_error(root, path, f'{len(images)} images and no folders')
  classes = {name: sorted(_walk(os.path.join(path, name))) for name in names}
  if not any(classes.values()):
    raise _layout_error(root, path, f'folders {names[:5]} without any image')
  return classes


def _layout_error(root: str, path: str, found: str) -> ValueError:
  return ValueError(
    f'folder:{root}: expected {root}/SPLIT/CLASS/IMAGE, such as '
    f'{root}/train/cat/1.jpg (suffixes: {", ".join(SUFFIXES)}), but {path} '
    f'holds {found}. Put each class into the folder of a split.'
  )


def _walk(path: str) -> list[str]:
  """Returns all images below `path`, as paths relative to it."""
  folders, images = _list(path)
  for folder in folders:
    inside = _walk(os.path.join(path, folder))
    images += [f'{folder}/{image}' for image in inside]
  return images


def _list(path: str) -> tuple[list[str], list[str]]:
  """Returns the names of the folders (sorted) and of the images in `path`."""
  if _is_remote(path):
    # Asking a remote store whether an entry is a folder is a round trip; what
    # is named like an image is taken for one.
    entries = [
      (p.name, not p.name.lower().endswith(SUFFIXES) and p.is_dir())
      for p in epath.Path(path).iterdir()
    ]
  else:
    with os.scandir(path) as scan:
      entries = [(entry.name, entry.is_dir()) for entry in scan]
  entries = [entry for entry in entries if not entry[0].startswith('.')]
  folders = sorted(name for name, is_folder in entries if is_folder)
  images = [
    name
    for name, is_folder in entries
    if not is_folder and name.lower().endswith(SUFFIXES)
  ]
  return folders, images


def _is_remote(path: str) -> bool:
  return '://' in path
