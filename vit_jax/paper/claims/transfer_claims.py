"""The paper's claims about Figures 3 and 5: fine-tuned accuracy."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping

from vit_jax.paper import cost, numbers
from vit_jax.paper.claims.claim import Claim, Contrast, Sum, total
from vit_jax.paper.claims.decision import Outcome
from vit_jax.paper.claims.measures import AVERAGE5, Tuned
from vit_jax.paper.numbers import values
from vit_jax.paper.runs import Pretraining, pretraining

_ON_IMAGENET = Tuned((values.IMAGENET,))
# The paper does not name Figure 3's BiT models; these are Table 6's smallest
# and largest with 7 epochs.
BITS = ('BiT-R50x1', 'BiT-R152x2')
# The hybrids with the least and the most compute in Table 6.
_SMALL, _LARGE = 'R50+ViT-B/32, 7 epochs', 'R50+ViT-L/16, 14 epochs'
# How much more compute ResNets need at least (4.4: 2 to 4 times).
_RATIO = 2.0
# The largest ratio at which all ViTs must be comparable to measure the ratio.
_FARTHEST = 4.0
# The ratios among which it is searched.
_RATIOS = tuple(2 ** (step / 16) for step in range(-48, 65))


def figure3(scale: str) -> list[Claim]:
  """Which model is best depends on the amount of data (4.3)."""
  del scale

  def found(model: str, data: str) -> Sum:
    return total(_ON_IMAGENET, pretraining(model, data))

  def gain(data: str) -> Sum:
    return found('ViT-L/16', data) - found('ViT-B/16', data)

  return [
    Claim(
      'large_is_worse',
      'Pre-trained on ImageNet alone, a larger ViT is worse than a smaller one'
      ' (4.3, Figure 3).',
      (
        Contrast(
          'lead of ViT-B/16 over ViT-L/16', -1.0 * gain(values.IMAGENET)
        ),
      ),
    ),
    Claim(
      'large_is_similar',
      'Pre-trained on ImageNet-21k, a larger ViT is about as good as a smaller'
      ' one: their difference is less than the lead of the larger ViT on'
      ' JFT-300M (4.3, Figure 3).',
      (
        Contrast(
          'gain on JFT-300M minus that on ImageNet-21k',
          gain(values.JFT) - gain(values.IMAGENET21K),
        ),
        Contrast(
          'gain on JFT-300M plus that on ImageNet-21k',
          gain(values.JFT) + gain(values.IMAGENET21K),
        ),
      ),
      'The gain is the lead of ViT-L/16 over ViT-B/16.',
    ),
    Claim(
      'large_is_better',
      'Pre-trained on JFT-300M, a larger ViT is better than a smaller one (4.3,'
      ' Figure 3).',
      (Contrast('lead of ViT-L/16 over ViT-B/16', gain(values.JFT)),),
    ),
    Claim(
      'resnets_on_little',
      'Pre-trained on ImageNet alone, a large ViT is behind the ResNets (4.3,'
      ' Figure 3).',
      tuple(
        Contrast(
          f'lead of {bit} over ViT-L/16',
          found(bit, values.IMAGENET) - found('ViT-L/16', values.IMAGENET),
        )
        for bit in BITS
      ),
    ),
    Claim(
      'vits_on_much',
      'Pre-trained on JFT-300M, a large ViT is ahead of the ResNets (4.3,'
      ' Figure 3).',
      tuple(
        Contrast(
          f'lead of ViT-L/16 over {bit}',
          found('ViT-L/16', values.JFT) - found(bit, values.JFT),
        )
        for bit in BITS
      ),
    ),
  ]


@functools.cache
def starts5() -> dict[str, Pretraining]:
  """Returns the runs of Figure 5, as Table 6 names them."""
  return {
    row: Pretraining(model, values.JFT, epochs)
    for row, (model, epochs) in zip(
      numbers.TABLE_6.rows, numbers.ROWS_6, strict=True
    )
  }


def family(model: str) -> str:
  """Returns 'Transformer', 'ResNet' or 'Hybrid'."""
  if model.startswith('BiT-'):
    return 'ResNet'
  return 'Hybrid' if '+' in model else 'Transformer'


def figure5(scale: str) -> list[Claim]:
  """Which family is best for its compute (4.4).

  Accuracies are compared at equal compute: a run's accuracy with that which
  another family is taken to reach there, see `interpolate`. A run outside of
  the range of the other family's compute is not compared.
  """
  starts = starts5()
  compute = {
    row: numbers.EXAFLOPS[row].value
    if scale == 'paper'
    else cost.teraflops_in_miniature(start, scale)
    for row, start in starts.items()
  }

  def of(kind: str) -> dict[float, Sum]:
    return {
      compute[row]: total(AVERAGE5, start)
      for row, start in starts.items()
      if family(start.model) == kind
    }

  vits, resnets = of('Transformer'), of('ResNet')
  rows = {
    row: (compute[row], total(AVERAGE5, start)) for row, start in starts.items()
  }

  def leads(ratio: float) -> dict[str, Sum]:
    """Returns the lead of each ViT over ResNets with more compute."""
    return {
      row: accuracy - other
      for row, (own, accuracy) in rows.items()
      if family(starts[row].model) == 'Transformer'
      if (other := interpolate(resnets, ratio * own))
    }

  small, large = (
    rows[row][1] - interpolate(vits, rows[row][0]) for row in (_SMALL, _LARGE)
  )
  upper = dict(sorted(vits.items())[len(vits) // 2 - 1 :])
  return [
    Claim(
      'vits_ahead',
      'At equal compute, ViTs are ahead of ResNets. A curve goes through the'
      " ResNets' accuracies over their compute. Each ViT in the range of the"
      " curve is compared with the curve's value at the ViT's compute (4.4,"
      ' Figure 5).',
      tuple(
        Contrast(f'lead of {row} over ResNets at its compute', lead)
        for row, lead in leads(1.0).items()
      ),
      'ResNets are interpolated in the logarithm of the compute.',
    ),
    Claim(
      'half_the_compute',
      'ViTs need at most half of the compute of ResNets: on average, ViTs are'
      f' ahead of ResNets that have {_RATIO:g} times as much compute (4.4,'
      ' Figure 5).',
      (
        Contrast(
          f'mean lead of {"; ".join(leads(_RATIO))} over ResNets with'
          f' {_RATIO:g} times the compute',
          _mean(leads(_RATIO)),
        ),
      ),
      more=functools.partial(_ratio, leads),
    ),
    Claim(
      'hybrids_ahead',
      'With little compute, a hybrid is ahead of ViTs with the same compute'
      ' (4.4, Figure 5).',
      (Contrast(f'lead of {_SMALL} over ViTs at its compute', small),),
    ),
    Claim(
      'lead_vanishes',
      'The lead of hybrids over ViTs vanishes for larger models: a large hybrid'
      ' has less than half of the lead of a small one (4.4, Figure 5).',
      (
        Contrast(f'lead of {_SMALL}', small),
        Contrast(
          f'half of it, minus the lead of {_LARGE}', 0.5 * small - large
        ),
      ),
    ),
    Claim(
      'no_saturation',
      'ViTs do not saturate within the compute that was tried: even among'
      ' the half of the ViTs that take the most compute, accuracy grows with'
      ' compute (4.4, Figure 5).',
      (Contrast('points per doubling of the compute', slope(upper)),),
    ),
  ]


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
  weighted = [
    (x - middle) / scale * accuracy
    for x, accuracy in zip(xs, points.values(), strict=True)
  ]
  return functools.reduce(Sum.__add__, weighted)


def _mean(sums: Mapping[str, Sum]) -> Sum:
  return (1 / len(sums)) * functools.reduce(Sum.__add__, sums.values())


def _ratio(
  leads: Callable[[float], Mapping[str, Sum]],
  test: Callable[[Sum], Outcome | None],
) -> str:
  """Returns a sentence on the ratio of compute at equal accuracy.

  It is the ratio at which the mean lead ends. Its interval has all ratios at
  which the mean lead is not certain: the test's own confidence interval, by
  inversion. The mean is over the same ViTs at all ratios: those that can be
  compared with ResNets of `_FARTHEST` times their compute.

  Args:
    leads: ratio -> the leads of those ViTs that can be compared.
    test: tests a sum.
  """
  vits = [*leads(_FARTHEST)]
  outcomes: dict[float, Outcome] = {}
  for ratio in _RATIOS:
    found = leads(ratio)
    if vits and {*vits} <= {*found}:
      outcome = test(_mean({vit: found[vit] for vit in vits}))
      if outcome is not None and outcome.error is not None:
        outcomes[ratio] = outcome
  if not outcomes:
    return ''
  low, equal, high = (
    _end({ratio: of(outcome) for ratio, outcome in outcomes.items()})
    for of in (
      lambda outcome: outcome.interval()[0],
      lambda outcome: outcome.estimate,
      lambda outcome: outcome.interval()[1],
    )
  )
  return (
    f'At equal accuracy ResNets need {equal} times the compute of'
    f' {", ".join(vits)} (95% interval: {low} to {high}).'
  )


def _end(leads: Mapping[float, float]) -> str:
  """Returns the ratio at which the lead first ends, in words."""
  ratios = sorted(leads)
  ended = [ratio for ratio in ratios if leads[ratio] <= 0]
  if not ended:
    return f'more than {ratios[-1]:.2g}'
  if ended[0] == ratios[0]:
    return f'less than {ratios[0]:.2g}'
  return f'{ended[0]:.2g}'
