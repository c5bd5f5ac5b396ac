"""Table 6: accuracy and compute of models pre-trained on JFT-300M (C)."""

from vit_jax.paper import cost
from vit_jax.paper.item import grid, printed
from vit_jax.paper.items.tables.table5 import REAL_IN_MINIATURE, measured
from vit_jax.paper.numbers import read_table
from vit_jax.paper.report import Cell, Number
from vit_jax.paper.runs import Pretraining, Results

EXAFLOPS = 'exaFLOPs'
PAPER = read_table(
  'table6',
  'Accuracies and compute of models pre-trained on JFT-300M',
  (
    *('ImageNet', 'ImageNet ReaL', 'CIFAR-10', 'CIFAR-100'),
    *('Oxford-IIIT Pets', 'Oxford Flowers-102', EXAFLOPS),
  ),
  """
  ViT-B/32, 7 epochs       80.73  86.27  98.61  90.49  93.40  99.27    55
  ViT-B/16, 7 epochs       84.15  88.85  99.00  91.87  95.80  99.56   224
  ViT-L/32, 7 epochs       84.37  88.28  99.19  92.52  95.83  99.45   196
  ViT-L/16, 7 epochs       86.30  89.43  99.38  93.46  96.81  99.66   783
  ViT-L/16, 14 epochs      87.12  89.99  99.38  94.04  97.11  99.56  1567
  ViT-H/14, 14 epochs      88.08  90.36  99.50  94.71  97.11  99.71  4262
  BiT-R50x1, 7 epochs      77.54  84.56  97.67  86.07  91.11  94.26    50
  BiT-R50x2, 7 epochs      82.12  87.94  98.29  89.20  93.43  97.02   199
  BiT-R101x1, 7 epochs     80.67  87.07  98.48  89.17  94.08  95.95    96
  BiT-R152x1, 7 epochs     81.88  87.96  98.82  90.22  94.17  96.94   141
  BiT-R152x2, 7 epochs     84.97  89.69  99.06  92.05  95.37  98.62   563
  BiT-R152x2, 14 epochs    85.56  89.89  99.24  91.92  95.75  98.75  1126
  BiT-R200x3, 14 epochs    87.22  90.15  99.34  93.53  96.32  99.04  3306
  R50+ViT-B/32, 7 epochs   84.90  89.15  99.01  92.24  95.75  99.46   106
  R50+ViT-B/16, 7 epochs   85.58  89.65  99.14  92.63  96.65  99.40   274
  R50+ViT-L/32, 7 epochs   85.68  89.04  99.24  92.93  96.97  99.43   246
  R50+ViT-L/16, 7 epochs   86.60  89.72  99.18  93.64  97.03  99.40   859
  R50+ViT-L/16, 14 epochs  87.12  89.76  99.31  93.89  97.36  99.11  1668
  """,
  special={
    ('R50+ViT-L/16, 7 epochs', EXAFLOPS): {
      'note': 'the paper prints this number, but probably means 834: half of'
      ' the number for 14 epochs'
    }
  },
)


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


ITEM = printed(
  PAPER,
  grid(STARTS, {t: measured(t) for t in PAPER.columns if t != EXAFLOPS}),
  notes=lambda results: _NOTES if results.comparable else [],
  miniature=[REAL_IN_MINIATURE],
  computed=_computed,
)
