"""Figure 8: few-shot accuracy as a ViT's dimensions are scaled (D.2)."""

import math
from collections.abc import Iterator

from vit_jax.paper import cost
from vit_jax.paper.claims import Claim
from vit_jax.paper.item import figure
from vit_jax.paper.items import shapes
from vit_jax.paper.runs import FEW_SHOT, Results

_NOTES = (
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


def _claims(scale: str) -> list[Claim]:
  """How the dimensions of a ViT should be scaled."""
  found, ours = shapes.measure(scale), shapes.DEPTHS[scale]
  narrow, wide, fine, base = map(
    found, (shapes.NARROW, shapes.WIDE, shapes.FINE, shapes.BASE)
  )
  at = {
    blocks: found(shapes.depth(blocks)) for blocks in shapes.DEPTHS['paper']
  }
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
  base = cost.compute_of(results, shapes.BASE)
  for dimension, starts in shapes.SERIES.items():
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


def _miniature(results: Results) -> list[str]:
  depths = ', '.join(
    f'{ours} for {papers}'
    for papers, ours in shapes.DEPTHS[results.scale].items()
  )
  note = (
    'Elsewhere in miniature, the depths of all ViTs are divided by the same'
    f' number. Here, the numbers of blocks are: {depths}.'
  )
  return [note + _WHY_DEPTHS * (results.scale == 'mini')]


ITEM = figure(
  'figure8',
  'Few-shot accuracy as dimensions of a ViT are scaled',
  _points,
  {
    **{'x_label': 'Relative compute', 'log_x': True, 'y_label': 'Accuracy'},
    'panels': {name: name for name in ('ImageNet 5shot', 'Average 5shot')},
    'series': [*shapes.SERIES],
  },
  caption='Compute is relative to that of the ViT with 8 blocks, width 1024,'
  ' MLP 2048 and patches of 32 px.',
  shown=lambda scale: [
    one for starts in shapes.SERIES.values() for one in starts
  ],
  claims=_claims,
  notes=_NOTES,
  miniature=_miniature,
)
