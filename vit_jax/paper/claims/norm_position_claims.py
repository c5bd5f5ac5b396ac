"""Claims beyond the paper: LayerNorm before or after, and the depth.

The paper has LayerNorm before each part of a block, and compares nothing. That
deep Transformers need it there is a finding of others, on translation: Wang et
al. 2019 (arXiv:1906.01787) and Xiong et al. 2020 (arXiv:2002.04745).
"""

from vit_jax.paper.claims import curve_claims
from vit_jax.paper.claims.claim import Claim, Contrast, Sum, total
from vit_jax.paper.claims.measures import FewShot
from vit_jax.paper.runs import Pretraining

SHALLOW, DEEP = 8, 64  # Blocks, as in Figure 8.
_PRE, _POST = 'LayerNorm first', 'LayerNorm last'
POSITIONS = (_PRE, _POST)


def start(position: str, blocks: int) -> Pretraining:
  """Returns the first run of one of `POSITIONS` and a number of blocks."""
  if position == _PRE:
    return curve_claims.depth(blocks)
  return curve_claims.shape(
    f'depth {blocks}, post-LayerNorm', depth=blocks, norm_position='post'
  )


def norm_position(scale: str) -> list[Claim]:
  """Whether deep ViTs need LayerNorm first more than shallow ones do."""
  measure = FewShot(average=scale == 'mini')

  def lead(blocks: int) -> Sum:
    first, last = (total(measure, start(p, blocks)) for p in POSITIONS)
    return first - last

  half = 0.5 * lead(DEEP)
  return [
    Claim(
      'deep_needs_pre',
      'Beyond the paper: deep models need LayerNorm before attention and MLP.'
      f' With {DEEP} blocks, such a model is ahead of one with LayerNorm after'
      ' the residual sums (Wang et al. 2019; Xiong et al. 2020).',
      (Contrast(f'lead of LayerNorm first at {DEEP} blocks', lead(DEEP)),),
    ),
    Claim(
      'matters_more_deep',
      'Beyond the paper: the place of LayerNorm matters more in deeper models.'
      f' From {SHALLOW} to {DEEP} blocks, the lead of LayerNorm before'
      ' attention and MLP grows (Wang et al. 2019).',
      (Contrast('growth of the lead', lead(DEEP) - lead(SHALLOW)),),
    ),
    Claim(
      'shallow_close',
      'Beyond the paper: in shallow models, the place of LayerNorm matters'
      f' little. With {SHALLOW} blocks, both places differ by less than half of'
      f' the lead with {DEEP} blocks (Wang et al. 2019).',
      tuple(
        Contrast(
          f'half of the lead at {DEEP} blocks {sign} that at {SHALLOW}',
          half + weight * lead(SHALLOW),
        )
        for sign, weight in (('minus', -1.0), ('plus', 1.0))
      ),
      'The half is our choice.',
    ),
  ]
