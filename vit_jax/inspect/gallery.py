"""All figures of a model, and the files they become."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epath

from vit_jax import drawing
from vit_jax.inspect import attention, capture, embedding, figures, subject
from vit_jax.models.images import normalize


def draw_all(
  looked_into: subject.Subject,
  paths: Sequence[epath.Path],
  images: np.ndarray,
  to: epath.Path,
  rollouts: int,
) -> None:
  """Writes all figures that the model has; prints which, and why not others.

  Args:
    looked_into: the model.
    paths: of the images.
    images: uint8 [N, height, width, channels].
    to: the directory.
    rollouts: how many images the figure of rollout has, at most.

  Raises:
    ValueError: the model has nothing to show.
  """
  drawings: dict[str, Callable[[], tuple[Any, Any]]] = {
    'filters': lambda: _filters(looked_into),
    'position_similarity': lambda: _position_similarity(looked_into),
    'rollout': lambda: _rollout(
      looked_into, paths[:rollouts], images[:rollouts]
    ),
    'attention_distance': lambda: _attention_distance(looked_into, images),
  }
  drawn = 0
  for name, draw in drawings.items():
    try:
      figure, data = draw()
    except ValueError as error:
      print(f'No {name}: {error}', flush=True)
      continue
    drawing.save(figure, to / name, data)
    drawn += 1
    print(f'Wrote {to / name}{{{",".join(drawing.SUFFIXES)}}}', flush=True)
  if not drawn:
    raise ValueError(
      f'{looked_into.origin} has nothing to show: it is a {looked_into.name},'
      ' and the figures are of ViTs and hybrids.'
    )


def _filters(looked_into: subject.Subject) -> tuple[Any, Any]:
  kernel = looked_into.params.get('embedding', {}).get('kernel')
  if kernel is None:
    raise ValueError('the model has no patch embedding.')
  *patch, width = kernel.shape
  images = embedding.filters(kernel, min(28, np.prod(patch), width))
  axes = ('component', 'row', 'column', 'channel')
  return figures.filters(images), figures.table(images, axes, 'value')


def _position_similarity(looked_into: subject.Subject) -> tuple[Any, Any]:
  blocks = embedding.own_blocks(looked_into.params)
  if blocks:
    print(f'{blocks} blocks have position embeddings: drawn are those of 0.')
  block = 0 if blocks else None
  grid = looked_into.model.token_grid(looked_into.image_size)
  similarity = embedding.position_similarity(
    looked_into.params, grid, block=block
  )
  axes = ('row', 'column', 'other_row', 'other_column')
  data = figures.table(similarity, axes, 'cosine')
  return figures.position_similarity(similarity), data


def _rollout(
  looked_into: subject.Subject,
  paths: Sequence[epath.Path],
  images: np.ndarray,
) -> tuple[Any, Any]:
  maps = attention.rollout(
    _weights(looked_into, images), **_layout(looked_into)
  )
  figure = figures.rollout(images, maps, numbered=len(images) > 1)
  data = figures.table(maps, ('image', 'row', 'column'), 'rollout')
  names = [str(path) for path in paths]
  data.insert(1, 'path', np.asarray(names)[data['image']])
  data['image'] += 1  # As in the figure.
  return figure, data


def _attention_distance(
  looked_into: subject.Subject, images: np.ndarray
) -> tuple[Any, Any]:
  distances = attention.mean_attention_distance(
    _weights(looked_into, images),
    image_size=looked_into.image_size,
    **_layout(looked_into),
  )
  figure = figures.attention_distance(
    {looked_into.name: distances}, looked_into.image_size[1]
  )
  return figure, figures.table(distances, ('block', 'head'), 'pixels')


def _weights(looked_into: subject.Subject, images: np.ndarray) -> Any:
  """Yields the weights of a few images at a time."""
  model = looked_into.model
  return capture.in_pieces(model, looked_into.params, normalize(images))


def _layout(looked_into: subject.Subject) -> dict[str, Any]:
  model = looked_into.model
  capture.check(model)
  return {
    'grid': model.token_grid(looked_into.image_size),
    'num_prefix_tokens': capture.prefix_tokens(model),
  }
