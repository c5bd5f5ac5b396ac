"""What the paper says of attention, asked of the distances that are drawn.

The numbers are those of the files beside the figures, so that what is answered
is what is seen. A model is one run: its heads and blocks are compared, not
runs, and the sentences say so.
"""

import dataclasses
import math
import pathlib

import numpy as np
import pandas as pd
from scipy import stats

from vit_jax.paper import claims
from vit_jax.paper.report import Claim, Number

# As `weights_drawing` names them, which only the process that draws imports.
_DISTANCE = 'attention distance'
_UNIFORM = 'uniform attention'
_NEAREST_HALF = 'uniform attention to the nearest half'
_CERTAIN = 0.05
_ONE_RUN = 'Of one pre-training run: of another one nothing is known.'
# Blocks that are early: the paper's first 6 of 24.
_EARLY = 1 / 4


@dataclasses.dataclass(frozen=True)
class Distances:
  """Mean attention distances of a model, in pixels.

  Attributes:
    heads: [depth, heads].
    uniform: of attention that is the same for all patches.
    nearest_half: of attention to the nearest half of the patches.
  """

  heads: np.ndarray
  uniform: float
  nearest_half: float


def read(numbers: pathlib.Path, panel: str) -> Distances | None:
  """The distances of one panel of a picture; None if there are none.

  Args:
    numbers: the picture's .csv file, which need not be there.
    panel: its title.
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

  By Kendall's rank correlation, which allows for ties, over all heads of all
  blocks: of the number of a head's block with its mean distance. Means of
  blocks would not do, as four of them, in miniature, are in order by chance too
  often. Its test takes heads for independent, so that it speaks of this run
  only: another one may differ by more.
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
    answer = 'yes' if correlation > 0 else 'no'
  return Claim(
    statement,
    answer,
    f"{model}: Kendall's rank correlation of a block's number with the mean"
    f' distance of a head is {correlation:.2f} (p = {chance:.2g}, {heads} heads'
    f' in each of {count} blocks); the heads of the first block have'
    f' {blocks[0]:.1f} px on average, of the last {blocks[-1]:.1f} px, uniform'
    f' attention {found.uniform:.1f} px. {_ONE_RUN}',
  )


def some_heads_look_far(model: str, found: Distances | None) -> Claim:
  """Figure 7: in the first block some heads are global, others local (4.5).

  Far is further than attention to the nearest half of the patches, the same
  for these, would be, and near is less: a threshold that geometry sets. Both
  are asked, as an untrained head, which weighs all patches alike, looks far.
  """
  statement = (
    'Some heads of the first block look across most of the image, and others'
    ' only nearby (4.5, D.7, Figure 7).'
  )
  if found is None:
    return _missing(statement, model)
  near, far = found.heads[0].min(), found.heads[0].max()
  yes = near < found.nearest_half < far
  return Claim(
    statement,
    'yes' if yes else 'no',
    f'{model}: the {found.heads.shape[1]} heads of the first block look'
    f' {near:.1f} to {far:.1f} px far; uniform attention to all patches would'
    f' be {found.uniform:.1f} px, to the nearest half {found.nearest_half:.1f}'
    f' px. {_ONE_RUN}',
  )


def hybrids_look_less_locally(
  hybrid: str,
  of_hybrid: Distances | None,
  vit: str,
  of_vit: Distances | None,
) -> Claim:
  """Figure 11: early heads of a hybrid look further than those of a ViT (D.7).

  By a t-test over the heads of the first quarter of the blocks.
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
  said = [
    f'{model} {number.mean:.1f} ± {number.std or 0:.1f} px'
    f' ({len(number.values)} heads)'
    for model, number in numbers.items()
  ]
  return Claim(
    statement,
    claims.compare(numbers[hybrid], numbers[vit]),
    f'Mean distance in the first {_early_blocks(of_vit)} of'
    f' {len(of_vit.heads)} blocks: {", ".join(said)}; uniform attention'
    f' {of_vit.uniform:.1f} px. Of one run of each: the spread is that of'
    ' heads.',
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
