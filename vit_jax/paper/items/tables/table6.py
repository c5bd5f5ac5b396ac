"""Table 6: accuracy and compute of models pre-trained on JFT-300M (C)."""

from vit_jax.paper import cost
from vit_jax.paper.item import grid, of_paper
from vit_jax.paper.items.tables.table5 import REAL_IN_MINIATURE, measured
from vit_jax.paper.numbers import printed
from vit_jax.paper.report import Cell, Number
from vit_jax.paper.runs import Pretraining, Results

EXAFLOPS = 'exaFLOPs'
PAPER = printed('table6')


def _start(row: str) -> Pretraining:
  model, epochs = row.removesuffix(' epochs').split(', ')
  return Pretraining(model, epochs=int(epochs))


# Row -> its pre-training, on JFT-300M.
STARTS = {row: _start(row) for row in PAPER.rows}


def compute(start: Pretraining, scale: str) -> float:
  """Returns the compute of a model on all of JFT-300M, before any run.

  Args:
    start: with 7 or 14 epochs; at the paper's scale, one of the table's.
    scale: one of `SCALES`; see `cost.UNITS`.
  """
  if scale == 'paper':
    return PAPER[f'{start.model}, {start.epochs:g} epochs', EXAFLOPS].value
  return cost.teraflops_in_miniature(start, scale)


_NOTES = (
  'Our exaFLOPs are not measured: they are counted in the forward pass of our'
  ' models (vit_jax.accounting), times 3 for forward and backward pass, times'
  ' images and epochs.',
  cost.CORE_DAYS_ARE,
)


def _computed(results: Results) -> dict[tuple[str, str], Cell]:
  """Returns the cells that follow from the models alone, without any run."""
  found = {}
  for row, start in STARTS.items():
    # `cost.exaflops` counts the paper's models; a miniature has others.
    ours = None
    if results.comparable:
      ours = Number((cost.exaflops(start),), (f'counted: {start.name}',))
    found[row, EXAFLOPS] = Cell(ours, PAPER[row, EXAFLOPS], expected=False)
    if days := results.core_days(start):
      found[row, cost.CORE_DAYS] = Cell(days, expected=False)
  return found


ITEM = of_paper(
  PAPER,
  grid(STARTS, {t: measured(t) for t in PAPER.columns if t != EXAFLOPS}),
  notes=lambda results: _NOTES if results.comparable else [],
  miniature=[REAL_IN_MINIATURE],
  computed=_computed,
)
