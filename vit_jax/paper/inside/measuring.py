"""Measures the numbers that claims and tables need from weights."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import numpy as np
from scipy import fft, stats
from scipy.spatial import distance

from vit_jax.inspection import attention_maps, views
from vit_jax.paper.claims import inside
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


def number(read: Callable[[str], float], workdir: str) -> float:
  """Returns a number of a run's weights.

  Args:
    read: see `claims.inside`.
    workdir: of the run.

  Raises:
    ValueError: the number is not finite, or weights or images cannot be read.
  """
  found = float(read(workdir))
  if not math.isfinite(found):
    raise ValueError(f'the number is {found}')
  return found


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
  pairs = np.triu_indices(len(places), 1)
  similar = cosines.reshape(len(places), len(places))[pairs]
  lines = distance.pdist(places, 'hamming') < 1
  return similar, distance.pdist(places), lines


def position_locality(cosines: np.ndarray) -> float:
  """Returns Spearman's correlation of cosine and nearness over all pairs."""
  similar, apart, _ = _pairs(cosines)
  return stats.spearmanr(similar, -apart).statistic


def position_lines(cosines: np.ndarray) -> float:
  """Returns how much more similar pairs in the same row or column are.

  They are compared with other pairs at exactly the same distance: 5 patches
  apart in a row, and 3 by 4 patches apart elsewhere. So similarities that
  depend on the distance alone give 0.

  Raises:
    ValueError: the grid has no such pairs.
  """
  similar, apart, line = _pairs(cosines)
  found = []
  for length in np.unique(apart[line]):
    same = np.isclose(apart, length)
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


def _of_positions(
  measure: Callable[[np.ndarray], float],
) -> Callable[[str], float]:
  return lambda path: measure(views.position_similarity(weights.load(path)))


# Kind -> what is measured, with its unit; digits; function of a work directory.
_KINDS: dict[str, tuple[str, int, Callable[[str], float]]] = {
  'distance_by_depth': (
    "Kendall's rank correlation of a head's block and attention distance,"
    ' beyond that of untrained models',
    2,
    lambda path: (
      distance_by_depth(_distances(path)[0])
      - np.mean([distance_by_depth(h) for h in _distances_at_first(path)])
    ),
  ),
  'far_head': (
    'distance of the farthest head of the first block, minus that of uniform'
    ' attention to the nearest half, in px',
    1,
    lambda path: _distances(path)[0][0].max() - _distances(path)[1],
  ),
  'near_head': (
    'distance of uniform attention to the nearest half, minus that of the'
    ' nearest head of the first block, in px',
    1,
    lambda path: _distances(path)[1] - _distances(path)[0][0].min(),
  ),
  'early_distance': (
    'mean attention distance in the first quarter of the blocks, in px',
    1,
    lambda path: early_distance(_distances(path)[0]),
  ),
  'late_distance': (
    'mean attention distance in the last quarter of the blocks, in px',
    1,
    lambda path: early_distance(_distances(path)[0][::-1]),
  ),
  'position_locality': (
    "rank correlation of positions' similarity and nearness",
    2,
    _of_positions(position_locality),
  ),
  'position_lines': (
    'similarity of positions in the same row or column, beyond that of others'
    ' at exactly their distance',
    3,
    _of_positions(position_lines),
  ),
  'position_waves': (
    "share of the position embeddings' variance in slow waves, beyond that of"
    ' shuffled positions',
    3,
    _of_positions(position_waves),
  ),
  'filter_share': (
    "share of the filters' variance in few components, beyond that of random"
    ' filters',
    3,
    lambda path: filter_share(
      np.asarray(weights.load(path).params['embedding']['kernel'])
    ),
  ),
  **{
    kind: (name, 2, lambda path, kind=kind: shifting.measured(path)[kind])
    for kind, name in (
      (
        'shift_eighth',
        '5-shot answers that change as the image shifts by an eighth of a'
        ' patch, in percent',
      ),
      (
        'shift_quarter',
        '5-shot answers that change as the image shifts by a quarter of a'
        ' patch, in percent',
      ),
      ('shift_accuracy', '5-shot accuracy without a shift, in percent'),
      (
        'shift_loss',
        '5-shot accuracy lost by a shift of a quarter of a patch, in'
        ' percentage points',
      ),
    )
  },
}
NUMBERS = {kind: inside(kind, *declared) for kind, declared in _KINDS.items()}
