"""Beyond the paper: the memory of training by model.

The paper has that of inference. See `compiled_memory`.
"""

import pathlib
from collections.abc import Iterator, Mapping

from vit_jax.paper import answers
from vit_jax.paper.item import Item, Part
from vit_jax.paper.items.beyond import compiled_memory as memory
from vit_jax.paper.items.beyond.compiled_memory import MODELS, NAME, PAIRS
from vit_jax.paper.items.speeds import timed
from vit_jax.paper.report import Cell, Claim, Missing, Number, Table
from vit_jax.paper.runs import Results
from vit_jax.plan import compilers

_TITLE = 'Training memory for one more image, on a core of a TPU v3'
_COLUMNS = ('Parameters (millions)', 'Forward pass (GMACs)', 'GiB an image')
_CLAIM = (
  'A ViT takes less training memory per image than the ResNet of comparable'
  ' compute. This is not a claim of the paper, whose Appendix D.5 is about'
  ' inference.'
)


def _blocks(results: Results, pictures: pathlib.Path) -> Iterator[Part]:
  compiled = memory.read(pictures.parent / 'measured', results.scale)
  found = {model: memory.per_image(plans) for model, plans in compiled.items()}
  cells = {(model, column): Cell() for model in MODELS for column in _COLUMNS}
  for model, plans in compiled.items():
    plan, _ = plans.values()
    shown = (plan['params'] / 1e6, plan['forward_gmacs'], found[model])
    for column, number in zip(_COLUMNS, shown, strict=True):
      cells[model, column] = Cell(Number((number,), (f'plan: {model}',)))
  # Miniatures take a hundredth.
  digits = 4 if results.comparable else 6
  yield Table(_TITLE, MODELS, _COLUMNS, cells, digits)
  # A miniature's ResNets have other proportions of compute (configs/mini.py).
  if results.comparable:
    yield _claim(found)
  if found:
    yield _note(compiled, timed(results.scale))
  if missing := ', '.join(model for model in MODELS if model not in found):
    yield Missing(
      f'Not compiled yet, or without two batches that leave room: {missing}.'
      f' {memory.INSTALL}'
    )


def _claim(found: Mapping[str, float]) -> Claim:
  """Answers from one compiler, so the answer is never more than 'seen once'."""
  missing = [name for pair in PAIRS for name in pair if name not in found]
  if missing:
    names = '; '.join(dict.fromkeys(missing))
    return Claim(_CLAIM, answers.MISSING, f'Not compiled: {names}.')
  evidence = '; '.join(
    f'{vit} {found[vit]:.4f}, {resnet} {found[resnet]:.4f},'
    f' {found[vit] / found[resnet]:.2f} times as much'
    for vit, resnet in PAIRS
  )
  less = sum(found[vit] < found[resnet] for vit, resnet in PAIRS)
  return Claim(
    _CLAIM,
    answers.SEEN if less == len(PAIRS) else answers.NOT_SEEN,
    f'GiB an image: {evidence}. The ViT takes less in {less} of {len(PAIRS)}'
    ' pairs. This is what one compiler says.',
  )


def _note(compiled: Mapping[str, memory.Plans], scale: str) -> str:
  """Returns what the numbers mean; `scale` is a key of `memory.FILES`."""
  made = {
    compilers.named(plan)
    for plans in compiled.values()
    for plan in plans.values()
  }
  return (
    f'Nothing was run: the compiler ({"; ".join(sorted(made))}) states the'
    f' memory of a step of {memory.FILES[scale]} on each of the {memory.CORES}'
    f' cores of {memory.TOPOLOGY}. "GiB an image" is the difference in memory'
    ' between two batches, divided by the difference in images. So it does not'
    ' include parameters and optimizer. It includes what is kept for the'
    ' backward pass, work space and padding. Memory is not exactly proportional'
    ' to the number of images, so other batches may give other numbers.'
  )


ITEM = Item(
  NAME,
  _TITLE,
  _blocks,
  miniature=[
    'In miniature, the page does not ask whether ViTs take less memory, because'
    ' the ResNets there have less compute beside the ViTs than in the paper.'
  ],
  measure=lambda results, folder, data: memory.measure(results.scale, folder),
  measured=memory.progress,
  beyond=True,
)
