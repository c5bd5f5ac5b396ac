"""The type of an item of the reproduction."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from vit_jax.paper.claims.claim import Claim
from vit_jax.paper.report import Section
from vit_jax.paper.runs import Node, Results


def _no_claims(scale: str) -> list[Claim]:
  del scale
  return []


@dataclasses.dataclass(frozen=True)
class Item:
  """A table or a figure.

  Attributes:
    name: such as `table5`.
    title: what it shows.
    nodes: the runs that it shows; of pre-trainings that differ only in their
      seed, the first. `design.Design.nodes` adds the others.
    render: returns its section from the results that exist; it writes pictures
      to the given folder, WORKDIR/figures. The answers to the claims follow.
    measure: measures what no run does: `(scale, folder)`, called after the runs
      with 'mini' or 'paper' and WORKDIR/measured. It continues where it ended.
    measured: returns how many measurements of `measure` are done, and how many
      there are; the arguments are the same.
    in_miniature: the runs at the scale 'mini', if they are others; None: the
      same runs.
    in_midi: the same at the scale 'midi'; None: the runs of the paper's scale.
    curves: whether it needs metrics from during its pre-trainings, to show or
      to choose a step by, instead of those of their end only.
    claims: returns the paper's claims about it at one of `design.SCALES`.
    inside: kinds of `measures.Inside` that it shows of its runs, beside those
      of its claims.
    evaluate: evaluates finished runs on data that nobody can download, which
      `--NAME=PATH` gives: `(results, PATH, folder)`, called after the runs with
      WORKDIR/measured. Without PATH, the item's runs are not made for it.
    lacking: a sentence on these data, for who has not given them.
    beyond: whether the paper does not ask this. `all` leaves such items out.
    scales: those of `design.SCALES` at which it has runs.
  """

  name: str
  title: str
  nodes: tuple[Node, ...]
  render: Callable[[Results, pathlib.Path], Section]
  measure: Callable[[str, pathlib.Path], None] | None = None
  measured: Callable[[str, pathlib.Path], tuple[int, int]] | None = None
  in_miniature: tuple[Node, ...] | None = None
  in_midi: tuple[Node, ...] | None = None
  curves: bool = False
  claims: Callable[[str], Sequence[Claim]] = _no_claims
  inside: tuple[str, ...] = ()
  evaluate: Callable[[Results, str, pathlib.Path], None] | None = None
  lacking: str = ''
  beyond: bool = False
  scales: tuple[str, ...] = ('paper', 'mini', 'midi')

  def shown_at(self, scale: str) -> tuple[Node, ...]:
    """Returns the runs that it shows at one of `design.SCALES`."""
    if scale not in self.scales:
      return ()
    others = {'mini': self.in_miniature, 'midi': self.in_midi}.get(scale)
    return self.nodes if others is None else others
