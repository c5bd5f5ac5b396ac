"""What an item of the reproduction is."""

import dataclasses
import pathlib
from collections.abc import Callable

from vit_jax.paper.report import Section
from vit_jax.paper.runs import Node, Results


@dataclasses.dataclass(frozen=True)
class Item:
  """A table or a figure.

  Attributes:
    name: such as `table5`.
    title: what it shows.
    nodes: the runs it is made of.
    render: its section, from what there is of them; pictures are written to
      the folder that is given, WORKDIR/figures.
    measure: what else there is to do: `(scale, folder)`, called after the runs
      with 'mini' or 'paper' and WORKDIR/measured. It goes on where it ended.
    measured: of that, how many measurements there are of how many: of the same
      arguments.
    in_miniature: the runs at the scale 'mini', where others answer what is
      asked; None: the same.
    curves: whether it shows what is measured during its pre-trainings, or
      chooses by it, instead of their end only.
  """

  name: str
  title: str
  nodes: tuple[Node, ...]
  render: Callable[[Results, pathlib.Path], Section]
  measure: Callable[[str, pathlib.Path], None] | None = None
  measured: Callable[[str, pathlib.Path], tuple[int, int]] | None = None
  in_miniature: tuple[Node, ...] | None = None
  curves: bool = False

  def nodes_at(self, scale: str) -> tuple[Node, ...]:
    """The runs it is made of at a scale, 'paper' or 'mini'."""
    if scale == 'mini' and self.in_miniature is not None:
      return self.in_miniature
    return self.nodes
