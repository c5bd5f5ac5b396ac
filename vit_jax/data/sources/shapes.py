"""`shapes:FACTOR`: rendered scenes whose factors are all known.

`shapes:shape+orientation` has a class for each pair of values. `shapes:all` has
a label for each value of each factor, so six labels per image.

The data set replaces VTAB's structured tasks (Sec. 4.1: counting, location,
orientation) and needs no download. A scene shows one to four equal copies of a
shape on a noisy background. All factors label the same pictures: `shapes:count`
asks for the number of copies, and `shapes:colour` for their colour.

Rendering a scene takes 210 us, reading it from a file 8 us. With the folder
`data_dir`, the first process that reads a scene renders and keeps it (12 KB per
scene, 0.7 GB for all).
"""

import colorsys
import contextlib
import functools
import itertools
import os
import zlib

import cv2
import numpy as np

from vit_jax.data import source
from vit_jax.data.sources import listing

IMAGE_SIZE = 64

_SPLITS = {'train': 50_000, 'validation': 5_000, 'test': 5_000}


def _corners(numbers: str) -> np.ndarray:
  """Returns the points of 'x y  x y ...', float [points, 2]."""
  return np.array(numbers.split(), np.float64).reshape(-1, 2)


_ARC = np.linspace(0, np.pi, 24)
# Corners in the orientation 'up', in a box whose longer side is 1, with y
# pointing down. A quarter turn maps no shape onto itself.
_OUTLINES = {
  'triangle': _corners('-.4 .5  .4 .5  0 -.5'),
  'half-disc': np.stack([0.5 * np.cos(_ARC), -0.5 * np.sin(_ARC)], axis=1),
  'L': _corners('-.4 -.5  -.1 -.5  -.1 .2  .4 .2  .4 .5  -.4 .5'),
  'T': _corners(
    '-.4 -.5  .4 -.5  .4 -.2  .15 -.2  .15 .5  -.15 .5  -.15 -.2  -.4 -.2'
  ),
  'U': _corners(
    '-.4 -.5  -.15 -.5  -.15 .2  .15 .2  .15 -.5  .4 -.5  .4 .5  -.4 .5'
  ),
}
_COLOURS = ('red', 'yellow', 'green', 'cyan', 'blue', 'magenta')
# In degrees.
_HUES = {name: 60 * place for place, name in enumerate(_COLOURS)}
# A shape's longer side in pixels. Four large shapes in a square still fit into
# the image if the centre of the square lies in a corner cell.
_LENGTHS = {'small': 7, 'medium': 10.5, 'large': 14.5}

# The classes of each factor, in the order of their labels.
FACTORS = {
  'shape': tuple(_OUTLINES),
  'colour': tuple(_HUES),
  'size': tuple(_LENGTHS),
  # The cell of a 3x3 grid that holds the centre of the group's bounding box.
  'position': (
    *('top left', 'top', 'top right'),
    *('left', 'centre', 'right'),
    *('bottom left', 'bottom', 'bottom right'),
  ),
  'orientation': ('up', 'right', 'down', 'left'),
  'count': ('one', 'two', 'three', 'four'),
}

# The bytes of a kept scene: the image, its labels and a checksum.
_RECORD = 3 * IMAGE_SIZE**2 + len(FACTORS) + 4
# A digest of this many scenes of a split identifies the renderer's version.
# Each value of each factor occurs in them.
_PROBES = 64


