"""Draws Figures 6, 7, 10, 11 and 14 of the paper, and others, from arrays.

Each function returns a `matplotlib.figure.Figure`, which notebooks show;
`drawing.save` writes it with its numbers. If a function gets `into`, a part of
a figure (`matplotlib.figure.SubFigure`), it draws there and returns that part.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import pandas as pd

from vit_jax.pages import drawing

# A map, divided by its maximum, with a smaller range has only rounding errors.
_NO_CONTRAST = 1e-5


@drawing.styled
def rollout(
  images: np.ndarray, maps: np.ndarray, *, numbered: bool = False
) -> Any:
  """Draws images beside their attention rollout (Figures 6 and 14).

  Args:
    images: uint8 [N, height, width, 1 or 3].
    maps: [N, rows, columns], see `attention_maps.rollout`.
    numbered: whether to number the pairs from 1, as in Figure 14.

  Returns:
    The figure: N pairs in about as many rows as columns.
  """
  pictures = [[overlay(*pair)] for pair in zip(images, maps, strict=True)]
  return beside(images, pictures, ['Attention'], numbered=numbered)


@drawing.styled
def beside(
  images: np.ndarray,
  pictures: Sequence[Sequence[np.ndarray]],
  titles: Sequence[str],
  *,
  numbered: bool = False,
) -> Any:
  """Draws each image beside pictures of it.

  Args:
    images: uint8 [N, height, width, 1 or 3].
    pictures: those of each image, as large as it is drawn: [rows, columns, 3]
      in 0..1, or [rows, columns], each with its own colours from its smallest
      number to its largest.
    titles: of the pictures of an image.
    numbered: whether to number the images from 1.

  Returns:
    The figure: N groups in about as many rows as columns.
  """
  group = 1 + len(titles)
  across = max(1, math.ceil(math.sqrt(len(images) / group)))
  down = math.ceil(len(images) / across)
  wide, heading = (1.5 if across <= 3 else 0.9), 0.24  # In inches.
  high = down * wide * images.shape[1] / images.shape[2] + heading
  # A layout engine would take minutes for hundreds of images.
  figure = drawing.new_figure((group * across * wide, high), layout='none')
  panels = figure.subplots(
    *(down, group * across),
    squeeze=False,
    gridspec_kw=dict(wspace=0.05, hspace=0.05),
  )
  figure.subplots_adjust(0.01, 0.01, 0.99, 1 - heading / high)
  for axes in panels.flat:
    axes.set_axis_off()
  for index, (image, drawn) in enumerate(zip(images, pictures, strict=True)):
    row, column = divmod(index, across)
    left, *others = panels[row, group * column : group * (column + 1)]
    left.imshow(_colours(image), aspect='auto')
    for axes, picture in zip(others, drawn, strict=True):
      axes.imshow(picture, aspect='auto', cmap='viridis')
    if row == 0:
      for axes, title in zip((left, *others), ('Input', *titles), strict=True):
        axes.set_title(title, pad=3, fontsize=8)
    if numbered:
      left.text(
        *(0.04, 0.95, str(index + 1)),
        transform=left.transAxes,
        va='top',
        fontsize=7,
        color='white',
        bbox=dict(facecolor='black', alpha=0.5, linewidth=0, pad=1),
      )
  return figure


def overlay(image: np.ndarray, attended: np.ndarray) -> np.ndarray:
  """Darkens an image where it gets little attention (§D.8, authors' recipe).

  The map is divided by its maximum, resized to the image (Lanczos), blurred
  (Gaussian with a standard deviation of one patch) and scaled to 0..1. The
  image is multiplied by it. A map without contrast would show only rounding
  errors, so it leaves the image unchanged.

  Args:
    image: uint8 [height, width, 1 or 3].
    attended: [rows, columns], at least 0.

  Returns:
    [height, width, 3], float32 in 0..1.
  """
  height, width = image.shape[:2]
  mask = np.asarray(attended, np.float32)
  mask = mask / max(mask.max(), np.finfo(np.float32).tiny)
  mask = cv2.resize(mask, (width, height), interpolation=cv2.INTER_LANCZOS4)
  mask = cv2.GaussianBlur(
    np.clip(mask, 0, 1),  # The authors' bytes also cut off Lanczos' overshoot.
    (0, 0),
    sigmaX=width / attended.shape[1],
    sigmaY=height / attended.shape[0],
  )
  spread = mask.max() - mask.min()
  if spread < _NO_CONTRAST:
    return _colours(image)
  mask = (mask - mask.min()) / spread
  return _colours(image) * mask[:, :, None]


@drawing.styled
def attention_distance(
  distances: Mapping[str, np.ndarray],
  image_width: int,
  *,
  uniform: Mapping[str, float],
  into: Any = None,
) -> Any:
  """Draws mean attention distance by depth, one dot per head (Figures 7, 11).

  Args:
    distances: model name -> [depth, H] in pixels; each model gets a panel.
    image_width: in pixels; the axis shows at least 0.58 of it.
    uniform: model name -> the distance of uniform attention to all patches in
      pixels, drawn as a line: a head there looks everywhere alike.
    into: see the module's docstring.
  """
  figure = into or drawing.new_figure((0.4 + 3.6 * len(distances), 3.4))
  panels = figure.subplots(1, len(distances), sharey=True, squeeze=False)[0]
  # The distance of uniform attention is 0.52 of the width.
  top = max([0.58 * image_width, *(1.05 * d.max() for d in distances.values())])
  for axes, (name, values) in zip(panels, distances.items(), strict=True):
    depth, heads = values.shape
    blocks, head = np.indices(values.shape)
    axes.scatter(blocks, values, s=16, c=head, cmap='viridis', zorder=2)
    line = dict(color='0.4', linestyle='--', linewidth=1, zorder=1)
    axes.axhline(uniform[name], label='uniform attention', **line)
    axes.legend(loc='lower right', frameon=False, fontsize=8)
    # A head has no identity across blocks, so the title gives their number in
    # place of a legend.
    axes.set_title(f'{name}, {heads} head{"s"[: heads != 1]}')
    axes.set_xlabel('Network depth (block)')
    axes.set_xlim(-0.7, depth - 0.3)
    axes.set_ylim(0, top)
    axes.set_xticks(range(0, depth, 1 if depth <= 12 else 5))
    axes.grid(alpha=0.3, linewidth=0.5)
    axes.spines[['top', 'right']].set_visible(False)
  panels[0].set_ylabel('Mean attention distance (px)')
  return figure


@drawing.styled
def filters(images: np.ndarray, *, into: Any = None) -> Any:
  """Draws components of the patch embedding, 7 in a row (Figure 7 left).

  Args:
    images: [components, P, P, 1 or 3] in 0..1, see
      `views.filters`.
    into: see the module's docstring.
  """
  across = min(7, len(images))
  down = math.ceil(len(images) / across)
  figure = into
  if into is None:
    figure = drawing.new_figure((max(3.2, across * 0.8), down * 0.8 + 0.5))
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, hspace=0, wspace=0)
  panels = list(figure.subplots(down, across, squeeze=False).flat)
  for axes, image in zip(panels, images, strict=False):
    axes.imshow(_colours(image), interpolation='nearest')
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(linewidth=0.3, color='0.6')
  for axes in panels[len(images) :]:
    axes.set_axis_off()
  title = f'Embedding filters\n(first {len(images)} principal components)'
  figure.suptitle(title, fontsize=10)
  return figure


@drawing.styled
def position_similarity(
  similarity: np.ndarray,
  *,
  title: str = 'Position embedding similarity',
  into: Any = None,
) -> Any:
  """Draws a similarity map for each patch (Figures 7 centre and 10).

  Args:
    similarity: [rows, columns, rows, columns] in -1..1, see
      `views.position_similarity`.
    title: the title above the maps.
    into: see the module's docstring.
  """
  rows, columns = similarity.shape[:2]
  # All maps are tiles of one picture: hundreds of axes would take minutes.
  gap = max(1, round(0.12 * max(rows, columns)))
  high, wide = rows + gap, columns + gap
  around = ((0, 0), (0, 0), (0, gap), (0, gap))
  tiles = np.pad(similarity, around, constant_values=np.nan).swapaxes(1, 2)
  canvas = tiles.reshape(rows * high, columns * wide)[:-gap, :-gap]
  height, width = (4.2 * n / max(canvas.shape) for n in canvas.shape)
  size = (max(2.4, width) + 1.2, max(1.3, height) + 0.7)
  figure = into
  if into is None:
    figure = drawing.new_figure(size)
    # The layout does not see how the tiles' aspect moves the axis labels.
    figure.get_layout_engine().set(w_pad=0.15)
  axes = figure.subplots()
  picture = axes.imshow(
    canvas, vmin=-1, vmax=1, cmap='viridis', interpolation='nearest'
  )
  step = math.ceil(max(rows, columns) / 16)  # More tick labels would overlap.
  axes.set_xticks(
    [c * wide + (columns - 1) / 2 for c in range(0, columns, step)],
    range(1, columns + 1, step),
  )
  axes.set_yticks(
    [r * high + (rows - 1) / 2 for r in range(0, rows, step)],
    range(1, rows + 1, step),
  )
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  axes.set_title(title)
  axes.set_xlabel('Input patch column')
  axes.set_ylabel('Input patch row')
  place = axes.inset_axes((1.04, 0, 0.03, 1))  # As high as the tiles.
  figure.colorbar(
    picture, cax=place, ticks=[-1, 0, 1], label='Cosine similarity'
  )
  return figure


def table(values: np.ndarray, axes: Sequence[str], value: str) -> pd.DataFrame:
  """Turns an array into a table with a row for each number.

  Args:
    values: any array.
    axes: a name for each axis of `values`, for the columns with the indices.
    value: the name of the column with the numbers.
  """
  places = np.indices(values.shape).reshape(values.ndim, -1)
  columns = dict(zip(axes, places, strict=True))
  return pd.DataFrame(columns | {value: np.asarray(values).ravel()})


def _colours(image: np.ndarray) -> np.ndarray:
  """Converts [h, w, 1 or 3], uint8 or in 0..1, to [h, w, 3] in 0..1."""
  image = image / np.float32(255) if image.dtype == np.uint8 else image
  return np.broadcast_to(image, (*image.shape[:2], 3))
