"""The paper's figures of numbers (2 to 5, 8, 9, 12, 13), from plain numbers.

from vit_jax.pages import drawing
from vit_jax.paper import numbers, plots

points = {('ViT-B/16', 'ImageNet'): Number((77.9,), ('run',))}
paper = numbers.FIGURES['figure3']
figure = plots.figure3(points, data=['ImageNet'], paper=paper)
rows = plots.figure3_rows(points, data=['ImageNet'], paper=paper)
drawing.save(figure, 'figures/figure3', rows)

`figureN` returns a `matplotlib.figure.Figure`, `figureN_rows` the numbers in
it as a table with the columns of `COLUMNS`. Missing numbers are not drawn.
Points of the paper are always in the table; `overlay=False` leaves them out
of the figure, for example beside a miniature, where they mean nothing.
"""

from vit_jax.paper.plots.accuracy_over_compute import (
  figure5,
  figure5_rows,
  figure8,
  figure8_rows,
  figure13,
  figure13_rows,
)
from vit_jax.paper.plots.bars import (
  figure2,
  figure2_rows,
  training_memory,
  training_memory_rows,
)
from vit_jax.paper.plots.lines import (
  figure3,
  figure3_rows,
  figure4,
  figure4_rows,
  figure9,
  figure9_rows,
)
from vit_jax.paper.plots.marks import COLUMNS
from vit_jax.paper.plots.speed import figure12, figure12_rows

__all__ = [
  'COLUMNS',
  'figure2',
  'figure2_rows',
  'figure3',
  'figure3_rows',
  'figure4',
  'figure4_rows',
  'figure5',
  'figure5_rows',
  'figure8',
  'figure8_rows',
  'figure9',
  'figure9_rows',
  'figure12',
  'figure12_rows',
  'figure13',
  'figure13_rows',
  'training_memory',
  'training_memory_rows',
]
