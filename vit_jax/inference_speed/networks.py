"""Lists the models and image sizes to time, in full and in miniature."""

from collections.abc import Sequence

import flax.linen as nn

from vit_jax import models
from vit_jax.runtime import command_line

SCALES = ('paper', 'mini')
# The models of Figure 12.
MODELS = (
  *('BiT-R50x1', 'BiT-R50x2', 'BiT-R152x4', 'ViT-B/32', 'ViT-L/32'),
  *('ViT-B/16', 'ViT-L/16', 'ViT-H/14'),
)
# Image sizes in pixels. The miniature sizes are about 24/224 of the paper's,
# rounded to multiples of the largest miniature patch, 8 px.
SIZES = {'paper': (64, 128, 224, 384, 512), 'mini': (8, 16, 24, 40, 56)}
# Figure 13 also compares these, at the image size of pre-training.
AXIAL_MODELS = ('Axial-ViT-B/32', 'Axial-ViT-B/16', 'AxialResNet50')
PRETRAINING_SIZE = {'paper': 224, 'mini': 24}
_NUM_CLASSES = 1000


def pairs(
  names: Sequence[str], sizes: Sequence[int], scale: str
) -> list[tuple[str, int]]:
  """Returns the pairs (model, size) to measure, model by model.

  Args:
    names: names of models. If empty: those of Figure 12, and the other models
      of Figure 13 at the size of pre-training.
    sizes: image sizes in pixels; if empty, all sizes of the scale.
    scale: one of SCALES.
  """
  found = [
    (models.paper_name(name), size)
    for name in names or MODELS
    for size in sizes or SIZES[scale]
  ]
  if not names:
    size = PRETRAINING_SIZE[scale]
    if size in (sizes or SIZES[scale]):
      found += [(name, size) for name in AXIAL_MODELS]
  return list(dict.fromkeys(found))


def build(name: str, scale: str) -> nn.Module:
  """Builds a model with 1000 classes.

  Args:
    name: see `models.names`.
    scale: 'paper', or 'mini' for its miniature in configs/mini.py.

  Raises:
    ValueError: there is no such model or no miniature of it; lists the choices.
  """
  known, options = models.options(name), {}
  if scale == 'mini':
    config = command_line.load_config(f'configs/mini.py:{name},pets')
    options = {
      key: value
      for key, value in config.model.items()
      if key in known and value not in (None, 'auto')
    }
  return models.build(name, num_classes=_NUM_CLASSES, **options)
