"""Guards: the search finds what comparisons of all pairs find."""

import numpy as np

from vit_jax.dedup import work


def test_near_hashes():
  rng = np.random.default_rng(0)
  targets = rng.integers(0, 256, (40, 16), np.uint8)
  queries = rng.integers(0, 256, (8, 5, 16), np.uint8)
  # Some are near: view 2 of query 7 is target 4 but for 3 bits, view 0 for 9.
  queries[7, [2, 0]] = targets[4]
  queries[7, 2, 0] ^= 0b111
  queries[7, 0, 1:3] ^= np.array([0b11111, 0b1111], np.uint8)
  queries[0, 1] = targets[30]
  bits = np.unpackbits(targets[:, None, None] ^ queries[None], axis=-1).sum(-1)
  for most in (0, 2, 3, 9, 50, 58):
    found = work.near_hashes(targets, queries, most)
    near = np.argwhere(bits.min(2) <= most)
    np.testing.assert_array_equal(found[['target', 'query']], near)
    for pair, (target, query) in zip(found.itertuples(), near, strict=True):
      distances = bits[target, query]
      assert pair.distance == distances.min()
      order = np.argsort(distances, kind='stable')[:2]
      expected = [v if distances[v] <= most else -1 for v in order]
      assert [pair.view, pair.second] == expected
