"""Draws all figures of a model and writes their files."""

from collections.abc import Sequence

import numpy as np
from etils import epath

from vit_jax import loaded
from vit_jax.inspection import attention_maps, figures, views
from vit_jax.pages import drawing


def draw_all(
  of: loaded.Loaded,
  paths: Sequence[epath.Path],
  images: np.ndarray,
  to: epath.Path,
  rollouts: int,
) -> None:
  """Writes all figures that the model supports; prints why others are missing.

  Args:
    of: the model.
    paths: the images' paths.
    images: uint8 [N, height, width, channels].
    to: the directory for the files.
    rollouts: the most images that the figure of rollouts shows.

  Raises:
    ValueError: the model has nothing to show.
  """
  title = of.name.replace(' with ', '\nwith ')
  shown = images[:rollouts]
  if getattr(of.model, 'position_site', '') == 'every_layer':
    print('Each block has position embeddings; the figure shows block 0.')
  # Name -> what is measured, the column of its numbers, and how it is drawn.
  kinds = {
    'filters': (lambda: views.filters(of), 'value', figures.filters),
    'position_similarity': (
      lambda: views.position_similarity(of),
      'cosine',
      figures.position_similarity,
    ),
    'rollout': (
      lambda: views.rollout(of, shown),
      'rollout',
      lambda maps: figures.rollout(shown, maps, numbered=len(shown) > 1),
    ),
    'attention_distance': (
      lambda: views.attention_distance(of, images),
      'pixels',
      lambda distances: figures.attention_distance(
        {title: distances},
        of.image_size[1],
        uniform={
          title: attention_maps.uniform_distances(
            of.model.token_grid(of.image_size), of.image_size
          )[0]
        },
      ),
    ),
  }
  drawn = 0
  for name, (measure, column, draw) in kinds.items():
    try:
      found = measure()
    except ValueError as error:
      print(f'No {name}: {error}', flush=True)
      continue
    data = figures.table(found, views.AXES[name], column)
    if name == 'rollout':
      data.insert(1, 'path', [str(paths[i]) for i in data['image']])
      data['image'] += 1  # The figure counts from 1.
    drawing.save(draw(found), to / name, data)
    drawn += 1
    print(f'Wrote {to / name}{{{",".join(drawing.SUFFIXES)}}}', flush=True)
  if not drawn:
    raise ValueError(
      f'{of.origin} has nothing to show: it is a {of.name}, and the figures'
      ' need a ViT or hybrid.'
    )
