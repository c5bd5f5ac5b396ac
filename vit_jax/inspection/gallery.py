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
    rollouts: the most images that figures show beside pictures of them.

  Raises:
    ValueError: the model has nothing to show.
  """
  title = of.name.replace(' with ', '\nwith ')
  shown = images[:rollouts]

  def distance(found):
    grid = of.model.token_grid(of.image_size)
    uniform, _ = attention_maps.uniform_distances(grid, of.image_size)
    return figures.attention_distance(
      {title: found}, of.image_size[1], uniform={title: uniform}
    )

  numbered = dict(numbered=len(shown) > 1)

  def rollout(maps):
    return figures.rollout(shown, maps, **numbered)

  def patch_pca(found):
    return figures.beside(shown, found[:, None], ['Patch PCA'], **numbered)

  def registers(maps):
    titles = [f'Register {i}' for i in range(maps.shape[1])]
    return figures.beside(shown, maps, titles, **numbered)

  # A function of `views`, its images, the column of its numbers, how to draw.
  kinds = [
    ('filters', (), 'value', figures.filters),
    ('position_similarity', (), 'cosine', figures.position_similarity),
    ('rollout', (shown,), 'rollout', rollout),
    ('attention_distance', (images,), 'pixels', distance),
    ('patch_pca', (shown,), 'value', patch_pca),
  ]
  if getattr(of.model, 'registers', 0):
    kinds.append(('registers', (shown,), 'attention', registers))
  drawn = 0
  for name, given, column, draw in kinds:
    try:
      found = getattr(views, name)(of, *given)
    except ValueError as error:
      print(f'No {name}: {error}', flush=True)
      continue
    data = figures.table(found, views.AXES[name], column)
    if 'image' in data:
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
