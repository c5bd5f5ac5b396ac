"""What the paper says of Figures 3 and 5, asked of our numbers.

All are of fine-tuned accuracies, in percent, with a value for each
pre-training: see `averages.by_pretraining`. One alone decides nothing.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from vit_jax.paper import claims
from vit_jax.paper.numbers import values
from vit_jax.paper.report import Claim, Number

SPREAD = (
  'A value for each pre-training, the mean of its fine-tuning runs; a model of'
  ' which there is one decides nothing.'
)
# The part of the ViTs that there must be ResNets around, to say it of ViTs.
_ENOUGH = 1 / 2
# The hybrids whose computes are the least and the most in Table 6.
_SMALL, _LARGE = 'R50+ViT-B/32, 7 epochs', 'R50+ViT-L/16, 14 epochs'


@dataclasses.dataclass(frozen=True)
class Scaled:
  """A point of Figure 5.

  Attributes:
    family: 'Transformer', 'ResNet' or 'Hybrid'.
    compute: of its pre-training, in any unit that all have in common; None
      while it is missing.
    accuracy: Average-5, a value for each pre-training; None while it is
      missing.
  """

  family: str
  compute: float | None
  accuracy: Number | None


def data_claims(found: Mapping[tuple[str, str], Number | None]) -> list[Claim]:
  """Figure 3: what is best depends on how much data there is (Section 4.3).

  Args:
    found: (model, pre-training data) -> accuracy on ImageNet, a value for each
      pre-training; None: missing.
  """
  base, large = 'ViT-B/16', 'ViT-L/16'
  return [
    _ahead(
      'From ImageNet alone, larger ViTs are worse than smaller ones (Section'
      ' 4.3).',
      {base: found[base, values.IMAGENET]},
      {large: found[large, values.IMAGENET]},
    ),
    _ahead(
      'From JFT-300M, larger ViTs are better than smaller ones (Section 4.3).',
      {large: found[large, values.JFT]},
      {base: found[base, values.JFT]},
    ),
    _ahead(
      'From ImageNet, BiT is ahead of ViT (Section 4.3).',
      _of(found, 'BiT-', values.IMAGENET),
      _of(found, 'ViT-', values.IMAGENET),
    ),
    _ahead(
      'From JFT-300M, ViT is ahead of BiT (Section 4.3).',
      _of(found, 'ViT-', values.JFT),
      _of(found, 'BiT-', values.JFT),
    ),
  ]


def compute_claims(found: Mapping[str, Scaled]) -> list[Claim]:
  """Figure 5: what is best for its compute (Section 4.4).

  Accuracies are compared at equal compute: that of a run with what others are
  taken to reach there, see `interpolate`. Outside of the computes of these a
  run says nothing.

  Args:
    found: run, as Table 6 names it -> its point.
  """
  missing = any(
    run.compute is None or run.accuracy is None for run in found.values()
  )
  if missing:
    # Not all of a family would be another curve.
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
  'ViTs need less compute than ResNets for the same accuracy: with equal'
  ' compute they are ahead, each that can be compared (Section 4.4).'
)
_HYBRIDS_AHEAD = 'Hybrids are ahead of ViTs where compute is small (4.4).'
_LEAD_VANISHES = 'The lead of hybrids vanishes for the largest models (4.4).'


def interpolate(runs: Sequence[Scaled], compute: float) -> Number | None:
  """The accuracy that a family is taken to have at some compute.

  It is linear in the logarithm of the compute between the two runs next to it,
  seed by seed, so that its spread is that of both as they weigh. Seeds of
  different runs have nothing in common but their order. Beside one pre-training
  others do not count: then there is a single value.

  Args:
    runs: with compute and accuracy, at least one.
    compute: where.

  Returns:
    None outside of the computes of the runs.
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
    # As many values as both have.
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
  """Asked of ViTs of several pre-trainings, with such ResNets around them.

  Undecided unless these are half of the ViTs, or more.
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
  """Two claims; a lead vanishes if there is one, it shrinks, and none is left.

  That none is left is not certain: it is only not certain that one is.
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
  """That the best of some models is better than the best of others."""
  chosen = [_best(better), _best(worse)]
  evidence = '; '.join(f'{name} {_text(number)}' for name, number in chosen)
  words = [f'{evidence}.', SPREAD]
  if max(len(better), len(worse)) > 1:
    words.insert(1, 'These are the best of each, by the same numbers.')
  return Claim(
    statement,
    claims.compare(*(number for _, number in chosen)),
    ' '.join(words),
  )


def _text(number: Number | None) -> str:
  return claims.text(number, 2, 'pre-training')


def _interpolated(number: Number) -> str:
  """Of two models, whose pre-trainings are paired."""
  return claims.text(number, 2, 'pair')


def _best(found: Mapping[str, Number | None]) -> tuple[str, Number | None]:
  """The model with the highest mean; the first that is missing, if one is."""
  for name, number in found.items():
    if number is None:
      return name, None
  return max(found.items(), key=lambda item: item[1].mean)
