"""The paper's claims about attention, tested on the distances in the figures.

The numbers are read from the files beside the figures, so the answers match
what the figures show. There is one run of each model: the tests compare its
heads and blocks, not runs. So the best answer is 'seen once', and the sentences
say so.
"""

import dataclasses
import math
import pathlib

import numpy as np
import pandas as pd
from scipy import stats

from vit_jax.paper import claims
from vit_jax.paper.report import Claim, Number

# Copied from `weights_drawing`, which only the process that draws may import.
_DISTANCE = 'attention distance'
_UNIFORM = 'uniform attention'
_NEAREST_HALF = 'uniform attention to the nearest half'
_CERTAIN = 0.05
_ONE_RUN = 'This is one pre-training run; others may differ.'
# The fraction of the blocks that are early: the paper's first 6 of 24.
_EARLY = 1 / 4


@dataclasses.dataclass(frozen=True)
class Distances:
  """Mean attention distances of a model, in pixels.

  Attributes:
    heads: of each head, [depth, heads].
    uniform: of uniform attention to all patches.
    nearest_half: of uniform attention to the nearest half of the patches.
  """

  heads: np.ndarray
  uniform: float
  nearest_half: float


def read(numbers: pathlib.Path, panel: str) -> Distances | None:
  """Returns the distances of one panel of a picture; None if there are none.

  Args:
    numbers: the picture's .csv file, which may not exist.
    panel: the title of the panel.
  """
  if not numbers.exists():
    return None
  data = pd.read_csv(numbers)
  data = data[data['panel'] == panel].set_index('part')
  if _DISTANCE not in data.index:
    return None
  heads = data.loc[[_DISTANCE]].pivot(
    index='block', columns='head', values='value'
  )
  return Distances(
    heads.to_numpy(),
    float(data.loc[_UNIFORM, 'value']),
    float(data.loc[_NEAREST_HALF, 'value']),
  )


def grows_with_depth(model: str, found: Distances | None) -> Claim:
  """Figure 7: the attention distance increases with network depth (4.5).

  The test is Kendall's rank correlation, which allows for ties, between a
  head's block number and its mean distance, over all heads of all blocks. Means
  of blocks would not do: a miniature has four blocks, which are too often in
  order by chance. The test takes heads for independent, so it is about this run
  only; another run may differ by more.
  """
  statement = 'The attention distance grows with the depth (4.5, Figure 7).'
  if found is None:
    return _missing(statement, model)
  blocks = found.heads.mean(axis=1)
  count, heads = found.heads.shape
  depths = np.repeat(np.arange(count), heads)
  correlation, chance = stats.kendalltau(depths, found.heads.ravel())
  answer = claims.UNDECIDED
  if chance < _CERTAIN:
    answer = claims.SEEN if correlation > 0 else claims.NOT_SEEN
  return Claim(
    statement,
    answer,
    f"{model}: Kendall's rank correlation between a head's block number and its"
    f' mean distance is {correlation:.2f} (p = {chance:.2g}, {heads} heads'
    f' in each of {count} blocks). The mean distance is {blocks[0]:.1f} px in'
    f' the first block, {blocks[-1]:.1f} px in the last, and'
    f' {found.uniform:.1f} px for uniform attention. {_ONE_RUN}',
  )


def some_heads_look_far(model: str, found: Distances | None) -> Claim:
  """Figure 7: in the first block some heads are global, others local (4.5).

  A head looks far if its distance exceeds that of uniform attention to the
  nearest half of the patches, and near if it is smaller: geometry sets this
  threshold. The claim needs both, because an untrained head weighs all patches
  alike and so looks far.
  """
  statement = (
    'Some heads of the first block look across most of the image, and others'
    ' only nearby (4.5, D.7, Figure 7).'
  )
  if found is None:
    return _missing(statement, model)
  near, far = found.heads[0].min(), found.heads[0].max()
  seen = near < found.nearest_half < far
  return Claim(
    statement,
    claims.SEEN if seen else claims.NOT_SEEN,
    f'{model}: the {found.heads.shape[1]} heads of the first block look'
    f' {near:.1f} to {far:.1f} px far; uniform attention to all patches would'
    f' look {found.uniform:.1f} px, to the nearest half'
    f' {found.nearest_half:.1f} px. {_ONE_RUN}',
  )


def hybrids_look_less_locally(
  hybrid: str,
  of_hybrid: Distances | None,
  vit: str,
  of_vit: Distances | None,
) -> Claim:
  """Figure 11: early heads of a hybrid look further than those of a ViT (D.7).

  The test is a t-test over the heads of the first quarter of the blocks.
  """
  statement = (
    'Early blocks of a hybrid attend less locally than those of a ViT (4.5,'
    ' D.7, Figure 11).'
  )
  for model, found in ((hybrid, of_hybrid), (vit, of_vit)):
    if found is None:
      return _missing(statement, model)
  numbers = {
    hybrid: _early(hybrid, of_hybrid),
    vit: _early(vit, of_vit),
  }
  averages = [
    f'{model} {number.mean:.1f} ± {number.std or 0:.1f} px'
    f' ({len(number.values)} heads)'
    for model, number in numbers.items()
  ]
  return Claim(
    statement,
    claims.of_one_run(claims.compare(numbers[hybrid], numbers[vit])),
    f'Mean distance in the first {_early_blocks(of_vit)} of'
    f' {len(of_vit.heads)} blocks: {", ".join(averages)}; uniform attention'
    f' {of_vit.uniform:.1f} px. There is one run of each model: the spread is'
    ' over heads.',
  )


def _early_blocks(found: Distances) -> int:
  return math.ceil(_EARLY * len(found.heads))


def _early(model: str, found: Distances) -> Number:
  heads = found.heads[: _early_blocks(found)]
  return Number(
    tuple(heads.ravel().tolist()),
    tuple(f'{model}, block {b}, head {h}' for b, h in np.ndindex(heads.shape)),
  )


def _missing(statement: str, model: str) -> Claim:
  return Claim(
    statement, 'missing', f'There are no attention distances of {model}.'
  )
