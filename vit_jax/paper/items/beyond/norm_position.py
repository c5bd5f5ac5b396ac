"""Beyond the paper: LayerNorm before or after, in shallow and deep ViTs.

The paper has LayerNorm before each part of a block, and compares nothing. That
deep Transformers need it there is a finding of others, on translation: Wang et
al. 2019 (arXiv:1906.01787) and Xiong et al. 2020 (arXiv:2002.04745).
"""

from vit_jax.paper.claims import Claim
from vit_jax.paper.item import Cells, table
from vit_jax.paper.items import shapes
from vit_jax.paper.runs import Results

_SHALLOW, _DEEP = 8, 64  # Blocks, as in Figure 8.
# What a column shows -> what a run's label ends with, and its options.
_POSITIONS = {
  'LayerNorm first': ('', {}),
  'LayerNorm last': (', post-LayerNorm', {'norm_position': 'post'}),
}
_NOTES = (
  '"LayerNorm first" is the design of the paper: in each block, one before'
  ' attention and one before the MLP. "LayerNorm last" is that of the original'
  ' Transformer (arXiv:1706.03762): one after each residual sum. The claims are'
  ' from the literature on machine translation: Wang et al. 2019'
  ' (arXiv:1906.01787) and Xiong et al. 2020 (arXiv:2002.04745).',
  'The models are those of Figure 8, with the learning rate and the warm-up of'
  ' ViT-L/32 in Table 3. Models with LayerNorm last may need another learning'
  ' rate. So the table compares both designs at equal settings, not each at its'
  ' best settings.',
)


def _cells(scale: str) -> Cells:
  return {
    (f'{blocks} blocks', position): shapes.measure(scale)(
      shapes.shape(f'depth {blocks}{label}', depth=blocks, **options)
    )
    for position, (label, options) in _POSITIONS.items()
    for blocks in (_SHALLOW, _DEEP)
  }


def _claims(scale: str) -> list[Claim]:
  shallow_pre, deep_pre, shallow_post, deep_post = _cells(scale).values()
  shallow, deep = shallow_pre - shallow_post, deep_pre - deep_post
  half = f'half of the lead at {_DEEP} blocks'
  return [
    Claim(
      'deep_needs_pre',
      'Beyond the paper: deep models need LayerNorm before attention and MLP.'
      f' With {_DEEP} blocks, such a model is ahead of one with LayerNorm after'
      ' the residual sums (Wang et al. 2019; Xiong et al. 2020).',
      {f'lead of LayerNorm first at {_DEEP} blocks': deep},
    ),
    Claim(
      'matters_more_deep',
      'Beyond the paper: the place of LayerNorm matters more in deeper models.'
      f' From {_SHALLOW} to {_DEEP} blocks, the lead of LayerNorm before'
      ' attention and MLP grows (Wang et al. 2019).',
      {'growth of the lead': deep - shallow},
    ),
    Claim(
      'shallow_close',
      'Beyond the paper: in shallow models, the place of LayerNorm matters'
      f' little. With {_SHALLOW} blocks, both places differ by less than half'
      f' of the lead with {_DEEP} blocks (Wang et al. 2019).',
      {
        f'{half} minus that at {_SHALLOW}': 0.5 * deep - shallow,
        f'{half} plus that at {_SHALLOW}': 0.5 * deep + shallow,
      },
      'The half is our choice.',
    ),
  ]


def _miniature(results: Results) -> list[str]:
  shallow, deep = (shapes.DEPTHS[results.scale][n] for n in (_SHALLOW, _DEEP))
  return [
    f'Here, {_SHALLOW} and {_DEEP} blocks become {shallow} and {deep}. On text,'
    ' models with LayerNorm last became unstable from about ten blocks on'
    ' (Takase et al. 2022).',
  ]


ITEM = table(
  'norm_position',
  'LayerNorm before or after attention and MLP, by depth',
  _cells,
  heading='5-shot accuracy in percent',
  claims=_claims,
  notes=_NOTES,
  miniature=_miniature,
  beyond=True,
)
