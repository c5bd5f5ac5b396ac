"""Figure 13: few-shot accuracy of axial models, by compute and speed (D.6)."""

import pathlib
from collections.abc import Iterator

from vit_jax.inference_speed import networks
from vit_jax.paper import cost, plots
from vit_jax.paper.claims import FIVE_SHOT, Claim
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items.figures import figure12
from vit_jax.paper.items.tables import table6
from vit_jax.paper.numbers import Value
from vit_jax.paper.report import Missing
from vit_jax.paper.runs import FEW_SHOT, Pretraining, Results, structure

_TITLE = 'Few-shot accuracy of axial models'
_VITS = ('ViT-B/32', 'ViT-B/16')
# Model -> an accuracy at the height of its label, and the ticks around that.
_LABELS = {
  'ViT-B/32': (0.5625, 'between 0.55 and 0.575'),
  'ViT-B/16': (0.6375, 'between 0.625 and 0.65'),
  'Axial-ViT-B/32': (0.5875, 'between 0.575 and 0.6'),
  'Axial-ViT-B/16': (0.65, 'at least 0.65'),
  'AxialResNet50': (0.5625, 'between 0.55 and 0.575'),
  'BiT-R50x1': (0.5, 'about 0.5'),
}
# ExaFLOPs of 7 epochs, derived from the sizes of the models: 12 pairs of a row
# block and a column block.
_DERIVED = {'Axial-ViT-B/32': 108.0, 'Axial-ViT-B/16': 426.0}
# In miniature, axial models learn positions later: with a quarter of these
# epochs they know only colours (LOG.md).
_EPOCHS = {'paper': 7, 'mini': 28}


def _start(scale: str, model: str) -> Pretraining:
  """Returns the first run of a model."""
  return Pretraining(model, epochs=_EPOCHS[structure(scale)])


def _claims(scale: str) -> list[Claim]:
  axial, vit = (
    {name: FIVE_SHOT(_start(scale, f'{kind}{name}')) for name in _VITS}
    for kind in ('Axial-', '')
  )
  return [
    Claim(
      'axial',
      'Axial ViTs are better than the ordinary ViTs that they are derived from'
      ' (D.6, Figure 13).',
      {f'lead of Axial-{name}': axial[name] - vit[name] for name in _VITS},
    )
  ]


def _printed() -> Iterator[tuple]:
  """Yields the paper's points in the left panel; x is in exaFLOPs."""
  for model, (accuracy, where) in _LABELS.items():
    x, x_note, row = _DERIVED.get(model), 'derived', f'{model}, 7 epochs'
    if row in table6.PAPER.rows:
      x, x_note = table6.PAPER[row, 'exaFLOPs'].value, 'Table 6'
    note = f"approximate: {where}, by the order of the figure's text"
    value = Value(accuracy, note=note)
    yield model, x, value, 'left', '', x_note if x else ''


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  measured = figure12.read(pictures.parent / 'measured', results.scale)
  size = networks.PRETRAINING_SIZE[figure12.timed(results.scale)]
  found = measured.speeds(size) if measured else {}
  points = []
  for model in _LABELS:
    start = _start(results.scale, model)
    number = results.number(results.seeds(start), FEW_SHOT, scale=1.0)
    points.append((model, cost.compute_of(results, start), number, 'left'))
    points.append((model, found.get(model), number, 'right'))
  if results.comparable:  # Otherwise they would be in another unit.
    points += _printed()
  caption = (
    "The paper's finding: AxialResNet50 is accurate for its compute, but very"
    ' slow. Speed is the inference speed, measured as for Figure 12'
    + (f': {measured.settings.device}.' if found else '.')
  )
  yield plots.picture(
    *('figure13', _TITLE, caption, points, pictures, results),
    x_label=(
      f'Pre-training compute ({cost.UNITS[results.scale]})',
      'Peak speed (images/s)',
    ),
    y_label='Linear 5-shot ImageNet top-1',
    panels={'left': '', 'right': ''},
    log_x=True,
    scatter=True,
  )
  if unknown := [model for model in _LABELS if model not in found]:
    yield Missing(
      f'The speed of {", ".join(unknown)} is not measured yet. The item'
      ' figure12 measures these speeds.'
    )


ITEM = Item(
  'figure13',
  _TITLE,
  _blocks,
  lambda scale: [_start(scale, model) for model in _LABELS],
  _claims,
  notes=[
    "The paper's tables have no learning rate for axial models. The one that"
    ' we chose is in configs/pretrain.py.'
  ],
)
