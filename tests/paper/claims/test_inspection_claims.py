"""Guards: claims on attention distances are right for simple distances."""

import numpy as np
import pytest

from vit_jax.inspect import figures
from vit_jax.paper import claims
from vit_jax.paper.claims import inspection_claims as said
from vit_jax.paper.claims.inspection_claims import Distances
from vit_jax.paper.pictures import weights_drawing


def _distances(heads):
  return Distances(np.array(heads, float), 100.0, 60.0)


@pytest.mark.parametrize(
  ('blocks', 'answer'),
  [
    # Four blocks, as in miniature: their means alone could never decide.
    ([10, 20, 30, 40], 'seen once'),
    ([10, 20, 30, 25], 'seen once'),
    ([40, 30, 20, 10], 'not seen'),
    # The heads of a block differ more than the blocks do.
    ([30, 28, 29, 30], claims.UNDECIDED),
    ([10, 20], 'seen once'),
    ([10, 12], claims.UNDECIDED),
  ],
)
def test_distance_by_depth_averages_all_heads(blocks, answer):
  heads = (-4, -2, 2, 4)
  found = _distances([[block + head for head in heads] for block in blocks])
  claim = said.grows_with_depth('ViT-L/16', found)
  assert claim.answer == answer
  assert (
    f'4 heads in each of {len(blocks)} blocks). The mean distance is'
    f' {blocks[0]}.0 px in the first block, {blocks[-1]}.0 px in the last, and'
  ) in claim.evidence


def test_the_correlation_is_stated():
  found = _distances([[20], [10], [30], [40], [50], [60]])
  # One of 15 pairs is swapped: (14 - 1) / 15.
  evidence = said.grows_with_depth('ViT-L/16', found).evidence
  assert 'is 0.87 (p = 0.017, 1 heads in each of 6 blocks)' in evidence
  assert evidence.endswith('This is one pre-training run; others may differ.')


@pytest.mark.parametrize(
  ('first', 'answer'),
  [
    ([20, 90], 'seen once'),
    ([20, 55], 'not seen'),  # No head looks far.
    ([95, 99], 'not seen'),  # All heads do, as without training.
  ],
)
def test_some_heads_look_far(first, answer):
  claim = said.some_heads_look_far('ViT-L/16', _distances([first, [99, 99]]))
  assert claim.answer == answer
  assert f'look {first[0]}.0 to {first[1]}.0 px far' in claim.evidence
  assert '100.0 px, to the nearest half 60.0 px' in claim.evidence
  assert 'This is one pre-training run' in claim.evidence


@pytest.mark.parametrize(
  ('hybrid', 'answer'),
  [
    ([[50, 60, 55, 52], [51, 61, 56, 53]], 'seen once'),
    ([[5, 6, 5, 6], [5, 6, 5, 6]], 'not seen'),
    ([[10, 90, 10, 20], [30, 20, 10, 20]], claims.UNDECIDED),
  ],
)
def test_hybrids_are_compared_by_their_early_blocks(hybrid, answer):
  late = 4 * [[1000, 0, 1000, 0]]  # 2 of the 6 blocks are early.
  vit = [[20, 22, 24, 21], [23, 20, 25, 21]]
  claim = said.hybrids_look_less_locally(
    'R50+ViT-L/16', _distances(hybrid + late), 'ViT', _distances(vit + late)
  )
  assert claim.answer == answer
  assert 'first 2 of 6 blocks' in claim.evidence
  assert 'ViT 22.0 ± 1.9 px (8 heads)' in claim.evidence


def test_without_distances_claims_are_missing():
  found = _distances([[1.0]])
  for claim in (
    said.grows_with_depth('ViT', None),
    said.some_heads_look_far('ViT', None),
    said.hybrids_look_less_locally('R', found, 'ViT', None),
    said.hybrids_look_less_locally('ViT', None, 'R', found),
  ):
    assert claim.answer == 'missing'
    assert claim.evidence == 'There are no attention distances of ViT.'


def test_distances_are_read_from_the_csv_of_the_figure(tmp_path):
  heads = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
  data = figures.table(heads, ('block', 'head'), 'value')
  data['part'] = 'attention distance'
  for part, value in (
    (weights_drawing.UNIFORM, 9.0),
    (weights_drawing.NEAREST_HALF, 7.0),
  ):
    data.loc[len(data)] = {'part': part, 'value': value}
  data['panel'] = 'ViT'
  path = tmp_path / 'figure7.csv'
  assert said.read(path, 'ViT') is None
  data.to_csv(path, index=False)
  found = said.read(path, 'ViT')
  np.testing.assert_array_equal(found.heads, heads)
  assert (found.uniform, found.nearest_half) == (9.0, 7.0)
  assert said.read(path, 'hybrid') is None
