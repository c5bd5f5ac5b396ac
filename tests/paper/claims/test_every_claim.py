"""Guards: no claim is undecidable by design, at any scale.

The numbers here are made for each claim, so that all of its contrasts are
clearly above 0, or one clearly below. Then the claim must be answered.
"""

import numpy as np
import pytest
from scipy import optimize

from vit_jax.configs.sweeps import reproduce
from vit_jax.paper import items
from vit_jax.paper.claims import answers
from vit_jax.paper.design import SCALES, read

CLAIMS = [
  (scale, item, claim)
  for scale in SCALES
  for item in items.ITEMS.values()
  for claim in item.claims(scale)
]


def _numbers(claim, sign):
  """Returns a number for each mean, so that contrasts are above or below 0."""
  means = claim.means()
  rows = np.zeros((len(claim.contrasts), len(means)))
  for row, contrast in zip(rows, claim.contrasts, strict=True):
    for weight, mean in contrast.sum.terms:
      if weight:
        row[means.index(mean)] = weight
  if sign < 0:
    rows = rows[:1]
  found = optimize.linprog(
    np.zeros(len(means)),
    A_ub=-sign * rows,
    b_ub=-np.ones(len(rows)),
    bounds=(-1000, 1000),
  )
  assert found.success, 'no numbers could give this answer'
  return dict(zip(means, found.x, strict=True))


@pytest.mark.parametrize(
  ('scale', 'item', 'claim'),
  CLAIMS,
  ids=[f'{scale}-{item.name}-{claim.key}' for scale, item, claim in CLAIMS],
)
def test_a_claim_can_be_confirmed_and_denied(scale, item, claim):
  design = read(scale, 'auto')
  count = design.counts(item)
  assert all(count[start] >= 2 for start in claim.starts())
  for sign, answer in ((1, 'yes'), (-1, 'no')):
    numbers = _numbers(claim, sign)

    def lookup(mean, numbers=numbers):
      several = range(count.get(mean.start, 2))
      return [numbers.get(mean, 0.0) + 0.001 * seed for seed in several]

    [found] = answers.of_values([claim], lookup)
    assert found.answer == answer, found.evidence


@pytest.mark.parametrize('scale', SCALES)
def test_claims_have_runs_at_their_scale(scale):
  data = ',data=folder:/photos' if scale == 'midi' else ''
  every = '+'.join(items.ITEMS)
  sweep = reproduce.get_sweep(f'{every},scale={scale},seeds=2{data}')
  known = {study.name for study in sweep.studies}
  for of_scale, _, claim in CLAIMS:
    if of_scale == scale:
      for mean in claim.means():
        names = [node.name for node in mean.nodes(2)]
        there = [name for name in names if name in known]
        # Only some tasks of VTAB have a stand-in in miniature.
        assert there == names if scale == 'paper' else there, mean


def test_the_same_claims_are_asked_at_all_scales():
  keys = {
    scale: [(item.name, claim.key) for of, item, claim in CLAIMS if of == scale]
    for scale in SCALES
  }
  assert keys['paper'] == keys['mini'] == keys['midi']
  assert len({*keys['paper']}) == len(keys['paper'])
