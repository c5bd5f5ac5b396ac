"""Draws all figures of a model and writes their files."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from etils import epath

from vit_jax.inspection import figures, learned_embeddings, subject, views
from vit_jax.pages import drawing


def draw_all(
  looked_into: subject.Subject,
  paths: Sequence[epath.Path],
  images: np.ndarray,
  to: epath.Path,
  rollouts: int,
) -> None:
  """Writes all figures that the model supports; prints why others are missing.

  Args:
    looked_into: the model.
    paths: the images' paths.
    images: uint8 [N, height, width, channels].
    to: the directory for the files.
    rollouts: the most images that the figure of rollouts shows.

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
      ' and the figures need a ViT or hybrid.'
    )


def _filters(looked_into: subject.Subject) -> tuple[Any, Any]:
  found = views.filters(looked_into)
  return figures.filters(found), _table('filters', found, 'value')


def _position_similarity(looked_into: subject.Subject) -> tuple[Any, Any]:
  blocks = learned_embeddings.own_blocks(looked_into.params)
  if blocks:
    print(
      f'{blocks} blocks have position embeddings; the figure shows block 0.'
    )
  found = views.position_similarity(looked_into, 0 if blocks else None)
  data = _table('position_similarity', found, 'cosine')
  return figures.position_similarity(found), data


def _rollout(
  looked_into: subject.Subject,
  paths: Sequence[epath.Path],
  images: np.ndarray,
) -> tuple[Any, Any]:
  maps = views.rollout(looked_into, images)
  figure = figures.rollout(images, maps, numbered=len(images) > 1)
  data = _table('rollout', maps, 'rollout')
  names = [str(path) for path in paths]
  data.insert(1, 'path', np.asarray(names)[data['image']])
  data['image'] += 1  # The figure counts from 1.
  return figure, data


def _attention_distance(
  looked_into: subject.Subject, images: np.ndarray
) -> tuple[Any, Any]:
  distances = views.attention_distance(looked_into, images)
  name = looked_into.name.replace(' with ', '\nwith ')
  figure = figures.attention_distance(
    {name: distances},
    looked_into.image_size[1],
    uniform={name: views.uniform_distance(looked_into)},
  )
  return figure, _table('attention_distance', distances, 'pixels')


def _table(view: str, values: np.ndarray, name: str) -> Any:
  return figures.table(values, views.AXES[view], name)
