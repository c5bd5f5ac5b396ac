"""Images from files, folders, Pillow and NumPy, as records for the pipeline."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath
from PIL import Image, ImageOps

from vit_jax import loaded
from vit_jax.data import ops
from vit_jax.data.source import Record
from vit_jax.data.sources import listing
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

  def problem(self, index: int, preprocess: ops.Preprocess) -> str:
    """Returns why an image cannot be read, by reading it again."""
    try:
      item = _content(self.items[index])
      if isinstance(item, bytes) and not item:
        return 'the file is empty'
      preprocess(item, np.random.default_rng(0))
    except FileNotFoundError:
      return 'there is no such file'
    except (OSError, ops.CorruptImageError) as error:
      reason = getattr(error, 'strerror', '') or str(error)
      return printable.name(reason).rstrip('.')
    return 'it could not be read before, but can be now'


def from_paths(paths: Sequence[epath.PathLike]) -> Images:
  """Returns the images of files, which need not exist."""
  paths = tuple(map(os.fspath, paths))
  return Images(tuple(map(printable.name, paths)), paths)


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
    yield from map(os.fspath, loaded.find_images([images]))
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
