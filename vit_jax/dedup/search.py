"""Finds pairs with near hashes, or with similar features; exact, by faiss.

Hashes find copies. Features of a trained model also find other photographs of
the same thing, and stronger crops. Of both, the pixels are compared.

Axes: T hashes that are searched, Q query images, V views of each, B bytes.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd
from etils import epath

from vit_jax.dedup import hashing, sets
from vit_jax.predict import extraction
from vit_jax.predict.predictor import Predictor
from vit_jax.predict.store import Stored


def near_hashes(
  targets: np.ndarray, queries: np.ndarray, max_distance: int
) -> pd.DataFrame:
  """Returns all pairs in which a view differs in at most some bits.

  Args:
    targets: uint8 [T, B].
    queries: uint8 [Q, V, B].
    max_distance: number of bits.

  Returns:
    A row for each pair, sorted by `target` and `query`, which are rows of the
    arguments: `distance` in bits of the nearest view, `view` its number, and
    `second` that of the second nearest, -1 if only one is near.
  """
  import faiss

  views = queries.shape[1]
  index = faiss.IndexBinaryFlat(hashing.BITS)
  index.add(np.ascontiguousarray(targets))
  flat = np.ascontiguousarray(queries.reshape(-1, queries.shape[2]))
  # faiss finds distances below its radius.
  limits, distance, target = index.range_search(flat, max_distance + 1)
  row = np.repeat(np.arange(len(flat)), np.diff(limits.astype(np.int64)))
  near = pd.DataFrame(
    {
      'target': target,
      'query': row // views,
      'distance': distance.astype(np.int16),
      'view': row % views,
    }
  ).sort_values(['target', 'query', 'distance', 'view'])
  pairs = near.groupby(['target', 'query'])
  near['second'] = pairs['view'].shift(-1, fill_value=-1)
  return near[pairs.cumcount() == 0].reset_index(drop=True)


def similar_features(
  model: Predictor,
  folder: epath.Path,
  images: sets.Set,
  queries: Mapping[str, sets.Set],
  min_cosine: float,
) -> pd.DataFrame:
  """Returns the pairs whose features have at least some cosine.

  This holds the features of a set of queries in memory, and one file of the
  others.

  Args:
    model: any trained model.
    folder: gets a folder of features for each set, or has it.
    images: the set that is searched.
    queries: name -> set; 'data' is `images`.
    min_cosine: of the angle between two features.

  Returns:
    A row for each pair: `index`, `test`, `test_index` and `cosine`.
  """
  import faiss

  stored = {}
  for name, of in {'data': images, **queries}.items():
    model.preprocess = dataclasses.replace(model.preprocess, upright=of.upright)
    extraction.extract(model, of.view, folder / name, suffix='npz')
    stored[name] = Stored(folder / name)
  found, least = [], float(np.nextafter(np.float32(min_cosine), -1))
  for test, name in enumerate(queries):
    features = np.concatenate(list(stored[name]))
    faiss.normalize_L2(features)
    index = faiss.IndexFlatIP(features.shape[1])
    index.add(features)
    places, rows = (stored[n].column('index') for n in (name, 'data'))
    for part in stored['data']:
      faiss.normalize_L2(part)
      limits, cosine, near = index.range_search(part, least)
      one, rows = rows[: len(part)], rows[len(part) :]
      columns = {
        'index': one.repeat(np.diff(limits.astype(np.int64))),
        'test': test,
        'test_index': places[near],
        'cosine': cosine,
      }
      found.append(pd.DataFrame(columns))
  return pd.concat(found, ignore_index=True)
