"""What the paper says of its tables, asked of our numbers.

A difference counts if its sign is certain with 95% confidence; otherwise this
many runs do not decide.
"""

import math
from collections.abc import Sequence

from scipy import special

from vit_jax.paper.report import Claim, Number, Table

UNDECIDED = 'not at this scale'


def compare(better: Number | None, worse: Number | None) -> str:
  """Whether one mean is above another, with 95% confidence (Welch's t-test).

  Returns:
    'yes', 'no', 'not at this scale' if these runs do not decide, or 'missing'.
  """
  return decide([(1.0, better), (-1.0, worse)])


def decide(terms: Sequence[tuple[float, Number | None]]) -> str:
  """Whether a weighted sum of means is above 0, with 95% confidence.

  Args:
    terms: (weight, mean); None where a run is missing.

  Returns:
    What `compare` does.
  """
  if any(number is None for _, number in terms):
    return 'missing'
  if any(number.std is None for _, number in terms):
    return UNDECIDED  # A single run says nothing of the spread.
  total = sum(weight * number.mean for weight, number in terms)
  variances = [
    (weight * number.std) ** 2 / len(number.values) for weight, number in terms
  ]
  variance = sum(variances)
  if variance:
    # Welch and Satterthwaite's degrees of freedom.
    freedom = variance**2 / sum(
      v**2 / (len(number.values) - 1)
      for v, (_, number) in zip(variances, terms, strict=True)
    )
    if abs(total) <= special.stdtrit(freedom, 0.975) * math.sqrt(variance):
      return UNDECIDED
  if not total:
    return UNDECIDED
  return 'yes' if total > 0 else 'no'


def every(answers: list[str]) -> str:
  """The answer to a claim of several parts."""
  for answer in ('missing', 'no', UNDECIDED):
    if answer in answers:
      return answer
  return 'yes'


def text(number: Number | None, digits: int) -> str:
  """A mean with its spread, such as `77.91 ± 0.20 (3 runs)`."""
  if number is None:
    return 'missing'
  spread = '' if number.std is None else f' ± {number.std:.{digits}f}'
  count = len(number.values)
  runs = 'run' if count == 1 else 'runs'
  return f'{number.mean:.{digits}f}{spread} ({count} {runs})'


def adam_is_better(table: Table) -> list[Claim]:
  """Table 7: Adam is ahead of SGD on average, also for ResNets (D.1)."""
  answers, evidence = [], []
  for model in ('BiT-R50x1', 'BiT-R152x2'):
    adam, sgd = (
      table.cells['Average', f'{model}, {optimizer}'].ours
      for optimizer in ('Adam', 'SGD')
    )
    answers.append(compare(adam, sgd))
    evidence.append(f'{model}: Adam {text(adam, 2)}, SGD {text(sgd, 2)}')
  return [
    Claim(
      'Pre-training with Adam transfers better than with SGD, on average over'
      ' five tasks, for ResNets too (D.1).',
      every(answers),
      '; '.join(evidence) + '. A value for each pair of a pre-training seed and'
      ' a fine-tuning seed: the spread is that of both, and as values of one'
      ' pre-training are alike, it is rather too small. The paper has one'
      ' pre-training run of each.',
    )
  ]


def positions_matter(table: Table) -> list[Claim]:
  """Table 8: no positions is worst, the ways to add them are close (D.4)."""
  none = table.cells['None', 'Stem'].ours
  others = {
    f'{row}, {column.lower()}': cell.ours
    for (row, column), cell in table.cells.items()
    if row != 'None'
  }
  answer = every([compare(other, none) for other in others.values()])
  measured = {name: n for name, n in others.items() if n is not None}
  evidence = f'none {text(none, 4)}'
  gap = 'missing'
  if len(measured) == len(others):
    worst = min(measured, key=lambda name: measured[name].mean)
    best = max(measured, key=lambda name: measured[name].mean)
    evidence += (
      f'; {worst} {text(measured[worst], 4)} to {best}'
      f' {text(measured[best], 4)}'
    )
    # Worst - none > best - worst.
    gap = decide([(2.0, measured[worst]), (-1.0, none), (-1.0, measured[best])])
  return [
    Claim(
      'A ViT without position embeddings is worse than with any of them (D.4).',
      answer,
      f'{evidence}.',
    ),
    Claim(
      'How and where positions are added matters less than that they are'
      ' (D.4).',
      gap,
      f'{evidence}.',
    ),
  ]
