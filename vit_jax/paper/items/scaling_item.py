"""Figure 8 as an item: few-shot accuracy as a ViT's dimensions are scaled."""

import pathlib
from collections.abc import Mapping

from vit_jax.compare import drawing
from vit_jax.paper import cost, numbers, plots
from vit_jax.paper.claims import curve_claims
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Number, Picture, Section
from vit_jax.paper.runs import Node, Pretraining, Results

# The base model (D.2), from which all others differ in some dimension. The
# paper does not print the heads; here they are as wide as in Table 1, except
# for ViT-H.
_SHAPE = {'depth': 8, 'width': 1024, 'mlp_dim': 2048, 'heads': 16}
_BASE_DEPTH = _SHAPE['depth']
# Scale -> blocks -> runs. The claim needs a spread; several runs of 64 blocks
# cost too much.
_DEPTHS = {
  scale: dict.fromkeys((4, _BASE_DEPTH, 16, 32), runs) | {64: 1}
  for scale, runs in (('paper', 3), ('mini', 6))
}
_EPOCHS = 7
_IMAGENET, _AVERAGE = 'ImageNet 5shot', 'Average 5shot'
_CAPTION = (
  "The paper's finding: depth helps most, with diminishing returns beyond 16"
  ' blocks, and width least; smaller patches help without more parameters.'
  ' Compute is relative to the ViT of 8 blocks, width 1024, MLP 2048 and'
  ' patches of 32 px.'
)
_NOTES = (
  'The paper prints neither the grid nor the heads. Here there are 4 to 64'
  ' blocks, MLP 1024 to 8192, width 512 to 2048 with heads of width 64, patches'
  ' of 32 and 16 px, and all dimensions but the patches halved and doubled, for'
  ' 7 epochs each. The depths of 4 to 32 blocks have several runs each, all'
  ' others one.',
  "Learning rates are Table 3's: that of ViT-L/32 for patches of 32 px, and the"
  ' lower one of ViT-L/16 for patches of 16 px.',
  'The paper does not say what its average covers; here it covers all data sets'
  ' that few-shot accuracy is measured on, including ImageNet.',
)

_MINI_NOTE = (
  'In miniature, 4, 8, 16, 32 and 64 blocks become 1, 2, 3, 4 and 5: deeper'
  ' models would need more steps than they have to learn where things are.'
  ' These depths were chosen on images of 32 px, where a quarter of the blocks'
  ' had contradicted the claim. On images of 24 px, three runs of each depth'
  ' left the claim narrowly undecided, so three more were added (LOG.md).'
)


def figure8() -> Item:
  """Few-shot accuracy by compute, as one dimension is scaled (D.2)."""
  title = 'Few-shot accuracy as dimensions of a ViT are scaled'
  series = {scale: _series(scale) for scale in _DEPTHS}

  def render(results: Results, pictures: pathlib.Path) -> Section:
    counts = _DEPTHS[results.scale]
    base = cost.compute_of(results, _depth(_BASE_DEPTH, counts)[0])
    points = {
      (dimension, compute / base): found
      for dimension, shapes in series[results.scale].items()
      for nodes in shapes
      if (found := _accuracies(results, nodes))
      # In miniature, both are known only once the runs are finished.
      and base
      and (compute := cost.compute_of(results, nodes[0]))
    }
    depths = {
      depth: number
      for depth in counts
      if (number := results.few_shot(_depth(depth, counts), scale=1.0))
    }
    paper = numbers.FIGURES['figure8']
    drawing.save(
      plots.figure8(points, paper, overlay=results.comparable),
      pictures / 'figure8',
      plots.figure8_rows(points, paper),
      mark=results.mark,
    )
    picture = Picture(title, f'{pictures.name}/figure8', _CAPTION)
    claim = curve_claims.depth_helps(depths)
    notes = _NOTES if results.comparable else (*_NOTES, _MINI_NOTE)
    return Section('figure8', title, (picture, claim), notes=notes)

  return Item(
    'figure8',
    title,
    _nodes(series['paper']),
    render,
    in_miniature=_nodes(series['mini']),
  )


def _nodes(series: Mapping[str, list[list[Pretraining]]]) -> tuple[Node, ...]:
  """Returns all runs, each once."""
  return tuple(
    dict.fromkeys(
      node for shapes in series.values() for nodes in shapes for node in nodes
    )
  )


def _series(scale: str) -> dict[str, list[list[Pretraining]]]:
  """Returns dimension -> points, each a list of runs; all have the base."""
  counts = _DEPTHS[scale]
  base = _depth(_BASE_DEPTH, counts)
  halved = dict(depth=4, width=512, mlp_dim=1024, heads=8)
  doubled = dict(depth=16, width=2048, mlp_dim=4096, heads=32)
  return {
    'All': [
      _shaped('all halved', **halved),
      base,
      _shaped('all doubled', **doubled),
    ],
    'Depth': [_depth(depth, counts) for depth in counts],
    'Patch size': [base, _shaped('depth 8', model='ViT-L/16')],
    'Width MLP': [
      _shaped('MLP 1024', mlp_dim=1024),
      base,
      _shaped('MLP 4096', mlp_dim=4096),
      _shaped('MLP 8192', mlp_dim=8192),
    ],
    'Width': [
      _shaped('width 512', width=512, heads=8),
      base,
      _shaped('width 2048', width=2048, heads=32),
    ],
  }


def _depth(blocks: int, counts: Mapping[int, int]) -> list[Pretraining]:
  return _shaped(f'depth {blocks}', counts[blocks], depth=blocks)


def _shaped(
  label: str,
  runs: int = 1,
  model: str = 'ViT-L/32',
  **changes: int,
) -> list[Pretraining]:
  """Returns the runs of a point; its model is the base with `changes`."""
  return [
    Pretraining(
      model,
      values.JFT,
      _EPOCHS,
      options=tuple(
        (f'model.{key}', value) for key, value in (_SHAPE | changes).items()
      ),
      label=label,
      few_shot='several',
      seed=seed,
    )
    for seed in range(runs)
  ]


def _accuracies(
  results: Results, nodes: list[Pretraining]
) -> dict[str, Number]:
  """Returns panel -> accuracy as a fraction; missing ones are absent."""
  found = {
    _IMAGENET: results.few_shot(nodes, scale=1.0),
    _AVERAGE: results.average_few_shot(nodes, scale=1.0),
  }
  return {panel: n for panel, n in found.items() if n is not None}
