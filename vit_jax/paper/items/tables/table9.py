"""Table 9: accuracy by task of VTAB-1k (Appendix D.10), transposed."""

from vit_jax.paper.claims import vtab
from vit_jax.paper.item import of_paper
from vit_jax.paper.items.tables import table2
from vit_jax.paper.numbers import printed

STARTS = table2.STARTS
PAPER = printed('table9')

ITEM = of_paper(
  PAPER,
  {
    (row, column): vtab('mean' if row == 'Mean' else row)(start)
    for column, start in STARTS.items()
    for row in PAPER.rows
  },
  digits=1,
  miniature=[table2.VTAB_IN_MINIATURE],
)
