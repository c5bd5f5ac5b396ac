"""Figure 5: accuracy by compute of the pre-training (Section 4.4)."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from vit_jax.paper import claims, cost
from vit_jax.paper.answers import Outcome
from vit_jax.paper.claims import AVERAGE5, Claim, Sum, tuned
from vit_jax.paper.item import figure
from vit_jax.paper.items.figures.figure3 import ERROR_BARS
from vit_jax.paper.items.tables import table6
from vit_jax.paper.items.tables.table6 import EXAFLOPS, STARTS
from vit_jax.paper.numbers import IMAGENET, Value, average5
from vit_jax.paper.runs import Results

# The largest ratio at which all ViTs must be comparable to measure the ratio.
_FARTHEST = 4.0
# The ratios among which it is searched.
_RATIOS = tuple(2 ** (step / 16) for step in range(-48, 65))


def interpolate(points: Mapping[float, Sum], compute: float) -> Sum | None:
  """Returns the accuracy that a family is taken to have at some compute.

  It is interpolated between the two neighbouring runs, linearly in the
  logarithm of the compute.

  Args:
    points: compute -> accuracy.
    compute: where to interpolate.

  Returns:
    None outside of the range of the points' compute.
  """
  for low, high in itertools.pairwise(sorted(points)):
    if low <= compute <= high:
      part = math.log(compute / low) / math.log(high / low)
      return (1 - part) * points[low] + part * points[high]
  return None


def slope(points: Mapping[float, Sum]) -> Sum:
  """Returns the least-squares slope of accuracy over doublings of compute."""
  xs = [math.log2(compute) for compute in points]
  middle = math.fsum(xs) / len(xs)
  scale = math.fsum((x - middle) ** 2 for x in xs)
  first, *rest = (
    (x - middle) / scale * accuracy
    for x, accuracy in zip(xs, points.values(), strict=True)
  )
  return sum(rest, start=first)


def ratio(
  leads: Callable[[float], Mapping[str, Sum]],
  test: Callable[[Sum], Outcome | None],
) -> str:
  """Returns a sentence on the ratio of compute at equal accuracy.

  It is the ratio at which the mean lead ends. Its interval has all ratios at
  which the mean lead is not certain. The mean is over the same ViTs at all
  ratios: those that can be compared with ResNets of `_FARTHEST` times their
  compute.

  Args:
    leads: ratio -> the leads of those ViTs that can be compared.
    test: tests a sum.
  """
  vits = [*leads(_FARTHEST)]
  ends: dict[float, tuple[float, float, float]] = {}
  for ratio in _RATIOS:
    found = leads(ratio)
    if vits and {*vits} <= {*found}:
      outcome = test(claims.average([found[vit] for vit in vits]))
      if outcome and outcome.interval:
        low, high = outcome.interval
        ends[ratio] = (low, outcome.estimate, high)
  if not ends:
    return ''
  low, equal, high = (_end(ends, which) for which in range(3))
  return (
    f'At equal accuracy ResNets need {equal} times the compute of'
    f' {", ".join(vits)} (95% interval: {low} to {high}).'
  )


def _end(leads: Mapping[float, Sequence[float]], which: int) -> str:
  """Returns the ratio at which the lead first ends, in words."""
  ended = [ratio for ratio in leads if leads[ratio][which] <= 0]
  if not ended:
    return f'more than {max(leads):.2g}'
  if ended[0] == min(leads):
    return f'less than {ended[0]:.2g}'
  return f'{ended[0]:.2g}'


# Figure 5. --------------------------------------------------------------------

# The hybrids with the least and the most compute in Table 6.
_SMALL, _LARGE = 'R50+ViT-B/32, 7 epochs', 'R50+ViT-L/16, 14 epochs'
# Family, as in the legend -> its rows of Table 6, by the names of the models.
FAMILIES = {
  'Transformer (ViT)': [row for row in STARTS if row.startswith('ViT')],
  'ResNet (BiT)': [row for row in STARTS if row.startswith('BiT')],
  'Hybrid': [row for row in STARTS if '+' in row],
}
_VITS, _RESNETS, _ = FAMILIES.values()
# How much more compute ResNets need at least (4.4: 2 to 4 times).
_RATIO = 2.0


def _claims(scale: str) -> list[Claim]:
  """Which family is best for its compute.

  Accuracies are compared at equal compute: a run's accuracy with that which
  another family is taken to reach there, see `interpolate`. A run outside of
  the range of the other family's compute is not compared.
  """
  compute = {row: table6.compute(one, scale) for row, one in STARTS.items()}
  rows = {row: AVERAGE5(start) for row, start in STARTS.items()}
  vits = {compute[row]: rows[row] for row in _VITS}
  resnets = {compute[row]: rows[row] for row in _RESNETS}

  def leads(ratio: float) -> dict[str, Sum]:
    """Returns the lead of each ViT over ResNets with more compute."""
    others = {row: interpolate(resnets, ratio * compute[row]) for row in _VITS}
    return {row: rows[row] - other for row, other in others.items() if other}

  small, large = (
    rows[row] - interpolate(vits, compute[row]) for row in (_SMALL, _LARGE)
  )
  upper = dict(sorted(vits.items())[len(vits) // 2 - 1 :])
  twice = leads(_RATIO)
  found = [
    Claim(
      'vits_ahead',
      'At equal compute, ViTs are ahead of ResNets. A curve goes through the'
      " ResNets' accuracies over their compute. Each ViT in the range of the"
      " curve is compared with the curve's value at the ViT's compute (4.4,"
      ' Figure 5).',
      {
        f'lead of {row} over ResNets at its compute': lead
        for row, lead in leads(1.0).items()
      },
      'ResNets are interpolated in the logarithm of the compute.',
    ),
    Claim(
      'half_the_compute',
      'ViTs need at most half of the compute of ResNets: on average, ViTs are'
      f' ahead of ResNets that have {_RATIO:g} times as much compute (4.4,'
      ' Figure 5).',
      {
        f'mean lead of {"; ".join(twice)} over ResNets with {_RATIO:g} times'
        ' the compute': claims.average([*twice.values()])
      },
      more=functools.partial(ratio, leads),
    ),
    Claim(
      'hybrids_ahead',
      'With little compute, a hybrid is ahead of ViTs with the same compute'
      ' (4.4, Figure 5).',
      {f'lead of {_SMALL} over ViTs at its compute': small},
    ),
    Claim(
      'lead_vanishes',
      'The lead of hybrids over ViTs vanishes for larger models: a large hybrid'
      ' has less than half of the lead of a small one (4.4, Figure 5).',
      {
        f'lead of {_SMALL}': small,
        f'half of it, minus the lead of {_LARGE}': 0.5 * small - large,
      },
    ),
    Claim(
      'no_saturation',
      'ViTs do not saturate within the compute that was tried: even among'
      ' the half of the ViTs that take the most compute, accuracy grows with'
      ' compute (4.4, Figure 5).',
      {'points per doubling of the compute': slope(upper)},
    ),
  ]
  return claims.not_in_miniature(claims.PLATEAU, found)


def _points(results: Results) -> Iterator[tuple]:
  family = {row: name for name, rows in FAMILIES.items() for row in rows}
  for row, start in STARTS.items():
    series, printed = family[row], table6.PAPER.row(row)
    compute = cost.compute_of(results, start)
    exaflops = table6.PAPER[row, EXAFLOPS]
    where = '; '.join(filter(None, ['Table 6', exaflops.note]))
    average = Value(average5(printed), note='derived from Table 6')
    on_imagenet = table6.PAPER[row, IMAGENET].noted('Table 6')
    for panel, measure, papers_own in (
      ('Average-5', AVERAGE5, average),
      (IMAGENET, tuned(IMAGENET), on_imagenet),
    ):
      if compute is not None:
        number = measure(start).by_start(results)
        yield series, compute, number, panel, row
      if results.comparable:  # Otherwise it would be in another unit.
        yield series, exaflops.value, papers_own, panel, row, where


def _short(run: str) -> str:
  """Returns `L/16, 14 ep.` for `ViT-L/16, 14 epochs`; 7 epochs are usual."""
  name = run.replace('ViT-', '').removeprefix('BiT-')
  return name.removesuffix(', 7 epochs').replace(' epochs', ' ep.')


ITEM = figure(
  'figure5',
  'Accuracy by compute of the pre-training',
  _points,
  lambda results: {
    'x_label': f'Pre-training compute ({cost.UNITS[results.scale]})',
    'y_label': 'Transfer accuracy (%)',
    'panels': {name: name for name in ('Average-5', IMAGENET)},
    'series': [*FAMILIES],
    **{'log_x': True, 'scatter': True, 'names': _short},
  },
  caption='The compute of a pre-training is the number of operations of a'
  ' forward pass on one image, times 3 to include the backward pass, times the'
  f' number of images seen. {ERROR_BARS}',
  shown=lambda scale: [n for of in STARTS.values() for n in AVERAGE5.nodes(of)],
  claims=_claims,
)
