"""Images of a user, from files, folders, Pillow and NumPy."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath
from PIL import Image, ImageOps

from vit_jax.data import ops
from vit_jax.data.source import Record
from vit_jax.data.sources import listing
from vit_jax.interop import weight_files
from vit_jax.runtime import printable
from vit_jax.workdir import files


@dataclasses.dataclass(frozen=True)
class Images(Sequence[Record]):
  """Images in order; those in files are read when they are needed.

  Attributes:
    names: printable names: paths, or numbers from 0.
    items: for each image its path or its pixels, uint8 [h, w, c].
  """

  names: tuple[str, ...]
  items: tuple[str | np.ndarray, ...] = dataclasses.field(repr=False)

  def __len__(self) -> int:
    return len(self.items)

  def __getitem__(self, index: int) -> Record:
    """Returns a record; an unreadable file has no bytes, so decoding fails."""
    try:
      return Record(_content(self.items[index]), 0, self.names[index])
    except OSError:
      return Record(b'', 0, self.names[index])

  def name(self, index: int) -> str:
    return self.names[index]

  def pixels(self, index: int, preprocess: ops.Preprocess) -> np.ndarray:
    """Returns an image as evaluations see it, uint8 [height, width, channels].

    Raises:
      ValueError: the image cannot be read. The message is the reason.
    """
    try:
      item = _content(self.items[index])
      if isinstance(item, bytes) and not item:
        raise ValueError('the file is empty')
      return preprocess(item, np.random.default_rng(0))
    except FileNotFoundError as error:
      raise ValueError('there is no such file') from error
    except (OSError, ops.CorruptImageError) as error:
      reason = getattr(error, 'strerror', '') or str(error)
      raise ValueError(printable.name(reason).rstrip('.')) from error

  def problem(self, index: int, preprocess: ops.Preprocess) -> str:
    """Returns why an image cannot be read, by reading it again."""
    try:
      self.pixels(index, preprocess)
    except ValueError as error:
      return str(error)
    return 'it could not be read before, but can be now'

  def read(
    self, preprocess: ops.Preprocess
  ) -> tuple[np.ndarray, dict[int, str]]:
    """Reads all images that can be read.

    Returns:
      uint8 [N, height, width, channels], and the index of each image that
      cannot be read with the reason.

    Raises:
      ValueError: no image can be read.
    """
    found, problems = [], {}
    for index in range(len(self)):
      try:
        found.append(self.pixels(index, preprocess))
      except ValueError as error:
        problems[index] = str(error)
    if not found:
      raise ValueError(
        f'None of the {len(self)} images can be read, such as'
        f' {self.names[0]}: {problems[0]}'
      )
    return np.stack(found), problems


def find(words: Sequence[epath.PathLike]) -> list[str]:
  """Lists image files.

  Args:
    words: paths of files and folders. Files may have any name. Folders and
      their subfolders are searched for names with `listing.SUFFIXES`; hidden
      files and folders are left out.

  Returns:
    Absolute paths without duplicates; the files of a folder are sorted.

  Raises:
    ValueError: a path does not exist, or a folder has no images.
  """
  found = []
  for word in words:
    path = files.absolute(word)
    if not path.is_dir():
      found.append(weight_files.existing_file(path))
      continue
    inside = sorted(
      path / folder / name
      for folder, names in listing.walk(os.fspath(path))
      for name in names
      if name.lower().endswith(listing.SUFFIXES)
    )
    if not inside:
      raise ValueError(
        f'{path} holds no images; their suffixes are'
        f' {", ".join(listing.SUFFIXES)}.'
      )
    found += inside
  return list(dict.fromkeys(map(os.fspath, found)))


def check_one(words: Sequence[str], **flag: str | None) -> None:
  """Raises ValueError unless there are either image files or one flag's data.

  Args:
    words: the image files and folders of a command line.
    **flag: the name of the flag, and its value.
  """
  [(name, value)] = flag.items()
  if bool(words) == bool(value):
    raise ValueError(
      f'--{name}={value} and files {list(words)}: expected either image files'
      f' and folders of them, such as photos, or --{name}.'
    )


def from_paths(paths: Sequence[str]) -> Images:
  """Returns the images of files, which need not exist."""
  return Images(tuple(map(printable.name, paths)), tuple(paths))


def gather(images: Any, *, upright: bool) -> Images:
  """Collects the images that a user passes.

  Args:
    images: a path of a file or of a folder, which is searched for images, also
      in its subfolders; a PIL image; a uint8 array [h, w], [h, w, c] or [N, h,
      w, c]; or a sequence of these.
    upright: whether to rotate PIL images by their EXIF orientation.

  Raises:
    ValueError: there are no images, a path does not exist, a folder holds no
      images, or something is not an image.
  """
  found = list(_items(images, upright))
  if not found:
    raise ValueError('There are no images: the sequence is empty.')
  names = [
    printable.name(item) if isinstance(item, str) else str(number)
    for number, item in enumerate(found)
  ]
  return Images(tuple(names), tuple(found))


def _items(images: Any, upright: bool) -> Iterator[str | np.ndarray]:
  if isinstance(images, str | os.PathLike):
    yield from find([images])
  elif isinstance(images, Image.Image):
    yield _pixels(images, upright)
  elif hasattr(images, '__array__') and not isinstance(images, list | tuple):
    yield from _arrays(np.asarray(images))
  elif isinstance(images, Sequence) and not isinstance(images, bytes):
    for each in images:
      yield from _items(each, upright)
  else:
    raise ValueError(
      f'{type(images).__name__} is no image; expected a path of a file or'
      ' folder, a PIL image, a uint8 array [height, width, channels] or [N,'
      ' height, width, channels], or a list of these.'
    )


def _pixels(image: Image.Image, upright: bool) -> np.ndarray:
  """Returns the pixels of a PIL image, [h, w, 1] if grey, else [h, w, 3]."""
  if upright:
    image = ImageOps.exif_transpose(image)
  if image.mode.startswith(('I', 'F')):  # Pillow would clip, not scale.
    raise ValueError(
      f'A PIL image of mode {image.mode!r} has no 8-bit pixels: convert it to'
      " 'L' or 'RGB' after you have scaled its values to 0..255."
    )
  if image.mode == 'L':
    return np.asarray(image)[..., None]
  return np.asarray(image.convert('RGB'))


def _arrays(array: np.ndarray) -> Iterator[np.ndarray]:
  if array.ndim == 2:
    array = array[..., None]
  if array.dtype != np.uint8 or array.ndim not in (3, 4) or not array.size:
    raise ValueError(
      f'The array is {array.dtype}{list(array.shape)}, expected uint8 pixels'
      ' from 0 to 255, [height, width, channels] or [N, height, width,'
      ' channels]. To convert x in [0, 1], use (255 * x).round().astype'
      "('uint8')."
    )
  yield from array if array.ndim == 4 else [array]


def _content(item: str | np.ndarray) -> bytes | np.ndarray:
  """Returns pixels as they are, and the bytes of a path."""
  if not isinstance(item, str):
    return item
  if listing.is_remote(item):
    return epath.Path(item).read_bytes()
  with open(item, 'rb', opener=files.open_regular) as file:
    return file.read()
