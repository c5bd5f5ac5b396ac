"""Guards: the searches find what comparisons of all pairs find."""

import numpy as np

from tests.predict.test_features import save_random
from vit_jax import load
from vit_jax.dedup import search
from vit_jax.dedup.sets import open_set


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
    found = search.near_hashes(targets, queries, most)
    near = np.argwhere(bits.min(2) <= most)
    np.testing.assert_array_equal(found[['target', 'query']], near)
    for pair, (target, query) in zip(found.itertuples(), near, strict=True):
      distances = bits[target, query]
      assert pair.distance == distances.min()
      order = np.argsort(distances, kind='stable')[:2]
      expected = [v if distances[v] <= most else -1 for v in order]
      assert [pair.view, pair.second] == expected


def test_similar_features(tmp_path):
  model = load(save_random(tmp_path / 'tiny.npz', 0))
  one = open_set('digits:0123', 'train[:40]')
  other = open_set('digits:0123', 'test[:30]')

  def find(queries, least):
    return search.similar_features(
      *(model, tmp_path / 'features', one, queries, least)
    )

  everything = find({'test_1': other}, -1)
  assert len(everything) == 40 * 30
  features = [
    np.concatenate(list(search.Stored(tmp_path / 'features' / name)))
    for name in ('data', 'test_1')
  ]
  a, b = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in features)
  cosine = a @ b.T
  least = float(np.quantile(cosine, 0.9))
  found = find({'test_1': other}, least).sort_values(['index', 'test_index'])
  expected = np.argwhere(cosine >= least)
  np.testing.assert_array_equal(found[['index', 'test_index']], expected)
  np.testing.assert_allclose(
    found['cosine'], cosine[cosine >= least], rtol=1e-5
  )
  assert len(find({'data': one}, least)) == (a @ a.T >= least).sum()
