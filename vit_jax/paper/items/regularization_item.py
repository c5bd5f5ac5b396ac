"""Regularization on ImageNet alone as an item (Sections 1 and B.1)."""

import pathlib

from vit_jax.paper import numbers
from vit_jax.paper.claims import regularization_claims as claims
from vit_jax.paper.items import asked, table_items
from vit_jax.paper.items.item import Item
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Cell, Section, Table
from vit_jax.paper.runs import Pretraining, Results, Transfer

NAME = 'regularization'
_TITLE = 'Regularization in pre-training on ImageNet alone'
# The paper prints a number or words about the first two rows.
_PAPER = (*numbers.REGULARIZATION.values(), None)
_RESNET = (
  'The paper does not say how it trained ResNets on ImageNet. Here, we use the'
  ' settings of the BiT authors, as in Figure 3: 90 epochs of SGD with a weight'
  ' decay of 0.0001.'
)


def regularization() -> Item:
  """ViT-B/16 with strong and weak regularization, beside a ResNet (B.1)."""

  def render(results: Results, folder: pathlib.Path) -> Section:
    del folder
    rows, cells = _rows(results.scale), {}
    for (row, start), printed in zip(rows.items(), _PAPER, strict=True):
      wanted = asked.of(values.IMAGENET, start)
      cells[row, values.IMAGENET] = Cell(
        wanted.number(results), printed, wanted.expected(results)
      )
    table = Table(
      'ImageNet accuracy after fine-tuning', [*rows], [values.IMAGENET], cells
    )
    return Section(NAME, _TITLE, (table,), notes=_notes(results))

  nodes = {
    scale: tuple(
      Transfer(start, values.IMAGENET) for start in _rows(scale).values()
    )
    for scale in claims.RESNETS
  }
  return Item(
    NAME,
    _TITLE,
    nodes['paper'],
    render,
    in_miniature=nodes['mini'],
    in_midi=nodes['midi'],
    claims=claims.regularization,
  )


def _rows(scale: str) -> dict[str, Pretraining]:
  """Returns label of a row -> its first pre-training."""
  return {
    f'{claims.MODEL}, strong regularization': claims.strong(scale),
    f'{claims.MODEL}, weak regularization': claims.weak(scale),
    claims.RESNETS[scale]: claims.resnet(scale),
  }


def _notes(results: Results) -> list[str]:
  """Returns what a reader must know about the settings."""
  smaller = claims.SMALLER.get(results.scale)
  notes = table_items.seen(results)
  notes.append(
    'The strong regularization is that of Table 3. The paper does not say what'
    ' dropout rate and weight decay a weak regularization has. We take the'
    ' weakest that configs/sweeps/regularisation.py tries. All other settings'
    ' are the same with strong and with weak regularization.'
  )
  if smaller and smaller.decay(1) != 1:
    notes.append(
      "In miniature, every weight decay is the paper's times"
      f' {smaller.decay(1):.2g}.'
    )
  for name, options in (('strong', claims.STRONG), ('weak', claims.WEAK)):
    dropout, decay = (
      smaller.option(key, value) if smaller else value
      for key, value in options.items()
    )
    notes.append(
      f'Here, {name} regularization is a dropout rate of {dropout:g} and a'
      f' weight decay of {decay:.3g}.'
    )
  if smaller is None:
    return [*notes, _RESNET]
  steps = claims.STEPS[results.scale]
  return [
    *notes,
    'Table 3 has no ResNets on ImageNet. So'
    f' {claims.RESNETS[results.scale]} takes the weight decay of ResNets on'
    f' JFT-300M. Here, it is {smaller.weight_decay:g}.',
    'No run of this table clips gradients. In the paper, pre-training on'
    ' ImageNet clips them.',
    f'These runs have about {steps:,} steps. Other miniatures on ImageNet have'
    ' fewer steps. Here, more steps are needed, so that a model overfits the'
    ' few images: otherwise, regularization could not help.',
  ]