class Shapes(source.Source):
  """Scenes of uint8 [64, 64, 3], labelled with some of their factors.

  The factors are independent and uniform. A scene is a pure function of its
  split and index, and does not depend on the chosen factor.
  """

  def __init__(self, factor: str = 'shape', *, data_dir: str | None = None):
    """Chooses the labels.

    Args:
      factor: one of `FACTORS`, several joined by `+`, or `all`.
      data_dir: a local folder that keeps scenes, shared by any number of
        processes and sources. Without it, or with a remote one, a scene is
        rendered at every read.

    Raises:
      ValueError: a factor is unknown or repeats.
    """
    spec = f'shapes:{factor}'
    # The source does not hold the open files, which cannot be pickled.
    is_local = data_dir and not listing.is_remote(data_dir)
    self._data_dir = data_dir if is_local else None
    self._multi_label = factor == 'all'
    self._factors = list(FACTORS) if self._multi_label else factor.split('+')
    unknown = [name for name in self._factors if name not in FACTORS]
    if unknown or len(set(self._factors)) < len(self._factors):
      what = f'unknown factor {unknown[0]!r}' if unknown else 'a factor repeats'
      raise ValueError(
        f'shapes:{factor}: {what}; the factors are {", ".join(FACTORS)}. '
        'Join several by +, or use shapes:all for a label of each factor.'
      )
    if self._multi_label:
      # Values repeat (there are a position and an orientation 'left'), so the
      # names include the factor.
      names = tuple(
        f'{name} {value}' for name in FACTORS for value in FACTORS[name]
      )
    else:
      values = [FACTORS[name] for name in self._factors]
      names = tuple(map(' '.join, itertools.product(*values)))
    self.info = source.SourceInfo(
      spec=spec,
      splits=_SPLITS,
      class_names=names,
      multi_label=self._multi_label,
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one scene from the folder, or renders it."""
    image, labels = _read(self._data_dir, split, index)
    return source.Record(image, self._label(labels), f'{split}/{index}')

  def label(self, split: str, index: int) -> int | tuple[int, ...]:
    """Returns the label, and renders nothing."""
    return self._label(_draw_labels(split, index)[1])

  def _label(self, labels: dict[str, int]) -> int | tuple[int, ...]:
    sizes = [len(FACTORS[name]) for name in self._factors]
    chosen = [labels[name] for name in self._factors]
    if self._multi_label:
      starts = itertools.accumulate(sizes[:-1], initial=0)
      return tuple(start + i for start, i in zip(starts, chosen, strict=True))
    return int(np.ravel_multi_index(chosen, sizes))


def _read(
  folder: str | None, split: str, index: int
) -> tuple[np.ndarray, dict[str, int]]:
  """Returns what `render` returns, from the folder if it is kept there.

  Record k is at k times the record size: the image, its labels, and a checksum
  of both. A record that nobody has written yet, or half of one, has a wrong
  checksum. Processes need no locks, as all of them write the same bytes.
  """
  if not folder:
    return render(split, index)
  file = _open(folder, split)
  record = os.pread(file, _RECORD, index * _RECORD)
  if zlib.crc32(record[:-4]).to_bytes(4, 'little') == record[-4:]:
    content = np.frombuffer(bytearray(record), np.uint8)[:-4]
    labels = content[-len(FACTORS) :].tolist()
    image = content[: -len(FACTORS)].reshape(IMAGE_SIZE, IMAGE_SIZE, 3)
    return image, dict(zip(FACTORS, labels, strict=True))
  image, labels = render(split, index)
  content = image.tobytes() + bytes(labels.values())
  checksum = zlib.crc32(content).to_bytes(4, 'little')
  with contextlib.suppress(OSError):  # Such as of a full disk.
    os.pwrite(file, content + checksum, index * _RECORD)
  return image, labels


# One open file per split and process, whatever the number of sources. A source
# that is unpickled in another process opens the file there.
@functools.cache
def _open(folder: str, split: str) -> int:
  """Opens the file that keeps a split's scenes.

  Its name holds a digest of the split's first scenes, so that scenes of another
  renderer (this module, NumPy, OpenCV) are never read.
  """
  digest = 0
  for index in range(_PROBES):
    image, labels = render(split, index)
    digest = zlib.crc32(bytes(labels.values()), zlib.crc32(image, digest))
  scenes = os.path.join(os.path.expanduser(folder), 'shapes')
  os.makedirs(scenes, exist_ok=True)
  path = f'{scenes}/{split}-{digest:08x}'
  return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def render(split: str, index: int) -> tuple[np.ndarray, dict[str, int]]:
  """Renders a scene.

  Args:
    split: 'train', 'validation' or 'test'.
    index: which scene of the split.

  Returns:
    The image, uint8 [64, 64, 3], and the label of every factor in `FACTORS`.
  """
  rng, labels = _draw_labels(split, index)
  copies = _place(rng, labels)
  # Draw four times as large, since OpenCV's own antialiasing widens shapes.
  alpha = np.zeros((4 * IMAGE_SIZE, 4 * IMAGE_SIZE), np.uint8)
  # OpenCV's coordinates refer to pixel centres, here in 1/16 of a pixel.
  corners = np.rint((4 * copies - 0.5) * 16).astype(np.int32)
  cv2.fillPoly(alpha, list(corners), 255, shift=4)
  alpha = cv2.resize(
    alpha, (IMAGE_SIZE, IMAGE_SIZE), interpolation=cv2.INTER_AREA
  )
  alpha = alpha[..., None] * np.float32(1 / 255)  # [64, 64, 1]
  image = _background(rng)
  image += alpha * (_colour(rng, labels['colour']) - image)
  image += rng.standard_normal((IMAGE_SIZE, IMAGE_SIZE, 1), np.float32) * 6
  return np.clip(np.rint(image), 0, 255).astype(np.uint8), labels


def _draw_labels(
  split: str, index: int
) -> tuple[np.random.Generator, dict[str, int]]:
  """Returns a scene's generator, and what it draws first: the labels."""
  # The seed holds both numbers, so that the splits have independent streams.
  rng = np.random.default_rng([list(_SPLITS).index(split), index])
  return rng, {
    factor: int(rng.integers(len(classes)))
    for factor, classes in FACTORS.items()
  }


def _place(rng: np.random.Generator, labels: dict[str, int]) -> np.ndarray:
  """Returns the corners (x, y) of each copy, float [count, corners, 2]."""
  names = {factor: FACTORS[factor][label] for factor, label in labels.items()}
  turn = np.deg2rad(90 * labels['orientation'] + rng.uniform(-8, 8))
  # Since y points down, this turns clockwise.
  cos, sin = np.cos(turn), np.sin(turn)
  rotation = np.array([[cos, sin], [-sin, cos]])
  length = _LENGTHS[names['size']] + rng.uniform(-0.3, 0.3)
  outline = _OUTLINES[names['shape']] @ rotation * length
  extent = np.ptp(outline, axis=0)
  outline -= outline.min(axis=0)
  # The copies take places of a 2x2 square, at least 3 pixels apart.
  places = rng.permutation(4)[: labels['count'] + 1]
  places = np.stack([places % 2, places // 2], axis=1)
  places -= places.min(axis=0)
  offsets = places * (extent + rng.uniform(3, 4))
  half = (offsets.max(axis=0) + extent) / 2
  # The group's centre keeps 1.3 pixels from the neighbouring cells, and the
  # group 1 pixel from the image's border.
  cell = IMAGE_SIZE / 3
  corner = np.array([labels['position'] % 3, labels['position'] // 3]) * cell
  low = np.maximum(corner + 1.3, half + 1)
  high = np.minimum(corner + cell - 1.3, IMAGE_SIZE - half - 1)
  origin = rng.uniform(low, high) - half
  return outline + (origin + offsets)[:, None]


def _background(rng: np.random.Generator) -> np.ndarray:
  """Returns a dark, nearly grey colour ramp, float32 [64, 64, 3]."""
  base = rng.uniform(40, 100) + rng.uniform(-12, 12, 3)
  ramp = np.linspace(-1, 1, IMAGE_SIZE)
  slope = rng.uniform(-20, 20, 2)
  ramps = slope[0] * ramp[:, None, None] + slope[1] * ramp[None, :, None]
  return (base + ramps).astype(np.float32)


def _colour(rng: np.random.Generator, label: int) -> np.ndarray:
  """Returns a bright saturated colour, float32 [3] in 0..255."""
  hue = _HUES[FACTORS['colour'][label]] + rng.uniform(-12, 12)
  saturation, value = rng.uniform(0.8, 1, 2)
  rgb = colorsys.hsv_to_rgb(hue / 360 % 1, saturation, value)
  return np.float32(rgb) * 255
