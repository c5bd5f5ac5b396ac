"""Weights to inspect: their model, and images it has not seen."""

import functools
from collections.abc import Mapping

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data, loaded
from vit_jax.config import inputs
from vit_jax.data import ops


@functools.lru_cache(maxsize=4)  # The panels of a picture share few runs.
def load(workdir: str) -> loaded.Loaded:
  """Returns the model of a run with its newest weights, or of a `.npz` file.

  Raises:
    ValueError: the run has no weights, because they were deleted.
  """
  return loaded.load(workdir)


def held_out_images(
  workdir: str, count: int, images_from: Mapping[str, str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns images of a run's own evaluation, or of another data set.

  The paper does not say which images it shows, except that those of Figure 14
  are chosen at random. Here they are evenly spaced over the split of the run's
  first evaluation of classification, so no data beside the run's is needed.

  Args:
    workdir: of a run, or a `.npz` file with `images_from`.
    count: number of images; all if there are fewer. Unreadable ones are left
      out.
    images_from: the other data: `dataset`, its `split`, and `data_dir`, '' for
      the default (see `data.open_source`).

  Returns:
    uint8 [N, height, width, channels], and their indices in the split, int [N].

  Raises:
    ValueError: the data cannot be read.
  """
  if images_from:
    name, folder = images_from['dataset'], images_from['data_dir'] or None
    source = data.open_source(name, data_dir=folder)
    view = data.View(source, images_from['split'])
    preprocess = load(workdir).preprocess
  else:
    config = ml_collections.ConfigDict(config_lib.load(workdir))
    section = next(
      s for s in config.evals.values() if s.kind == 'classification'
    )
    source = inputs.open_source(
      config,
      section.dataset or config.data.dataset,
      label_key=section.label_key,
      own_classes=True,
    )
    view = data.View(source, section.split)
    preprocess = inputs.parse_preprocess(
      config, section.preprocess, section.dataset
    )
  rng = np.random.default_rng(0)  # Unused: evaluations are not augmented.
  images = {}
  for place in spaced(len(view), count):
    try:
      images[place] = preprocess(view[place].image, rng)
    except ops.CorruptImageError:
      continue
  return np.stack([*images.values()]), np.array([*images])


def spaced(length: int, count: int) -> list[int]:
  """Returns the middles of up to `count` equal parts of `range(length)`."""
  count = min(count, length)
  return [(2 * i + 1) * length // (2 * count) for i in range(count)]
