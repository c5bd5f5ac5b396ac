"""Which runs the items have: what they show, and what their claims need."""

import dataclasses
import functools
import pathlib

from vit_jax.paper.claims import counts, printed
from vit_jax.paper.claims.claim import Claim
from vit_jax.paper.claims.counts import Need, Pilot
from vit_jax.paper.items.item import Item
from vit_jax.paper.runs import Node, Pretraining, Transfer, Vtab, seeds

SCALES = ('paper', 'mini', 'midi')
_PILOT = pathlib.Path(__file__).parent / 'claims' / 'pilot_mini.json'


@dataclasses.dataclass(frozen=True)
class Design:
  """The scale of the runs, and how many pre-trainings claims are tested on.

  Attributes:
    scale: one of `SCALES`.
    seeds: `counts.AUTO`, or the number of pre-trainings of each mean.
    pilot: the differences and spreads that `counts.AUTO` plans with.
    confirms: the date and the hash of the registered set-up that the runs
      confirm, as a sentence; '' if they explore.
  """

  scale: str
  seeds: str | int = counts.AUTO
  pilot: Pilot = counts.EMPTY
  confirms: str = ''
  # Item -> its needs: power is simulated, which takes time.
  _known: dict[str, list[tuple[Claim, Need]]] = dataclasses.field(
    default_factory=dict, compare=False, repr=False
  )

  def counts(self, item: Item) -> dict[Pretraining, int]:
    """Returns first pre-training -> number of those that differ in the seed.

    It has the pre-trainings of the item's claims; there is one of all others.
    """
    return counts.of_starts(self.needs(item))

  def needs(self, item: Item) -> list[tuple[Claim, Need]]:
    """Returns the item's claims with what each takes to be decided."""
    if item.name not in self._known:
      claims = item.claims(self.scale)
      self._known[item.name] = [
        (
          claim,
          counts.need(claim, len(claims), self.scale, self.seeds, self.pilot),
        )
        for claim in claims
      ]
    return self._known[item.name]

  def nodes(self, item: Item) -> tuple[Node, ...]:
    """Returns the item's runs: what it shows, and what its claims need."""
    several = self.counts(item)
    shown = [
      other
      for node in item.shown_at(self.scale)
      for other in _seeds(node, several)
    ]
    tested = [
      node
      for claim in item.claims(self.scale)
      for mean in claim.means()
      for node in mean.nodes(several[mean.start])
    ]
    return tuple(dict.fromkeys([*shown, *tested]))


# Cached: the runs of a design take seconds to simulate, and a command asks for
# the same design several times.
@functools.cache
def read(
  scale: str,
  seeds: str | int = '',
  pilot: str = '',
  *,
  own_data: bool = False,
) -> Design:
  """Returns a design from its words.

  Args:
    scale: one of `SCALES`.
    seeds: 'auto', or a number; '': 1 at the paper's scale, where each
      pre-training is expensive, and else 'auto'.
    pilot: the path of a pilot; '': the one that comes with the package.
    own_data: whether a miniature has other data than the package's pilot.

  Raises:
    ValueError: a word is unknown, or the pilot cannot be read.
  """
  if scale not in SCALES:
    raise ValueError(
      f'scale={scale!r} is unknown; choose one of {list(SCALES)}.'
    )
  if seeds == '':
    seeds = 1 if scale == 'paper' else counts.AUTO
  if seeds != counts.AUTO:
    try:
      seeds = int(seeds)
    except ValueError:
      seeds = 0
    if seeds < 1:
      raise ValueError(
        f'seeds must be {counts.AUTO}, or a number from 1 on: how many'
        ' pre-trainings each claim is tested on.'
      )
  if pilot:
    found = counts.read(pathlib.Path(pilot))
  else:
    found = counts.EMPTY if own_data else kept(scale)
  return Design(scale, seeds, found)


@functools.cache
def kept(scale: str) -> Pilot:
  """Returns the pilot of a scale that comes with the package.

  In miniature, it is of runs that are used for nothing else. At the paper's
  scale, it is of the printed numbers.
  """
  if scale == 'paper':
    return printed.pilot()
  if scale == 'midi':
    return counts.EMPTY
  return counts.read(_PILOT) if _PILOT.exists() else counts.EMPTY


def _seeds(node: Node, several: dict[Pretraining, int]) -> list[Node]:
  """Returns a shown node for each pre-training of its kind."""
  match node:
    case Transfer() | Vtab():
      return [
        dataclasses.replace(node, pretraining=start)
        for start in seeds(node.pretraining, several.get(node.pretraining, 1))
      ]
  return seeds(node, several.get(node, 1))
