"""A finished run that is looked into: its model, and images it has not seen."""

import ml_collections
import numpy as np
from etils import epath

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import inputs
from vit_jax.data import ops
from vit_jax.inspect import subject


def load(workdir: epath.PathLike) -> subject.Subject:
  """The newest weights of a run in its model.

  Raises:
    ValueError: there are none, as they were deleted.
  """
  return subject.load(str(workdir))


def held_out_images(
  workdir: epath.PathLike, count: int
) -> tuple[np.ndarray, np.ndarray]:
  """Images of a run's own evaluation.

  Not established by the paper: which images, beside that those of Figure 14 are
  chosen at random. Here they are evenly spaced over the split of the run's
  first evaluation of classification, which needs no other data than the run.

  Args:
    workdir: of a run.
    count: how many, or as many as there are. Unreadable ones are left out.

  Returns:
    uint8 [N, height, width, channels], and their places in the split, int [N].

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
      f'{workdir} has no evaluation of classification, whose images are looked'
      f' at; its evaluations are {list(config.evals)}.'
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
  rng = np.random.default_rng(0)  # Evaluations draw nothing.
  images, places = [], []
  for place in spaced(len(view), count):
    try:
      images.append(preprocess(view[place].image, rng))
    except ops.CorruptImageError:
      continue
    places.append(place)
  if not images:
    raise ValueError(f'All images chosen of {section.split!r} are unreadable.')
  return np.stack(images), np.array(places)


def spaced(length: int, count: int) -> list[int]:
  """Up to `count` places among `length`, in the middles of equal parts."""
  count = min(count, length)
  return [(2 * i + 1) * length // (2 * count) for i in range(count)]
