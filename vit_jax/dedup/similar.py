"""Finds pairs of images with similar features of a trained model.

Hashes find copies. Features also find other photographs of the same thing, and
stronger crops. So a pair with similar features is only a near-duplicate if its
pixels match.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from etils import epath

from vit_jax.dedup import hashing, matching, sets
from vit_jax.predict import extraction
from vit_jax.predict.predictor import Predictor
from vit_jax.predict.store import Stored

# The columns of `find`.
COLUMNS = ('index', 'test', 'test_index', 'cosine', 'correlation', 'view')


def extract(
  model: Predictor, folder: epath.Path, name: str, images: sets.Set
) -> Stored:
  """Computes the features of a set, as far as they are not there.

  Args:
    model: any trained model.
    folder: gets a folder of features for each set.
    name: of the set's folder.
    images: the set.
  """
  model.preprocess = dataclasses.replace(
    model.preprocess, upright=images.upright
  )
  extraction.extract(model, images.view, folder / name, suffix='npz')
  return Stored(folder / name)


def find(
  images: sets.Set,
  of_images: Stored,
  queries: Sequence[sets.Set],
  of_queries: Sequence[Stored],
  min_cosine: float,
  *,
  inside: bool,
) -> dict[str, np.ndarray]:
  """Returns the pairs with similar features, and compares their pixels.

  The search is exact. It holds the features of the queries in memory, and one
  file of the others.

  Args:
    images: the set that is searched.
    of_images: its features.
    queries: the sets with the queries.
    of_queries: their features.
    min_cosine: the least cosine of the angle between two features.
    inside: whether `images` are the only queries: each pair counts once.

  Returns:
    Arrays [pairs] by COLUMNS, sorted by the first three. `correlation` is that
    of whole images, or mirrored ones, see `matching.correlation`.
  """
  found = []
  for test, stored in enumerate(of_queries):
    index = _index(stored)
    places = stored.column('index')
    start, rows = 0, of_images.column('index')
    for features in of_images:
      limits, cosine, near = index.range_search(
        _normalised(features), float(np.nextafter(min_cosine, -1))
      )
      counts = np.diff(limits.astype(np.int64))
      one = rows[start : start + len(features)].repeat(counts)
      other = places[near]
      start += len(features)
      kept = other < one if inside else slice(None)
      found += zip(
        one[kept].tolist(),
        [test] * len(one[kept]),
        other[kept].tolist(),
        cosine[kept].tolist(),
        strict=True,
      )
  found.sort()
  compared = [
    (*pair, *_compare(images, queries[pair[1]], pair[0], pair[2]))
    for pair in found
  ]
  return {
    key: np.array([pair[i] for pair in compared])
    for i, key in enumerate(COLUMNS)
  }


def _index(stored: Stored):
  import faiss

  features = np.concatenate(list(stored))
  index = faiss.IndexFlatIP(features.shape[1])
  index.add(_normalised(features))
  return index


def _normalised(features: np.ndarray) -> np.ndarray:
  """Returns features of length 1, float32 [N, D]; zeros stay zeros."""
  length = np.linalg.norm(features, axis=1, keepdims=True)
  return np.ascontiguousarray(features / np.maximum(length, 1e-12), np.float32)


def _compare(
  images: sets.Set, queries: sets.Set, index: int, test_index: int
) -> tuple[float, int]:
  try:
    one, other = images.grey(index), queries.kept_grey(test_index)
  except hashing.CorruptImageError:  # The model's decoder is less strict.
    return 0.0, 0
  return matching.correlation(one, other, [0, len(hashing.VIEWS)])
