"""Beyond the paper: LayerNorm before or after, in shallow and deep ViTs.

The paper has LayerNorm before each part of a block, and compares nothing. That
deep Transformers need it there is a finding of others, on translation: Wang et
al. 2019 (arXiv:1906.01787) and Xiong et al. 2020 (arXiv:2002.04745).
"""

import pathlib
from collections.abc import Iterator

from vit_jax.paper import plots
from vit_jax.paper.claims import Claim, Sum
from vit_jax.paper.item import Cells, table
from vit_jax.paper.items.figures import figure8
from vit_jax.paper.report import Picture, Table
from vit_jax.paper.runs import Pretraining, Results

_NAME = 'norm_position'
_TITLE = 'LayerNorm before or after attention and MLP, by depth'
_SHALLOW, _DEEP = 8, 64  # Blocks, as in Figure 8.
_PRE, _POST = 'LayerNorm first', 'LayerNorm last'
_NOTES = (
  'The models of the paper have "LayerNorm first": in each block, one before'
  ' attention and one before the MLP, and one more after the last block.'
  ' "LayerNorm last" is the design of the original Transformer (Vaswani et al.'
  ' 2017, arXiv:1706.03762): a LayerNorm follows each residual sum, and there'
  ' is none after the last block. The claims are from the literature on machine'
  ' translation: Wang et al. 2019 (arXiv:1906.01787) and Xiong et al. 2020'
  ' (arXiv:2002.04745).',
  'The models are those of Figure 8, with the learning rate and the warm-up of'
  ' ViT-L/32 in Table 3. Models with LayerNorm last may need another learning'
  ' rate. So the table compares both designs at equal settings, not each at its'
  ' best settings.',
)


def _start(position: str, blocks: int) -> Pretraining:
  """Returns the first run of a place of LayerNorm and a number of blocks."""
  if position == _PRE:
    return figure8.depth(blocks)
  return figure8.shape(
    f'depth {blocks}, post-LayerNorm', depth=blocks, norm_position='post'
  )


_STARTS = {
  (position, blocks): _start(position, blocks)
  for position in (_PRE, _POST)
  for blocks in (_SHALLOW, _DEEP)
}


def _claims(scale: str) -> list[Claim]:
  measure = figure8.measure(scale)

  def lead(blocks: int) -> Sum:
    return measure(_STARTS[_PRE, blocks]) - measure(_STARTS[_POST, blocks])

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
    (f'{blocks} blocks', position): figure8.measure(scale)(start)
    for (position, blocks), start in _STARTS.items()
  }


def _drawn(
  results: Results, pictures: pathlib.Path, shown: Table
) -> Iterator[Picture]:
  marks = plots.marks_of(
    (position, blocks, shown.cells[f'{blocks} blocks', position].ours)
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
  caption = 'The lead of LayerNorm first is expected in deep models.'
  yield plots.save(_NAME, _TITLE, caption, figure, marks, pictures, results)


def _notes(results: Results) -> list[str]:
  if results.comparable:
    return [*_NOTES]
  shallow, deep = (figure8.DEPTHS[results.scale][n] for n in (_SHALLOW, _DEEP))
  return [
    *_NOTES,
    f'Here, {_SHALLOW} and {_DEEP} blocks become {shallow} and {deep}. On text,'
    ' models with LayerNorm last became unstable from about ten blocks on'
    ' (Takase et al. 2022).',
  ]


ITEM = table(
  _NAME,
  _TITLE,
  _cells,
  heading='5-shot accuracy in percent',
  claims=_claims,
  notes=_notes,
  more=_drawn,
  beyond=True,
)
