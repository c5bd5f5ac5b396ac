"""A finished run to inspect: its model, and images it has not seen."""

import ml_collections
import numpy as np
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import inputs
from vit_jax.data import ops
from vit_jax.inspect import subject


def load(workdir: epath.PathLike) -> subject.Subject:
  """Returns a run's model with its newest weights.

  Raises:
    ValueError: the run has no weights, because they were deleted.
  """
  return subject.load(str(workdir))


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
      f'All images chosen from the split {section.split!r} are unreadable.'
    )
  return np.stack(images), np.array(places)


def spaced(length: int, count: int) -> list[int]:
  """Returns the middles of up to `count` equal parts of `range(length)`."""
  count = min(count, length)
  return [(2 * i + 1) * length // (2 * count) for i in range(count)]
