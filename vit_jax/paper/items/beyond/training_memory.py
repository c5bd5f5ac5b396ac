"""Beyond the paper: the memory of training by model.

The paper has that of inference. See `compiled_memory`.
"""

import pathlib
from collections.abc import Mapping

from vit_jax.paper import answers, plots
from vit_jax.paper.item import Item
from vit_jax.paper.items.beyond import compiled_memory as memory
from vit_jax.paper.items.beyond.compiled_memory import (
  MODELS,
  NAME,
  PAIRS,
  Memory,
)
from vit_jax.paper.items.tables.table6 import FAMILIES, family
from vit_jax.paper.report import Cell, Claim, Number, Section, Table
from vit_jax.paper.runs import Results
from vit_jax.plan import compilers, devices

_TITLE = 'Training memory for one more image, on a core of a TPU v3'
_PARAMETERS, _GMACS, _PER_IMAGE = (
  *('Parameters (millions)', 'Forward pass (GMACs)'),
  'GiB an image',
)
_CLAIM = (
  'A ViT takes less training memory per image than the ResNet of comparable'
  ' compute. This is not a claim of the paper, whose Appendix D.5 is about'
  ' inference.'
)


def _render(results: Results, pictures: pathlib.Path) -> Section:
  folder = pictures.parent / 'measured'
  found = memory.read(folder, results.scale)
  numbers = {
    model: {
      column: Number((value,), (f'plan: {model}',))
      for column, value in (
        (_PARAMETERS, of.parameters),
        (_GMACS, of.gmacs),
        (_PER_IMAGE, of.per_image),
      )
    }
    for model, of in found.items()
  }
  table = Table(
    _TITLE,
    MODELS,
    (_PARAMETERS, _GMACS, _PER_IMAGE),
    {
      (model, column): Cell(numbers.get(model, {}).get(column))
      for model in MODELS
      for column in (_PARAMETERS, _GMACS, _PER_IMAGE)
    },
    # Miniatures take a hundredth.
    digits=4 if results.comparable else 6,
  )
  marks = [
    mark
    for model in sorted(found, key=lambda model: found[model].gmacs)
    for mark in plots.Mark.of(
      FAMILIES[family(model)], model, numbers[model][_PER_IMAGE]
    )
  ]
  picture = plots.save(
    NAME,
    _TITLE,
    'The figure orders the models by the multiply-adds of a forward pass. The'
    ' model with the fewest is on the left.',
    plots.bars(
      marks,
      y_label='Memory of training (GiB an image)',
      series=[*FAMILIES.values()],
      by_label=True,
      height=3.4,
    ),
    marks,
    pictures,
    results,
  )
  # A miniature's ResNets have other proportions of compute (configs/mini.py).
  claims = [_claim(found)] if results.comparable else []
  return Section(
    NAME,
    _TITLE,
    (table, picture, *claims),
    notes=_notes(found, memory.scale_of(results.scale)),
    measured=memory.progress(results.scale, folder),
    missing=_missing(found),
  )


def _claim(found: Mapping[str, Memory]) -> Claim:
  """Answers from one compiler, so the answer is never more than 'seen once'."""
  missing = [name for pair in PAIRS for name in pair if name not in found]
  if missing:
    names = '; '.join(dict.fromkeys(missing))
    return Claim(_CLAIM, answers.MISSING, f'Not compiled: {names}.')
  compared = [
    (found[vit].per_image, found[resnet].per_image) for vit, resnet in PAIRS
  ]
  evidence = '; '.join(
    f'{vit} {of_vit:.4f}, {resnet} {of_resnet:.4f},'
    f' {of_vit / of_resnet:.2f} times as much'
    for (vit, resnet), (of_vit, of_resnet) in zip(PAIRS, compared, strict=True)
  )
  less = sum(of_vit < of_resnet for of_vit, of_resnet in compared)
  return Claim(
    _CLAIM,
    answers.SEEN if less == len(PAIRS) else answers.NOT_SEEN,
    f'GiB an image: {evidence}. The ViT takes less in {less} of'
    f' {len(PAIRS)} pairs. This is what one compiler says.',
  )


def _missing(found: Mapping[str, Memory]) -> tuple[str, ...]:
  missing = ', '.join(model for model in MODELS if model not in found)
  if not missing:
    return ()
  if not devices.have_compiler():
    return (memory.INSTALL,)
  return (
    f'Not compiled yet, or without two batches that leave room: {missing}. The'
    f' command python -m vit_jax.reproduce {NAME} compiles these models. Each'
    ' takes some minutes.',
  )


def _notes(found: Mapping[str, Memory], of: str) -> list[str]:
  """Returns what the numbers mean; `of` is a key of `memory.FILES`."""
  if not found:
    return []
  plans = {model: one.plans for model, one in found.items()}
  made = {compilers.named(p) for pair in plans.values() for p in pair.values()}
  batches = ', '.join(
    f'{model} {few} and {many}' for model, (many, few) in plans.items()
  )
  notes = [
    f'Nothing was run: the compiler ({"; ".join(sorted(made))}) states the'
    f' memory of a step of {memory.FILES[of]} on each of the {memory.CORES}'
    f' cores of {memory.TOPOLOGY}. "GiB an image" is the difference in memory'
    ' between two batches, divided by the difference in images. So it does not'
    ' include parameters and optimizer. It includes what is kept for the'
    ' backward pass, work space and padding. Memory is not exactly proportional'
    ' to the number of images, so other batches may give other numbers.',
    f'Images on a core: {batches}.',
  ]
  if of == 'mini':
    notes.append(
      'In miniature, the page does not ask whether ViTs take less memory.'
      ' Beside the ViTs, the ResNets there have less compute than in the paper'
      ' (configs/mini.py).'
    )
  return notes


def _measure(results: Results, folder: pathlib.Path, data: str) -> None:
  del data
  memory.measure(results.scale, folder)


ITEM = Item(
  NAME,
  _TITLE,
  _render,
  measure=_measure,
  measured=memory.progress,
  beyond=True,
)
