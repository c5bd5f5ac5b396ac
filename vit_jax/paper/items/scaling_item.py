"""Figure 8 as an item: few-shot accuracy as a ViT's dimensions are scaled."""

import pathlib

from vit_jax.pages import drawing
from vit_jax.paper import cost, numbers, plots
from vit_jax.paper.claims import curve_claims
from vit_jax.paper.items.item import Item
from vit_jax.paper.report import Number, Picture, Section
from vit_jax.paper.runs import Pretraining, Results

_BASE_DEPTH = curve_claims.SHAPE['depth']
_DEPTHS = (4, _BASE_DEPTH, 16, 32, 64)
_IMAGENET, _AVERAGE = 'ImageNet 5shot', 'Average 5shot'
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


def figure8() -> Item:
  """Few-shot accuracy by compute, as one dimension is scaled (D.2)."""
  title = 'Few-shot accuracy as dimensions of a ViT are scaled'
  series = _series()

  def render(results: Results, pictures: pathlib.Path) -> Section:
    base = cost.compute_of(results, curve_claims.depth(_BASE_DEPTH))
    points = {
      (dimension, compute / base): found
      for dimension, shapes in series.items()
      for start in shapes
      if (found := _accuracies(results, start))
      # In miniature, both are known only once the runs are finished.
      and base
      and (compute := cost.compute_of(results, start))
    }
    paper = numbers.FIGURES['figure8']
    drawing.save(
      plots.figure8(points, paper, overlay=results.comparable),
      pictures / 'figure8',
      plots.figure8_rows(points, paper),
      mark=results.mark,
    )
    picture = Picture(title, f'{pictures.name}/figure8', _CAPTION)
    notes = [*_NOTES]
    if not results.comparable:
      notes.append(_depths_note(results.scale))
    return Section('figure8', title, (picture,), notes=notes)

  return Item(
    'figure8',
    title,
    tuple(
      dict.fromkeys(start for shapes in series.values() for start in shapes)
    ),
    render,
    claims=curve_claims.figure8,
  )


def _depths_note(scale: str) -> str:
  """Returns a note on the numbers of blocks of a miniature."""
  papers, ours = (
    f'{", ".join(map(str, several))} and {last}'
    for *several, last in (
      _DEPTHS,
      [curve_claims.DEPTHS[scale][blocks] for blocks in _DEPTHS],
    )
  )
  return (
    'Elsewhere in miniature, the depths of all ViTs are divided by the same'
    f' number. Here, another rule holds: {papers} blocks become {ours}.'
    f'{_WHY_DEPTHS[scale]}'
  )


def _series() -> dict[str, list[Pretraining]]:
  """Returns dimension -> the first run of each point; all have the base."""
  shape = curve_claims.shape
  base = curve_claims.depth(_BASE_DEPTH)
  halved = dict(depth=4, width=512, mlp_dim=1024, heads=8)
  doubled = dict(depth=16, width=2048, mlp_dim=4096, heads=32)
  return {
    'All': [
      shape('all halved', **halved),
      base,
      shape('all doubled', **doubled),
    ],
    'Depth': [curve_claims.depth(blocks) for blocks in _DEPTHS],
    'Patch size': [base, shape('depth 8', model='ViT-L/16')],
    'Width MLP': [
      shape('MLP 1024', mlp_dim=1024),
      base,
      shape('MLP 4096', mlp_dim=4096),
      shape('MLP 8192', mlp_dim=8192),
    ],
    'Width': [
      shape('width 512', width=512, heads=8),
      base,
      shape('width 2048', width=2048, heads=32),
    ],
  }


def _accuracies(results: Results, start: Pretraining) -> dict[str, Number]:
  """Returns panel -> accuracy as a fraction; missing ones are absent."""
  nodes = results.seeds(start)
  found = {
    _IMAGENET: results.few_shot(nodes, scale=1.0),
    _AVERAGE: results.average_few_shot(nodes, scale=1.0),
  }
  return {panel: n for panel, n in found.items() if n is not None}
