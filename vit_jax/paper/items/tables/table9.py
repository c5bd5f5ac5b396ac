"""Table 9: accuracy by task of VTAB-1k (Appendix D.10), transposed."""

from vit_jax.paper.claims import vtab
from vit_jax.paper.item import printed
from vit_jax.paper.items.tables import table2
from vit_jax.paper.numbers import read_table

STARTS = table2.STARTS
PAPER = read_table(
  'table9',
  'Accuracies of the tasks of VTAB-1k',
  [*STARTS],
  """
  Caltech101    95.3  95.4  90.8
  CIFAR-100     85.5  81.9  84.1
  DTD           75.2  74.3  74.1
  Flowers102    99.7  99.7  99.3
  Pets          97.2  96.7  92.7
  Sun397        65.0  63.5  61.0
  SVHN          88.9  87.4  80.9
  Camelyon      83.3  83.6  82.5
  EuroSAT       96.7  96.5  95.6
  Resisc45      91.4  89.7  85.2
  Retinopathy   76.6  77.1  75.3
  Clevr-Count   91.7  86.4  70.3
  Clevr-Dist    63.8  63.1  56.1
  DMLab         53.1  49.7  41.9
  dSpr-Loc      79.4  74.5  74.7
  dSpr-Ori      63.3  60.5  64.9
  KITTI-Dist    84.5  82.2  79.9
  sNORB-Azim    33.2  36.2  30.5
  sNORB-Elev    51.2  51.1  41.7
  Mean          77.6  76.3  72.7
  """,
)

ITEM = printed(
  PAPER,
  {
    (row, column): vtab('mean' if row == 'Mean' else row)(start)
    for column, start in STARTS.items()
    for row in PAPER.rows
  },
  digits=1,
  miniature=[table2.VTAB_IN_MINIATURE],
)
