"""Measures the numbers that claims and tables need from weights."""

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from scipy import fft, stats

from vit_jax.inspection import attention_maps, views
from vit_jax.paper.inside import shifting, weights

# Images in mean attention distances, as in the paper (D.7).
_IMAGES = 128
# The fraction of the blocks that are early: the paper's first 6 of 24.
_EARLY = 1 / 4
# Components that Figure 7 shows, or a tenth of all if these are fewer.
_FILTERS = 28
_FEW = 0.1
# Untrained models whose mean is subtracted from a trained one's number.
_UNTRAINED = 5
# Normal kernels whose mean is the share of chance.
_CHANCES = 20


def answer(request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns run -> its numbers, and why some could not be measured.

  Args:
    request: run -> `workdir`, and `kinds`, keys of `KINDS`.
  """
  found = {}
  for name, wanted in request.items():
    numbers, failures = {}, []
    for kind in wanted['kinds']:
      try:
        measure = KINDS.get(kind) or _named(kind)
        number = float(measure(wanted['workdir']))
        if not math.isfinite(number):
          raise ValueError(f'the number is {number}')
        numbers[kind] = number
      # Any failure becomes a line of the command: other runs still count.
      except Exception as error:
        failures.append(f'{kind}: {" ".join(str(error).split())}')
    found[name] = {'numbers': numbers, 'failures': failures}
  return found


def _named(kind: str) -> Callable[[str], float]:
  """Returns the function `MODULE:FUNCTION`, which an item brings along."""
  module, _, name = kind.partition(':')
  return getattr(importlib.import_module(module), name)


@functools.cache
def _distances(workdir: str) -> tuple[np.ndarray, float]:
  """Returns distances [depth, heads], and that of the nearest half, in px."""
  run = weights.load(workdir)
  images, _ = weights.held_out_images(workdir, _IMAGES)
  _, half = attention_maps.uniform_distances(
    run.model.token_grid(run.image_size), run.image_size
  )
  return views.attention_distance(run, images), half


def _distances_at_first(workdir: str) -> np.ndarray:
  """Returns distances [depth, heads] of untrained models, one after another.

  Their weights are new: a run's own initial weights are not kept.
  """
  run = weights.load(workdir)
  images, _ = weights.held_out_images(workdir, _IMAGES)
  first = np.zeros((1, *run.image_size, images.shape[-1]), np.float32)
  found = []
  for seed in range(_UNTRAINED):
    params = run.model.init(jax.random.key(seed), first)['params']
    untrained = dataclasses.replace(run, params=params)
    found.append(views.attention_distance(untrained, images))
  return np.stack(found)


def distance_by_depth(heads: np.ndarray) -> float:
  """Returns Kendall's correlation of block and distance, from [depth, heads].

  It allows for ties: all heads of a block are equally deep.
  """
  depth, count = heads.shape
  blocks = np.repeat(np.arange(depth), count)
  return stats.kendalltau(blocks, heads.ravel()).statistic


def early_distance(heads: np.ndarray) -> float:
  """Returns the mean distance in the first quarter of the blocks, in px."""
  return heads[: math.ceil(_EARLY * len(heads))].mean()


def _pairs(cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns each pair's cosine, its distance, and whether it is in a line.

  Args:
    cosines: [rows, columns, rows, columns], see `views.position_similarity`.
  """
  rows, columns = cosines.shape[:2]
  places = np.stack(np.indices((rows, columns)), -1).reshape(-1, 2)
  one, other = np.triu_indices(len(places), 1)
  offset = np.abs(places[one] - places[other])
  matrix = cosines.reshape(len(places), len(places))
  return (
    matrix[one, other],
    np.hypot(*offset.T),
    (offset == 0).any(axis=1),
  )


def position_locality(cosines: np.ndarray) -> float:
  """Returns Spearman's correlation of cosine and nearness over all pairs."""
  similar, distance, _ = _pairs(cosines)
  return stats.spearmanr(similar, -distance).statistic


def position_lines(cosines: np.ndarray) -> float:
  """Returns how much more similar pairs in the same row or column are.

  They are compared with other pairs at exactly the same distance: 5 patches
  apart in a row, and 3 by 4 patches apart elsewhere. So similarities that
  depend on the distance alone give 0.

  Raises:
    ValueError: the grid has no such pairs.
  """
  similar, distance, line = _pairs(cosines)
  found = []
  for length in np.unique(distance[line]):
    same = np.isclose(distance, length)
    if (same & ~line).any():
      found.append(similar[same & line].mean() - similar[same & ~line].mean())
  if not found:
    raise ValueError(
      f'a grid of {"x".join(map(str, cosines.shape[:2]))} patches has no other'
      ' pairs at the distance of those in a row or column.'
    )
  return np.mean(found)


def position_waves(cosines: np.ndarray) -> float:
  """Returns the share of slow waves beyond that of shuffled positions.

  It is 1 if all waves are slow, and 0 for shuffled positions, on any grid. The
  waves are those of the two-dimensional cosine transform, without the
  constant. Those with less than half of the highest frequency in both
  directions are slow. Shuffled positions have an equal share of all waves.
  """
  rows, columns = cosines.shape[:2]
  waves = fft.dctn(cosines, axes=(0, 1), norm='ortho')
  waves = fft.dctn(waves, axes=(2, 3), norm='ortho')
  energy = np.einsum('rcrc->rc', waves).copy()
  energy[0, 0] = 0
  slow = np.zeros((rows, columns), bool)
  slow[: math.ceil(rows / 2), : math.ceil(columns / 2)] = True
  slow[0, 0] = False
  chance = slow.sum() / (energy.size - 1)
  return (energy[slow].sum() / energy.sum() - chance) / (1 - chance)


def filter_share(kernel: np.ndarray) -> float:
  """Returns the share of variance in few components, minus that of chance.

  Args:
    kernel: [P, P, C, D] of the patch embedding. Chance is the mean over normal
      kernels of the same shape.
  """
  matrix = np.asarray(kernel, np.float64).reshape(-1, kernel.shape[-1]).T
  few = min(_FILTERS, max(1, int(_FEW * min(matrix.shape))))

  def share(rows: np.ndarray) -> float:
    energy = np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2
    return energy[:few].sum() / energy.sum()

  rng = np.random.default_rng(0)
  chance = [share(rng.normal(size=matrix.shape)) for _ in range(_CHANCES)]
  return share(matrix) - np.mean(chance)


# A key of `inside.NUMBERS` -> function of a work directory.
KINDS = {
  'distance_by_depth': lambda path: (
    distance_by_depth(_distances(path)[0])
    - np.mean([distance_by_depth(h) for h in _distances_at_first(path)])
  ),
  'early_distance': lambda path: early_distance(_distances(path)[0]),
  'late_distance': lambda path: early_distance(_distances(path)[0][::-1]),
  'far_head': lambda path: _distances(path)[0][0].max() - _distances(path)[1],
  'near_head': lambda path: _distances(path)[1] - _distances(path)[0][0].min(),
  **{
    of.__name__: lambda path, of=of: of(
      views.position_similarity(weights.load(path))
    )
    for of in (position_locality, position_lines, position_waves)
  },
  'filter_share': lambda path: filter_share(
    np.asarray(weights.load(path).params['embedding']['kernel'])
  ),
  **{
    kind: lambda path, kind=kind: shifting.measured(path)[kind]
    for kind in shifting.KINDS
  },
}
