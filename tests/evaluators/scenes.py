"""Pictures, and a model whose features are the pixels, for the evaluators."""

import dataclasses

import flax.linen as nn
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data, sharding
from vit_jax.config import inputs
from vit_jax.evaluators.evaluator import Context

CLASSES = 4


class Pixels(nn.Module):
  """A model whose logits and features are the pixels times a parameter."""

  @nn.compact
  def __call__(self, images, *, train):
    scale = self.param('scale', nn.initializers.ones, ())
    scaled = scale * images.reshape(len(images), -1)
    return scaled, {'pre_logits': scaled}


@dataclasses.dataclass
class Scenes(data.Source):
  """Noisy pictures of one pattern per class; some are unreadable."""

  splits: dict[str, int]
  broken: tuple[int, ...] = ()
  classes: int = CLASSES
  without: int | None = None

  def __post_init__(self):
    names = tuple(f'class {i}' for i in range(self.classes))
    self.info = data.SourceInfo('scenes', self.splits, names)
    rng = np.random.default_rng(0)
    self.patterns = rng.integers(60, 190, (self.classes, 3, 3, 1))

  def label(self, split, index):
    return index % (self.classes - (self.without is not None))

  def pixels(self, split, index):
    rng = np.random.default_rng((len(split), index))
    noise = rng.integers(-60, 60, (3, 3, 1))
    return np.uint8(self.patterns[self.label(split, index)] + noise)

  def read(self, split, index):
    broken = split == 'train' and index in self.broken
    image = b'broken' if broken else self.pixels(split, index)
    return data.Record(image, self.label(split, index), f'{split}/{index}')

  def features(self, split, indices):
    pixels = np.array([self.pixels(split, i).ravel() for i in indices])
    labels = np.array([self.label(split, i) for i in indices])
    return pixels / 127.5 - 1, labels


def context(
  section, model, source, size, *, devices=8, batch_size=8, **changes
):
  """Returns the context of a section; `changes` are keys of the config."""
  config = config_lib.default()
  config.image_size, config.channels = size, 1
  config.num_classes = source.info.num_classes
  config.data.update(dataset='scenes', unreadable='skip-and-count', threads=0)
  config.update_from_flattened_dict(changes)
  mesh = sharding.make_mesh(devices)
  preprocess = inputs.parse_preprocess(config, section.preprocess)
  return Context(
    *(config, section, model, mesh, source, source, preprocess), batch_size
  )
