"""Looks into a model: `python -m vit_jax.inspect --checkpoint=... IMAGE...`

  --checkpoint=runs/b16 --to=figures photos         a run, and a folder
  --checkpoint=augreg/L_16 --to=figures a.jpg b.jpg a released file by its name
  --checkpoint=L_16.npz --to=figures photos --rollouts=128
                                                    all of Figure 14
  --checkpoint=x.npz --config=configs/finetune.py:ViT-L/16,imagenet2012 ...
                                                    what x.npz does not say

Writes, each as .png, .pdf and .csv with the numbers, what the model has of:

  rollout               images beside what attention makes of them (Fig. 6, 14)
  attention_distance    how far each head looks, by depth (Fig. 7 right, 11)
  filters               principal components of the patch embedding (Fig. 7)
  position_similarity   of the position embeddings, patch by patch (Fig. 7, 10)

--checkpoint is a run's directory or one of its checkpoints, a .npz file, a
Hugging Face folder, or a name of vit_jax/interop/catalog.py. Folders of images
are searched to any depth. Needs matplotlib: pip install "vit_jax[plot]".
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from absl import flags
from etils import epath
from ml_collections import config_flags

from vit_jax import command_line, drawing
from vit_jax.inspect import attention, capture, embedding, figures, subject
from vit_jax.interop import files
from vit_jax.models.images import normalize

_CHECKPOINT = flags.DEFINE_string(
  'checkpoint', None, 'Weights to look into: a path, or a released name.'
)
_TO = flags.DEFINE_string(
  'to', None, 'Directory for the figures; older ones there are replaced.'
)
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string=(
    "Config file whose model, image_size and first evaluation's preprocess are"
    ' used instead of what the checkpoint says.'
  ),
  lock_config=True,
)
_IMAGE_SIZE = flags.DEFINE_string(
  'image_size',
  None,
  'Pixels that the model sees, as 384 or HEIGHTxWIDTH; by default those that'
  ' the checkpoint is for. Position embeddings are resized.',
)
_PREPROCESS = flags.DEFINE_string(
  'preprocess',
  None,
  'Operations on each image, as in vit_jax/data/ops.py; by default those of the'
  " checkpoint's evaluation, or else resize.",
)
_NUM_IMAGES = flags.DEFINE_integer(
  'num_images',
  128,
  'Images that attention distances are the mean of, chosen at random.',
  lower_bound=1,
)
_ROLLOUTS = flags.DEFINE_integer(
  'rollouts', 6, 'How many of them are drawn with rollout.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the choice of the images.')


def main(words: Sequence[str]) -> None:
  drawing.check_matplotlib()
  to = files.absolute(_TO.value)
  if to.exists() and not to.is_dir():
    raise ValueError(f'--to={to} is a file, expected a directory.')
  found = subject.find_images(words)
  paths = subject.choose(found, _NUM_IMAGES.value, _SEED.value)
  looked_into = subject.load(
    _CHECKPOINT.value,
    config=_CONFIG.value.to_dict() if _CONFIG.value else None,
    image_size=command_line.parse_size('image_size', _IMAGE_SIZE.value),
    preprocess=_PREPROCESS.value,
  )
  height, width = looked_into.image_size
  print(
    f'{looked_into.name} of {looked_into.origin}, {len(paths)} of'
    f' {len(found)} images, {height}x{width} px by'
    f' {looked_into.preprocess.text!r}.',
    *looked_into.notes,
    sep='\n',
    flush=True,
  )
  images = subject.read_images(paths, looked_into.preprocess)
  draw_all(looked_into, paths, images, to, _ROLLOUTS.value)


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


if __name__ == '__main__':
  command_line.run(
    main,
    required=('checkpoint', 'to'),
    arguments='image files and folders of them, such as photos',
  )
