"""Figure 3: fine-tuned accuracy on ImageNet by pre-training data (4.3)."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from vit_jax.paper import plots
from vit_jax.paper.claims import (
  PLATEAU,
  Claim,
  Mean,
  not_in_miniature,
  tuned,
)
from vit_jax.paper.item import figure
from vit_jax.paper.items import notes
from vit_jax.paper.items.tables import table5
from vit_jax.paper.numbers import IMAGENET, IMAGENET21K, JFT
from vit_jax.paper.runs import Results, Transfer, pretraining

DATA = (IMAGENET, IMAGENET21K, JFT)
# The paper does not name its BiT models; these are Table 6's smallest and
# largest with 7 epochs.
BITS = ('BiT-R50x1', 'BiT-R152x2')
# From small to large, which have larger markers.
VITS = ('ViT-B/32', 'ViT-B/16', 'ViT-L/32', 'ViT-L/16', 'ViT-H/14')
# The paper has no ViT-H/14 that is pre-trained on ImageNet.
STARTS = {
  (model, data): pretraining(model, data)
  for data in DATA
  for model in (*VITS, *BITS)
  if (model, data) != ('ViT-H/14', IMAGENET)
}
ERROR_BARS = (
  ' If a model was pre-trained with several seeds, the point shows the mean'
  ' over the seeds, and the error bar shows the standard deviation. The'
  ' accuracy of a seed is the mean over its fine-tuning runs.'
)
_BIT_NOTE = (
  'The paper does not say how it pre-trained BiT on ImageNet and on'
  " ImageNet-21k. On ImageNet, we use the BiT authors' settings: 90"
  ' epochs of SGD. On ImageNet-21k, we use the settings of the ViTs.'
)
# As fractions of the distance between two data sets: how far the area extends
# beyond them, the shift between series, and that of the paper's points.
_EDGE, _ASIDE, _PAPER_ASIDE = 0.15, 0.03, 0.08


def _found(model: str, data: str) -> Mean:
  return tuned(IMAGENET)(pretraining(model, data))


# Data -> the lead of the larger ViT.
_GAIN = {
  data: _found('ViT-L/16', data) - _found('ViT-B/16', data) for data in DATA
}
# Which model is best depends on the amount of data.
_CLAIMS = [
  Claim(
    'large_is_worse',
    'Pre-trained on ImageNet alone, a larger ViT is worse than a smaller one'
    ' (4.3, Figure 3).',
    {'lead of ViT-B/16 over ViT-L/16': -1.0 * _GAIN[IMAGENET]},
  ),
  Claim(
    'large_is_similar',
    'Pre-trained on ImageNet-21k, a larger ViT is about as good as a smaller'
    ' one: their difference is less than the lead of the larger ViT on'
    ' JFT-300M (4.3, Figure 3).',
    {
      'gain on JFT-300M minus that on ImageNet-21k': _GAIN[JFT]
      - _GAIN[IMAGENET21K],
      'gain on JFT-300M plus that on ImageNet-21k': _GAIN[JFT]
      + _GAIN[IMAGENET21K],
    },
    'The gain is the lead of ViT-L/16 over ViT-B/16.',
  ),
  Claim(
    'large_is_better',
    'Pre-trained on JFT-300M, a larger ViT is better than a smaller one (4.3,'
    ' Figure 3).',
    {'lead of ViT-L/16 over ViT-B/16': _GAIN[JFT]},
  ),
  Claim(
    'resnets_on_little',
    'Pre-trained on ImageNet alone, a large ViT is behind the ResNets (4.3,'
    ' Figure 3).',
    {
      f'lead of {bit} over ViT-L/16': _found(bit, IMAGENET)
      - _found('ViT-L/16', IMAGENET)
      for bit in BITS
    },
  ),
  Claim(
    'vits_on_much',
    'Pre-trained on JFT-300M, a large ViT is ahead of the ResNets (4.3,'
    ' Figure 3).',
    {
      f'lead of ViT-L/16 over {bit}': _found('ViT-L/16', JFT) - _found(bit, JFT)
      for bit in BITS
    },
  ),
]


def _marks(results: Results) -> list[plots.Mark]:
  found = {
    place: tuned(IMAGENET)(start).by_start(results)
    for place, start in STARTS.items()
  }
  for data in DATA:
    # Without all BiT models, the range would be misleading.
    if any(found.get((model, data)) is None for model in BITS):
      found |= {(model, data): None for model in BITS}
  printed = {
    (model, data): value.noted('Table 5')
    for row, (data, task) in table5.ROWS.items()
    for model in table5.PAPER.columns
    if task == IMAGENET and (value := table5.PAPER[row, model])
  }
  return plots.marks_of(
    (*place, number)
    for numbers in (found, printed)
    for place, number in numbers.items()
  )


def _draw(marks: Sequence[plots.Mark], results: Results):
  """Draws ViTs as lines over an area between the worst and best BiT."""
  shown = [m for m in marks if results.comparable or m.source == 'ours']
  present = {mark.series for mark in shown}
  vits = [model for model in VITS if model in present]
  points = []
  for mark in shown:
    if mark.series in vits:
      # Markers must not hide one another.
      aside = _ASIDE * (vits.index(mark.series) - (len(vits) - 1) / 2)
      aside += _PAPER_ASIDE * (mark.source == 'paper')
      points.append(dataclasses.replace(mark, x=DATA.index(mark.x) + aside))
  ours = {(m.series, m.x) for m in shown if m.source == 'ours'}
  points += [  # A line has a gap where a number in the middle is missing.
    plots.Mark(model, place, math.nan)
    for model in vits
    for place, data in enumerate(DATA)
    if (model, data) not in ours
  ]
  looks = plots.styles(vits)
  figure = plots.lines(
    points,
    x_label='Pre-training data',
    y_label='ImageNet top-1 accuracy (%)',
    series=['BiT', *vits],
    style={
      name: look | {'marker': 'o', 'markersize': 4 + 1.3 * i}
      for i, (name, look) in enumerate(looks.items())
    },
    before=lambda axes: _draw_bit(axes, shown),
    height=3.7,
  )
  if shown:
    figure.axes[0].set_xlim(-0.3, len(DATA) - 0.7)
    figure.axes[0].set_xticks(range(len(DATA)), DATA)
  return figure


def _draw_bit(axes: Any, shown: Sequence[plots.Mark]) -> None:
  """Draws the area; it has a gap where BiT models are missing."""
  bits = [mark for mark in shown if mark.series in BITS]
  heights = [[m.y for m in bits if m.x == data] or [math.nan] for data in DATA]
  if bits:
    # Extended to both sides, because a single place would have no width.
    axes.fill_between(
      [-_EDGE, *range(len(DATA)), len(DATA) - 1 + _EDGE],
      [min(several) for several in (heights[0], *heights, heights[-1])],
      [max(several) for several in (heights[0], *heights, heights[-1])],
      facecolor='0.8',
      edgecolor=plots.GREY,
      linewidth=0.6,
      alpha=0.6,
      zorder=1,
      label='BiT',
    )


def _caption(results: Results) -> str:
  found = notes.seen(results) + notes.images_21k(results)
  if results.comparable:  # In miniature each model has one rate.
    found.append(_BIT_NOTE)
  return (
    "The paper's finding: large ViTs need much data. If they are pre-trained"
    ' on ImageNet, they are worse than smaller ViTs and than BiT. If they are'
    ' pre-trained on JFT-300M, they are the best.'
    f'{"".join(f" {note}" for note in found)}{ERROR_BARS}'
  )


ITEM = figure(
  'figure3',
  'ImageNet accuracy by pre-training data',
  _marks,
  _draw,
  caption=_caption,
  shown=lambda scale: [Transfer(start, IMAGENET) for start in STARTS.values()],
  claims=not_in_miniature(PLATEAU, _CLAIMS),
)
