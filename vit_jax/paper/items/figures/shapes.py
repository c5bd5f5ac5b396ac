"""ViTs that vary one dimension at a time: Figure 8 (D.2), and beyond the paper.

`norm_position` has LayerNorm before or after, in shallow and deep ViTs. The
paper has it before each part of a block, and compares nothing. That deep
Transformers need it there is a finding of others, on translation: Wang et al.
2019 (arXiv:1906.01787) and Xiong et al. 2020 (arXiv:2002.04745).
"""

import math
from collections.abc import Iterator

from vit_jax.configs import midi
from vit_jax.paper import claims, cost
from vit_jax.paper.claims import Claim, Measure
from vit_jax.paper.item import Cells, figure, table
from vit_jax.paper.runs import FEW_SHOT, Pretraining, Results
from vit_jax.sweep.spec import Value

# The base model, from which all others differ in some dimension. The paper does
# not print the heads; here they are as wide as in Table 1, except for ViT-H.
SHAPE = {'depth': 8, 'width': 1024, 'mlp_dim': 2048, 'heads': 16}
# Scale -> the paper's number of blocks -> ours.
DEPTHS = {
  'paper': {blocks: blocks for blocks in (4, SHAPE['depth'], 16, 32, 64)},
  **{scale: smaller.depths for scale, smaller in midi.SMALLER.items()},
}


def shape(label: str, model: str = 'ViT-L/32', **changes: Value) -> Pretraining:
  """Returns the first run of a point: the base with `changes`."""
  options = {f'model.{key}': v for key, v in (SHAPE | changes).items()}
  return Pretraining(
    model,
    epochs=7,
    options=tuple(options.items()),
    label=label,
    few_shot='several',
  )


def depth(blocks: int) -> Pretraining:
  """Returns the first run with some number of blocks."""
  return shape(f'depth {blocks}', depth=blocks)


BASE = depth(SHAPE['depth'])
NARROW = shape('width 512', width=512, heads=8)
WIDE = shape('width 2048', width=2048, heads=32)
FINE = shape('depth 8', model='ViT-L/16')
# Dimension -> the first run of each point; all have the base.
SERIES = {
  'All': [
    shape('all halved', depth=4, width=512, mlp_dim=1024, heads=8),
    BASE,
    shape('all doubled', depth=16, width=2048, mlp_dim=4096, heads=32),
  ],
  'Depth': [depth(blocks) for blocks in DEPTHS['paper']],
  'Patch size': [BASE, FINE],
  'Width MLP': [
    shape('MLP 1024', mlp_dim=1024),
    BASE,
    shape('MLP 4096', mlp_dim=4096),
    shape('MLP 8192', mlp_dim=8192),
  ],
  'Width': [NARROW, BASE, WIDE],
}


def measure(scale: str) -> Measure:
  """Returns the few-shot accuracy that claims are about."""
  return claims.AVERAGE_FIVE_SHOT if scale == 'mini' else claims.FIVE_SHOT


# Figure 8: few-shot accuracy as dimensions are scaled. ------------------------

_FIGURE8_NOTES = (
  'The paper does not print the depths, widths and MLP sizes that it tried,'
  " nor the numbers of attention heads. At the paper's scale, we chose 4 to 64"
  ' blocks, MLP 1024 to 8192, width 512 to 2048, and patches of 32 and 16 px;'
  ' each attention head has width 64. The series named "All" halves or doubles'
  ' depth, width and MLP at once. Points that no claim needs are from a single'
  ' run of 7 epochs.',
  'Models have the learning rate of ViT-L/32 in Table 3; with patches of 16 px,'
  ' they have that of ViT-L/16, which is lower.',
  'The paper does not say over which data sets its average is. Here, it is over'
  ' all few-shot data sets, including ImageNet.',
)
# Why the miniature has the depths that it has.
_WHY_DEPTHS = (
  ' A miniature with more than 5 blocks would not learn in its few steps where'
  ' in an image the shapes are. In earlier runs, on images of 32 px, we had 1,'
  ' 2, 4, 8 and 16 blocks. Their results contradicted the claim that deeper'
  ' models are better, so we chose fewer blocks (LOG.md). From 1 to 3 blocks'
  ' count as 1.6 doublings of the depth, and from 3 to 5 as 0.7.'
)


