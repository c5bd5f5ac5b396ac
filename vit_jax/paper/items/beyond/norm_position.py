"""Beyond the paper: LayerNorm before or after, in shallow and deep ViTs.

The paper has LayerNorm before each part of a block, and compares nothing. That
deep Transformers need it there is a finding of others, on translation: Wang et
al. 2019 (arXiv:1906.01787) and Xiong et al. 2020 (arXiv:2002.04745).
"""

import pathlib
from collections.abc import Iterator

from vit_jax.paper import plots
from vit_jax.paper.claims import Claim, Sum
from vit_jax.paper.item import Cells, of_means
from vit_jax.paper.items.figures.figure8 import depth, measure, shape
from vit_jax.paper.report import Picture, Table
from vit_jax.paper.runs import Pretraining, Results

_NAME = 'norm_position'
_TITLE = 'LayerNorm before or after attention and MLP, by depth'
_SHALLOW, _DEEP = 8, 64  # Blocks, as in Figure 8.
_PRE, _POST = 'LayerNorm first', 'LayerNorm last'
_CAPTION = (
  'Expected from the literature: in shallow models, LayerNorm first and'
  ' LayerNorm last are similar. In deep models, LayerNorm first is ahead.'
)
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


def _start(position: str, blocks: int) -> Pretraining:
  """Returns the first run of a place of LayerNorm and a number of blocks."""
  if position == _PRE:
    return depth(blocks)
  return shape(
    f'depth {blocks}, post-LayerNorm', depth=blocks, norm_position='post'
  )


_STARTS = {
  (position, blocks): _start(position, blocks)
  for position in (_PRE, _POST)
  for blocks in (_SHALLOW, _DEEP)
}


def _claims(scale: str) -> list[Claim]:
  def lead(blocks: int) -> Sum:
    first, last = (_STARTS[place, blocks] for place in (_PRE, _POST))
    return measure(scale)(first) - measure(scale)(last)

  half = 0.5 * lead(_DEEP)
  return [
    Claim(
      'deep_needs_pre',
      'Beyond the paper: deep models need LayerNorm before attention and MLP.'
      f' With {_DEEP} blocks, such a model is ahead of one with LayerNorm after'
      ' the residual sums (Wang et al. 2019; Xiong et al. 2020).',
      {f'lead of LayerNorm first at {_DEEP} blocks': lead(_DEEP)},
    ),
    Claim(
      'matters_more_deep',
      'Beyond the paper: the place of LayerNorm matters more in deeper models.'
      f' From {_SHALLOW} to {_DEEP} blocks, the lead of LayerNorm before'
      ' attention and MLP grows (Wang et al. 2019).',
      {'growth of the lead': lead(_DEEP) - lead(_SHALLOW)},
    ),
    Claim(
      'shallow_close',
      'Beyond the paper: in shallow models, the place of LayerNorm matters'
      f' little. With {_SHALLOW} blocks, both places differ by less than half'
      f' of the lead with {_DEEP} blocks (Wang et al. 2019).',
      {
        f'half of the lead at {_DEEP} blocks {sign} that at {_SHALLOW}': half
        + weight * lead(_SHALLOW)
        for sign, weight in (('minus', -1.0), ('plus', 1.0))
      },
      'The half is our choice.',
    ),
  ]


def _cells(scale: str) -> Cells:
  return {
    (f'{blocks} blocks', position): measure(scale)(start)
    for (position, blocks), start in _STARTS.items()
  }


def _drawn(
  results: Results, pictures: pathlib.Path, table: Table
) -> Iterator[Picture]:
  marks = plots.marks_of(
    (position, blocks, table.cells[f'{blocks} blocks', position].ours)
    for position, blocks in _STARTS
  )
  figure = plots.lines(
    marks,
    x_label='Number of blocks'
    if results.comparable
    else "Number of blocks, at the paper's scale",
    y_label='Average 5-shot accuracy (%)'
    if results.scale == 'mini'
    else 'Linear 5-shot ImageNet top-1 (%)',
    log_x=True,
    x_ticks=sorted({mark.x for mark in marks}),
    height=3.5,
  )
  yield plots.save(_NAME, _TITLE, _CAPTION, figure, marks, pictures, results)


def _notes(results: Results) -> list[str]:
  if results.comparable:
    return [*_NOTES]
  return [
    *_NOTES,
    f'Here, {_SHALLOW} and {_DEEP} blocks become {_BLOCKS[results.scale]}. On'
    ' text, models with LayerNorm last became unstable from about ten blocks'
    ' on (Takase et al. 2022).',
  ]


ITEM = of_means(
  _NAME,
  _TITLE,
  _cells,
  heading='5-shot accuracy in percent',
  claims=_claims,
  notes=_notes,
  more=_drawn,
  beyond=True,
)
