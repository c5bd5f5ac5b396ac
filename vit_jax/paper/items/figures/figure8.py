"""Figure 8: few-shot accuracy as a ViT's dimensions are scaled (D.2)."""

import math

from vit_jax.configs import midi, mini
from vit_jax.paper import cost, plots
from vit_jax.paper.claims import (
  AVERAGE_FIVE_SHOT,
  FIVE_SHOT,
  Claim,
  Measure,
  Sum,
)
from vit_jax.paper.item import figure
from vit_jax.paper.runs import FEW_SHOT, Pretraining, Results, structure
from vit_jax.sweep.spec import Value

# The base model, from which all others differ in some dimension. The paper does
# not print the heads; here they are as wide as in Table 1, except for ViT-H.
SHAPE = {'depth': 8, 'width': 1024, 'mlp_dim': 2048, 'heads': 16}
_DEPTHS = (4, SHAPE['depth'], 16, 32, 64)
# Scale -> the paper's number of blocks -> that of a miniature.
_OURS = {'mini': mini.MINI.depths, 'midi': midi.MIDI.depths}
_DEPTHS_ABOUT = {
  'paper': '',
  'mini': 'In miniature, 4, 16 and 64 blocks are 1, 3 and 5, which count as 1.6'
  ' and 0.7 doublings.',
}
_CAPTION = (
  "The paper's finding: more depth helps most, but less and less beyond 16"
  ' blocks. More width helps least. Smaller patches help, although they'
  ' add no parameters. Compute is relative to that of the ViT with 8 blocks,'
  ' width 1024, MLP 2048 and patches of 32 px.'
)
_NOTES = (
  'The paper does not print the depths, widths and MLP sizes that it tried,'
  " nor the numbers of attention heads. At the paper's scale, we chose 4 to 64"
  ' blocks, MLP 1024 to 8192, width 512 to 2048, and patches of 32 and 16 px;'
  ' each attention head has width 64. The series named "All" begins with the'
  ' ViT of 8 blocks, width 1024 and MLP 2048, and halves or doubles all three'
  ' at once. Each model is trained for 7 epochs. Points that no claim needs are'
  ' from a single run.',
  'Learning rates are from Table 3. A model with patches of 32 px has the rate'
  ' of ViT-L/32. A model with patches of 16 px has the rate of ViT-L/16, which'
  ' is lower.',
  'One panel of the figure has the few-shot accuracy on ImageNet, the other an'
  ' average over data sets. The paper does not say over which data sets. Here,'
  ' the average is over all few-shot data sets, including ImageNet.',
)
# Scale -> why it has the depths that it has.
_WHY_DEPTHS = {
  'mini': ' The second claim compares the gain per doubling of the depth. We'
  " count with the miniature's own depths: from 1 to 3 blocks, the depth"
  ' doubles 1.6 times (log2 of 3), and from 3 to 5 blocks 0.7 times. These runs'
  ' have few steps. A miniature with more than 5 blocks would not learn in them'
  ' where in an image the shapes are. In earlier runs, on images of 32 px, we'
  ' had 1, 2, 4, 8 and 16 blocks. Their results contradicted the claim that'
  ' deeper models are better, so we chose fewer blocks (LOG.md).',
  'midi': '',
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


_BASE = depth(SHAPE['depth'])
_NARROW = shape('width 512', width=512, heads=8)
_WIDE = shape('width 2048', width=2048, heads=32)
_FINE = shape('depth 8', model='ViT-L/16')
# Dimension -> the first run of each point; all have the base.
_SERIES = {
  'All': [
    shape('all halved', depth=4, width=512, mlp_dim=1024, heads=8),
    _BASE,
    shape('all doubled', depth=16, width=2048, mlp_dim=4096, heads=32),
  ],
  'Depth': [depth(blocks) for blocks in _DEPTHS],
  'Patch size': [_BASE, _FINE],
  'Width MLP': [
    shape('MLP 1024', mlp_dim=1024),
    _BASE,
    shape('MLP 4096', mlp_dim=4096),
    shape('MLP 8192', mlp_dim=8192),
  ],
  'Width': [_NARROW, _BASE, _WIDE],
}


def measure(scale: str) -> Measure:
  """Returns the few-shot accuracy that claims are about."""
  return AVERAGE_FIVE_SHOT if scale == 'mini' else FIVE_SHOT


def _claims(scale: str) -> list[Claim]:
  """How the dimensions of a ViT should be scaled."""
  found, ours = measure(scale), _OURS.get(scale, {n: n for n in _DEPTHS})
  narrow, wide, fine = map(found, (_NARROW, _WIDE, _FINE))

  def gain(less: int, more: int) -> Sum:
    """Returns what a doubling of the depth gains."""
    doublings = math.log2(ours[more] / ours[less])
    return (1 / doublings) * (found(depth(more)) - found(depth(less)))

  return [
    Claim(
      'depth',
      'Deeper models are better at the same width: 16 and 32 blocks are better'
      ' than 4 (D.2, Figure 8).',
      {
        f'gain from 4 to {blocks} blocks': found(depth(blocks))
        - found(depth(4))
        for blocks in (16, 32)
      },
    ),
    Claim(
      'diminishing',
      'Beyond 16 blocks, more depth helps less: per doubling of the depth, the'
      ' gain is smaller between 16 and 64 blocks than between 4 and 16 (D.2,'
      ' Figure 8).',
      {
        'gain of a doubling from 4 to 16 blocks minus that from 16 to 64': (
          gain(4, 16) - gain(16, 64)
        )
      },
      _DEPTHS_ABOUT[structure(scale)],
    ),
    Claim(
      'width',
      'Width helps least: a doubling of the width, between 512 and 2048, raises'
      ' the accuracy less than a doubling of the depth, between 4 and 16 blocks'
      ' (D.2, Figure 8).',
      {
        'gain of a doubling of the depth minus that of the width': gain(4, 16)
        - 0.5 * (wide - narrow)
      },
      'Doubling the width costs more compute than doubling the depth, which'
      f' favours the width. {_DEPTHS_ABOUT[structure(scale)]}'.strip(),
    ),
    Claim(
      'patches',
      'Smaller patches help, although they add no parameters (D.2, Figure 8).',
      {'gain from patches of 32 px to 16 px': fine - found(_BASE)},
    ),
  ]


def _marks(results: Results) -> list[plots.Mark]:
  base = cost.compute_of(results, _BASE)
  found = []
  for dimension, starts in _SERIES.items():
    for start in starts:
      seeds = results.seeds(start)
      # In miniature, both are known only once the runs are finished.
      compute = base and cost.compute_of(results, start)
      accuracies = {
        'ImageNet 5shot': results.number(seeds, FEW_SHOT, scale=1.0),
        'Average 5shot': results.average_few_shot(seeds, scale=1.0),
      }
      for panel, number in accuracies.items() if compute else ():
        found += plots.Mark.of(dimension, compute / base, number, panel)
  return found


def _notes(results: Results) -> list[str]:
  if results.comparable:
    return [*_NOTES]
  papers, ours = (
    f'{", ".join(map(str, several))} and {last}'
    for *several, last in (
      _DEPTHS,
      [_OURS[results.scale][blocks] for blocks in _DEPTHS],
    )
  )
  return [
    *_NOTES,
    'Elsewhere in miniature, the depths of all ViTs are divided by the same'
    f' number. Here, another rule holds: {papers} blocks become {ours}.'
    f'{_WHY_DEPTHS[results.scale]}',
  ]


ITEM = figure(
  'figure8',
  'Few-shot accuracy as dimensions of a ViT are scaled',
  _marks,
  lambda marks, results: plots.lines(
    marks,
    x_label='Relative compute',
    y_label='Accuracy',
    panels={name: name for name in ('ImageNet 5shot', 'Average 5shot')},
    series=[*_SERIES],
    log_x=True,
    height=3.2,
  ),
  caption=_CAPTION,
  shown=lambda scale: [one for starts in _SERIES.values() for one in starts],
  claims=_claims,
  notes=_notes,
)
