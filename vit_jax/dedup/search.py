"""Finds pairs with near hashes: all of them, by faiss.

Axes: T hashes that are searched, Q query images, V views of each, B bytes.
"""

import numpy as np
import pandas as pd

from vit_jax.dedup import hashing


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
