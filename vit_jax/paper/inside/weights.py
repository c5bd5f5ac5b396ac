"""Weights to inspect: their model, and images it has not seen."""

from collections.abc import Mapping

import ml_collections
import numpy as np
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data, loaded
from vit_jax.config import inputs
from vit_jax.data import ops


def load(workdir: epath.PathLike) -> loaded.Loaded:
  """Returns the model of a run with its newest weights, or of a `.npz` file.

  Raises:
    ValueError: the run has no weights, because they were deleted.
  """
  return loaded.load(str(workdir))


def held_out_images(
  workdir: epath.PathLike, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns images of a run's own evaluation.

  The paper does not say which images it shows, except that those of Figure 14
  are chosen at random. Here they are evenly spaced over the split of the run's
  first evaluation of classification, so no data beside the run's is needed.

  Args:
    workdir: of a run.
    count: number of images; all if there are fewer. Unreadable ones are left
      out.

  Returns:
    uint8 [N, height, width, channels], and their indices in the split, int [N].

  Raises:
    ValueError: the run has no such evaluation, or its data cannot be read.
  """
  saved = config_lib.load(workdir)
  if saved is None:
    raise ValueError(f'{workdir} holds no run: there is no config.json.')
  config = ml_collections.ConfigDict(saved)
  sections = [s for s in config.evals.values() if s.kind == 'classification']
  if not sections:
    raise ValueError(
      f'{workdir} has no evaluation of classification to take images from; its'
      f' evaluations are {list(config.evals)}.'
    )
  section = sections[0]
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
  return _read(view, preprocess, count)


def images_of(
  source: Mapping[str, str], preprocess: ops.Preprocess, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns images of a data set, as `held_out_images` does for a run's own.

  Args:
    source: `dataset`, a data spec; its `split`; and `data_dir`, '' for the
      default (see `data.open_source`).
    preprocess: see `loaded.Loaded`.
    count: number of images.

  Raises:
    ValueError: the data cannot be read.
  """
  opened = data.open_source(
    source['dataset'], data_dir=source['data_dir'] or None
  )
  return _read(data.View(opened, source['split']), preprocess, count)


def _read(
  view: data.View, preprocess: ops.Preprocess, count: int
) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(0)  # Unused: evaluations are not augmented.
  images, places = [], []
  for place in spaced(len(view), count):
    try:
      images.append(preprocess(view[place].image, rng))
    except ops.CorruptImageError:
      continue
    places.append(place)
  if not images:
    raise ValueError(
      f'All images chosen from the split {view.split!r} are unreadable.'
    )
  return np.stack(images), np.array(places)


def spaced(length: int, count: int) -> list[int]:
  """Returns the middles of up to `count` equal parts of `range(length)`."""
  count = min(count, length)
  return [(2 * i + 1) * length // (2 * count) for i in range(count)]
