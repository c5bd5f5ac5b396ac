"""Beyond the paper: LayerNorm before or after, in shallow and deep ViTs."""

import pathlib

from vit_jax.pages import drawing
from vit_jax.paper import plots
from vit_jax.paper.claims import norm_position_claims
from vit_jax.paper.items.item import Item
from vit_jax.paper.report import Cell, Picture, Section, Table
from vit_jax.paper.runs import Results

_NAME = 'norm_position'
_TITLE = 'LayerNorm before or after attention and MLP, by depth'
_DEPTHS = (norm_position_claims.SHALLOW, norm_position_claims.DEEP)
_STARTS = {
  (position, blocks): norm_position_claims.start(position, blocks)
  for position in norm_position_claims.POSITIONS
  for blocks in _DEPTHS
}
_NOTES = (
  'The paper does not study the place of LayerNorm. Its models have "LayerNorm'
  ' first": in each block, one before attention and one before the MLP. They'
  ' have one more LayerNorm after the last block. The claims are from the'
  ' literature on machine translation with Transformers: Wang et al. 2019'
  ' (arXiv:1906.01787) and Xiong et al. 2020 (arXiv:2002.04745).',
  '"LayerNorm last" is the design of the original Transformer (Vaswani et al.'
  ' 2017, arXiv:1706.03762): a LayerNorm follows each residual sum. There is no'
  ' further LayerNorm after the last block.',
  'The models are those of Figure 8. All have the learning rate and the warm-up'
  ' that Table 3 has for ViT-L/32. Models with LayerNorm last may need another'
  ' learning rate. So the table compares both designs at equal settings, not'
  ' each at its best settings.',
)
_BLOCKS = {'mini': '2 and 5', 'midi': '2 and 16'}


def norm_position() -> Item:
  """Few-shot accuracy with LayerNorm first and last, by depth."""

  def render(results: Results, pictures: pathlib.Path) -> Section:
    average = results.scale == 'mini'  # As the claims about Figure 8.
    accuracy = results.average_few_shot if average else results.few_shot
    found = {
      place: accuracy(results.seeds(start)) for place, start in _STARTS.items()
    }
    points = {place: n for place, n in found.items() if n is not None}
    drawing.save(
      # Figure 4 is the same chart, over another number.
      plots.figure4(
        points,
        x_label='Number of blocks'
        if results.comparable
        else "Number of blocks, at the paper's scale",
        y_label='Average 5-shot accuracy (%)'
        if average
        else 'Linear 5-shot ImageNet top-1 (%)',
      ),
      pictures / _NAME,
      plots.figure4_rows(points),
      mark=results.mark,
    )
    table = Table(
      '5-shot accuracy in percent',
      tuple(f'{blocks} blocks' for blocks in _DEPTHS),
      norm_position_claims.POSITIONS,
      {
        (f'{blocks} blocks', position): Cell(
          found[position, blocks], expected=results.has(start)
        )
        for (position, blocks), start in _STARTS.items()
      },
    )
    picture = Picture(
      _TITLE,
      f'{pictures.name}/{_NAME}',
      'Expected from the literature: in shallow models, LayerNorm first and'
      ' LayerNorm last are similar. In deep models, LayerNorm first is ahead.',
    )
    notes = list(_NOTES)
    if not results.comparable:
      notes.append(
        f'Here, {_DEPTHS[0]} and {_DEPTHS[1]} blocks become'
        f' {_BLOCKS[results.scale]}. On text, models with LayerNorm last'
        ' became unstable from about ten blocks on (Takase et al. 2022).'
      )
    return Section(_NAME, _TITLE, (table, picture), notes=notes)

  return Item(
    _NAME,
    _TITLE,
    tuple(_STARTS.values()),
    render,
    claims=norm_position_claims.norm_position,
    beyond=True,
  )
