"""The paper's claims about Figures 3 and 5, tested on our numbers.

All numbers are fine-tuned accuracies in percent, with a value for each
pre-training: see `averages.by_pretraining`. A single one decides nothing.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from vit_jax.paper import claims
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Claim, Number

SPREAD = (
  'Each value is the mean over the fine-tuning runs of one pre-training; a'
  ' model with a single pre-training decides nothing.'
)
# At least this fraction of the ViTs must be comparable to decide about ViTs.
_ENOUGH = 1 / 2
# The hybrids with the least and the most compute in Table 6.
_SMALL, _LARGE = 'R50+ViT-B/32, 7 epochs', 'R50+ViT-L/16, 14 epochs'


@dataclasses.dataclass(frozen=True)
class Scaled:
  """A point of Figure 5.

  Attributes:
    family: 'Transformer', 'ResNet' or 'Hybrid'.
    compute: of its pre-training, in any unit that all points share; None while
      it is missing.
    accuracy: Average-5, a value for each pre-training; None while it is
      missing.
  """

  family: str
  compute: float | None
  accuracy: Number | None


def data_claims(found: Mapping[tuple[str, str], Number | None]) -> list[Claim]:
  """Figure 3: which model is best depends on the amount of data (Section 4.3).

  Args:
    found: (model, pre-training data) -> accuracy on ImageNet, a value for each
      pre-training; None: missing.
  """
  base, large = 'ViT-B/16', 'ViT-L/16'
  return [
    _ahead(
      'Pre-trained on ImageNet alone, larger ViTs are worse than smaller ones'
      ' (Section 4.3).',
      {base: found[base, values.IMAGENET]},
      {large: found[large, values.IMAGENET]},
    ),
    _ahead(
      'Pre-trained on JFT-300M, larger ViTs are better than smaller ones'
      ' (Section 4.3).',
      {large: found[large, values.JFT]},
      {base: found[base, values.JFT]},
    ),
    _ahead(
      'Pre-trained on ImageNet, BiT is ahead of ViT (Section 4.3).',
      _of(found, 'BiT-', values.IMAGENET),
      _of(found, 'ViT-', values.IMAGENET),
    ),
    _ahead(
      'Pre-trained on JFT-300M, ViT is ahead of BiT (Section 4.3).',
      _of(found, 'ViT-', values.JFT),
      _of(found, 'BiT-', values.JFT),
    ),
  ]


def compute_claims(found: Mapping[str, Scaled]) -> list[Claim]:
  """Figure 5: which family is best for its compute (Section 4.4).

  Accuracies are compared at equal compute: a run's accuracy with that which
  another family is taken to reach there, see `interpolate`. A run outside the
  range of the other family's compute is not compared.

  Args:
    found: run, as Table 6 names it -> its point.
  """
  missing = any(
    run.compute is None or run.accuracy is None for run in found.values()
  )
  if missing:
    # An incomplete family would give another curve.
    return [
      Claim(statement, 'missing', 'Not all of the runs are finished.')
      for statement in (_VITS_AHEAD, _HYBRIDS_AHEAD, _LEAD_VANISHES)
    ]
  vits, resnets = (
    [run for run in found.values() if run.family == family]
    for family in ('Transformer', 'ResNet')
  )
  return [
    _vits_are_ahead(found, resnets),
    *_hybrids_are_ahead(found[_SMALL], found[_LARGE], vits),
  ]


_VITS_AHEAD = (
  'ViTs need less compute than ResNets for the same accuracy: at equal compute,'
  ' each ViT that can be compared is ahead (Section 4.4).'
)
_HYBRIDS_AHEAD = 'Hybrids are ahead of ViTs where compute is small (4.4).'
_LEAD_VANISHES = 'The lead of hybrids vanishes for the largest models (4.4).'


def interpolate(runs: Sequence[Scaled], compute: float) -> Number | None:
  """Returns the accuracy that a family is taken to have at some compute.

  The accuracy is interpolated between the two neighbouring runs, linearly in
  the logarithm of the compute and seed by seed, so that its spread combines
  both spreads by weight. Seeds are paired by their order only. If one run has a
  single pre-training, so has the result.

  Args:
    runs: at least one, each with compute and accuracy.
    compute: where to interpolate.

  Returns:
    None outside the range of the runs' compute.
  """
  ordered = sorted(runs, key=lambda run: run.compute)
  for low, high in itertools.pairwise(ordered):
    if not low.compute <= compute <= high.compute:
      continue
    part = 0.0
    if high.compute > low.compute:
      part = math.log(compute / low.compute)
      part /= math.log(high.compute / low.compute)
    one, other = low.accuracy, high.accuracy
    # Only as many values as both runs have.
    return Number(
      tuple(
        (1 - part) * a + part * b
        for a, b in zip(one.values, other.values, strict=False)
      ),
      tuple(
        f'between {a} and {b}'
        for a, b in zip(one.runs, other.runs, strict=False)
      ),
    )
  return None


def _vits_are_ahead(
  found: Mapping[str, Scaled], resnets: Sequence[Scaled]
) -> Claim:
  """Tests each ViT that has several pre-trainings, if its ResNets have, too.

  Undecided unless at least half of the ViTs can be tested.
  """
  compared, evidence = [], []
  vits = {k: run for k, run in found.items() if run.family == 'Transformer'}
  for name, run in vits.items():
    other = interpolate(resnets, run.compute)
    if other is None:
      evidence.append(f'{name}: no ResNets around its compute')
      continue
    evidence.append(
      f'{name}: {_text(run.accuracy)}, ResNets {_interpolated(other)}'
    )
    if min(len(run.accuracy.values), len(other.values)) > 1:
      compared.append((run.accuracy, other))
  answers = [claims.compare(*pair, parts=len(compared)) for pair in compared]
  enough = answers and len(answers) >= _ENOUGH * len(vits)
  return Claim(
    _VITS_AHEAD,
    claims.every(answers) if enough else claims.UNDECIDED,
    f'Average-5. {len(answers)} of {len(vits)} ViTs could be compared.'
    f' {"; ".join(evidence)}. {SPREAD}',
  )


def _hybrids_are_ahead(
  small: Scaled, large: Scaled, vits: Sequence[Scaled]
) -> list[Claim]:
  """Returns two claims: small hybrids have a lead, and the lead vanishes.

  A lead vanishes if it exists, shrinks, and is not certain for the large
  hybrid. That does not prove that no lead is left.
  """
  at_small, at_large = (
    interpolate(vits, run.compute) for run in (small, large)
  )
  ahead = vanishes = claims.UNDECIDED
  if at_small:
    ahead = claims.compare(small.accuracy, at_small)
  if at_small and at_large:
    shrinks = claims.decide(
      [
        *((1.0, small.accuracy), (-1.0, at_small)),
        *((-1.0, large.accuracy), (1.0, at_large)),
      ]
    )
    left = claims.compare(large.accuracy, at_large)
    vanishes = claims.every([ahead, shrinks, 'no' if left == 'yes' else 'yes'])
  first, second = (
    f'{name} {_text(run.accuracy)}, '
    + (
      f'ViTs with its compute {_interpolated(other)}'
      if other
      else 'no ViTs around its compute'
    )
    for name, run, other in (
      (_SMALL, small, at_small),
      (_LARGE, large, at_large),
    )
  )
  return [
    Claim(_HYBRIDS_AHEAD, ahead, f'Average-5. {first}. {SPREAD}'),
    Claim(_LEAD_VANISHES, vanishes, f'Average-5. {first}; {second}. {SPREAD}'),
  ]


def _of(
  found: Mapping[tuple[str, str], Number | None], family: str, data: str
) -> dict[str, Number | None]:
  return {
    model: number
    for (model, of), number in found.items()
    if of == data and model.startswith(family)
  }


def _ahead(
  statement: str,
  better: Mapping[str, Number | None],
  worse: Mapping[str, Number | None],
) -> Claim:
  """Tests whether the best of some models is better than the best of others."""
  chosen = [_best(better), _best(worse)]
  evidence = '; '.join(f'{name} {_text(number)}' for name, number in chosen)
  words = [f'{evidence}.', SPREAD]
  if max(len(better), len(worse)) > 1:
    words.insert(1, 'They are the best of each group, by the same numbers.')
  return Claim(
    statement,
    claims.compare(*(number for _, number in chosen)),
    ' '.join(words),
  )


def _text(number: Number | None) -> str:
  return claims.text(number, 2, 'pre-training')


def _interpolated(number: Number) -> str:
  """Formats a number from two models, whose pre-trainings are paired."""
  return claims.text(number, 2, 'pair')


def _best(found: Mapping[str, Number | None]) -> tuple[str, Number | None]:
  """Returns the model with the highest mean, or else the first missing one."""
  for name, number in found.items():
    if number is None:
      return name, None
  return max(found.items(), key=lambda item: item[1].mean)
