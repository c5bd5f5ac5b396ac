"""Beyond the paper: the memory of training by model.

The paper has that of inference. See `compiled_memory`.
"""

import pathlib
from collections.abc import Iterator, Mapping
from operator import attrgetter

from vit_jax.paper import answers, plots
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items.beyond import compiled_memory as memory
from vit_jax.paper.items.beyond.compiled_memory import (
  MODELS,
  NAME,
  PAIRS,
  Memory,
)
from vit_jax.paper.items.tables.table6 import FAMILIES, family
from vit_jax.paper.report import Cell, Claim, Missing, Number, Table
from vit_jax.paper.runs import Results
from vit_jax.plan import compilers, devices

_TITLE = 'Training memory for one more image, on a core of a TPU v3'
_PER_IMAGE = 'GiB an image'
# Column -> what it shows of a `Memory`.
_COLUMNS = {
  'Parameters (millions)': attrgetter('parameters'),
  'Forward pass (GMACs)': attrgetter('gmacs'),
  _PER_IMAGE: attrgetter('per_image'),
}
_CLAIM = (
  'A ViT takes less training memory per image than the ResNet of comparable'
  ' compute. This is not a claim of the paper, whose Appendix D.5 is about'
  ' inference.'
)
_CAPTION = (
  'The figure orders the models by the multiply-adds of a forward pass. The'
  ' model with the fewest is on the left.'
)


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  found = memory.read(pictures.parent / 'measured', results.scale)
  cells = {
    (model, column): Cell(
      Number((read(found[model]),), (f'plan: {model}',))
      if model in found
      else None
    )
    for model in MODELS
    for column, read in _COLUMNS.items()
  }
  # Miniatures take a hundredth.
  digits = 4 if results.comparable else 6
  yield Table(_TITLE, MODELS, [*_COLUMNS], cells, digits)
  marks = plots.marks_of(
    (FAMILIES[family(model)], model, cells[model, _PER_IMAGE].ours)
    for model in sorted(found, key=lambda model: found[model].gmacs)
  )
  figure = plots.bars(
    marks,
    y_label='Memory of training (GiB an image)',
    series=[*FAMILIES.values()],
    by_label=True,
    height=3.4,
  )
  yield plots.save(NAME, _TITLE, _CAPTION, figure, marks, pictures, results)
  # A miniature's ResNets have other proportions of compute (configs/mini.py).
  if results.comparable:
    yield _claim(found)
  if found:
    yield from _notes(found, memory.scale_of(results.scale))
  if missing := ', '.join(model for model in MODELS if model not in found):
    yield Missing(
      f'Not compiled yet, or without two batches that leave room: {missing}.'
      f' The command python -m vit_jax.reproduce {NAME} compiles these models.'
      ' Each takes some minutes.'
      if devices.have_compiler()
      else memory.INSTALL
    )


def _claim(found: Mapping[str, Memory]) -> Claim:
  """Answers from one compiler, so the answer is never more than 'seen once'."""
  missing = [name for pair in PAIRS for name in pair if name not in found]
  if missing:
    names = '; '.join(dict.fromkeys(missing))
    return Claim(_CLAIM, answers.MISSING, f'Not compiled: {names}.')
  evidence, less = [], 0
  for vit, resnet in PAIRS:
    of_vit, of_resnet = found[vit].per_image, found[resnet].per_image
    evidence.append(
      f'{vit} {of_vit:.4f}, {resnet} {of_resnet:.4f},'
      f' {of_vit / of_resnet:.2f} times as much'
    )
    less += of_vit < of_resnet
  return Claim(
    _CLAIM,
    answers.SEEN if less == len(PAIRS) else answers.NOT_SEEN,
    f'GiB an image: {"; ".join(evidence)}. The ViT takes less in {less} of'
    f' {len(PAIRS)} pairs. This is what one compiler says.',
  )


def _notes(found: Mapping[str, Memory], of: str) -> list[str]:
  """Returns what the numbers mean; `of` is a key of `memory.FILES`."""
  made = {
    compilers.named(plan)
    for one in found.values()
    for plan in one.plans.values()
  }
  batches = ', '.join(
    f'{model} {min(one.plans)} and {max(one.plans)}'
    for model, one in found.items()
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


ITEM = Item(
  NAME,
  _TITLE,
  _blocks,
  measure=lambda results, folder, data: memory.measure(results.scale, folder),
  measured=memory.progress,
  beyond=True,
)