def _figure8_claims(scale: str) -> list[Claim]:
  """How the dimensions of a ViT should be scaled."""
  found, ours = measure(scale), DEPTHS[scale]
  narrow, wide, fine, base = map(found, (NARROW, WIDE, FINE, BASE))
  at = {blocks: found(depth(blocks)) for blocks in DEPTHS['paper']}
  # What a doubling of the depth gains, and one of the width.
  early, late = (
    (1 / math.log2(ours[more] / ours[less])) * (at[more] - at[less])
    for less, more in ((4, 16), (16, 64))
  )
  by_width = 0.5 * (wide - narrow)
  return [
    Claim(
      'depth',
      'Deeper models are better at the same width: 16 and 32 blocks are better'
      ' than 4 (D.2, Figure 8).',
      {f'gain from 4 to {n} blocks': at[n] - at[4] for n in (16, 32)},
    ),
    Claim(
      'diminishing',
      'Beyond 16 blocks, more depth helps less: per doubling of the depth, the'
      ' gain is smaller between 16 and 64 blocks than between 4 and 16 (D.2,'
      ' Figure 8).',
      {
        'gain of a doubling from 4 to 16 blocks minus that from 16 to 64': early
        - late
      },
    ),
    Claim(
      'width',
      'Width helps least: a doubling of the width, between 512 and 2048, raises'
      ' the accuracy less than a doubling of the depth, between 4 and 16 blocks'
      ' (D.2, Figure 8).',
      {
        'gain of a doubling of the depth minus that of the width': early
        - by_width
      },
      'Doubling the width costs more compute than doubling the depth, which'
      ' favours the width.',
    ),
    Claim(
      'patches',
      'Smaller patches help, although they add no parameters (D.2, Figure 8).',
      {'gain from patches of 32 px to 16 px': fine - base},
    ),
  ]


def _points(results: Results) -> Iterator[tuple]:
  base = cost.compute_of(results, BASE)
  for dimension, starts in SERIES.items():
    for start in starts:
      seeds = results.seeds(start)
      # In miniature, both are known only once the runs are finished.
      compute = base and cost.compute_of(results, start)
      for panel, number in (
        ('ImageNet 5shot', results.number(seeds, FEW_SHOT, scale=1.0)),
        ('Average 5shot', results.average_few_shot(seeds, scale=1.0)),
      ):
        if compute:
          yield dimension, compute / base, number, panel


def _figure8_miniature(results: Results) -> list[str]:
  depths = ', '.join(
    f'{ours} for {papers}' for papers, ours in DEPTHS[results.scale].items()
  )
  note = (
    'Elsewhere in miniature, the depths of all ViTs are divided by the same'
    f' number. Here, the numbers of blocks are: {depths}.'
  )
  return [note + _WHY_DEPTHS * (results.scale == 'mini')]


FIGURE8 = figure(
  'figure8',
  'Few-shot accuracy as dimensions of a ViT are scaled',
  _points,
  {
    **{'x_label': 'Relative compute', 'log_x': True, 'y_label': 'Accuracy'},
    'panels': {name: name for name in ('ImageNet 5shot', 'Average 5shot')},
    'series': [*SERIES],
  },
  caption='Compute is relative to that of the ViT with 8 blocks, width 1024,'
  ' MLP 2048 and patches of 32 px.',
  shown=lambda scale: [one for starts in SERIES.values() for one in starts],
  claims=_figure8_claims,
  notes=_FIGURE8_NOTES,
  miniature=_figure8_miniature,
)


# Beyond the paper: the place of LayerNorm. ------------------------------------

_SHALLOW, _DEEP = 8, 64  # Blocks, as in Figure 8.
# What a column shows -> what a run's label ends with, and its options.
_POSITIONS = {
  'LayerNorm first': ('', {}),
  'LayerNorm last': (', post-LayerNorm', {'norm_position': 'post'}),
}
_NORM_NOTES = (
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
    (f'{blocks} blocks', position): measure(scale)(
      shape(f'depth {blocks}{label}', depth=blocks, **options)
    )
    for position, (label, options) in _POSITIONS.items()
    for blocks in (_SHALLOW, _DEEP)
  }


def _norm_claims(scale: str) -> list[Claim]:
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


def _norm_miniature(results: Results) -> list[str]:
  shallow, deep = (DEPTHS[results.scale][n] for n in (_SHALLOW, _DEEP))
  return [
    f'Here, {_SHALLOW} and {_DEEP} blocks become {shallow} and {deep}. On text,'
    ' models with LayerNorm last became unstable from about ten blocks on'
    ' (Takase et al. 2022).',
  ]


NORM_POSITION = table(
  'norm_position',
  'LayerNorm before or after attention and MLP, by depth',
  _cells,
  heading='5-shot accuracy in percent',
  claims=_norm_claims,
  notes=_NORM_NOTES,
  miniature=_norm_miniature,
  beyond=True,
)
