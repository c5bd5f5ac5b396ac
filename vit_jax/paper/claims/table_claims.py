"""The paper's claims about Tables 7 and 8, tested on our numbers."""

from collections.abc import Mapping

from vit_jax.paper.claims import compare, decide, every, text
from vit_jax.paper.report import Claim, Number, Table


def adam_is_better(
  found: Mapping[tuple[str, str], Number | None],
) -> list[Claim]:
  """Table 7: Adam is ahead of SGD on average, also for ResNets (D.1).

  Args:
    found: (model, 'Adam' or 'SGD') -> Average-5 in percent, a value for each
      pre-training.
  """
  answers, evidence = [], []
  models = ('BiT-R50x1', 'BiT-R152x2')
  for model in models:
    adam, sgd = (found[model, optimizer] for optimizer in ('Adam', 'SGD'))
    answers.append(compare(adam, sgd, parts=len(models)))
    means = [text(number, 2, 'pre-training') for number in (adam, sgd)]
    evidence.append(f'{model}: Adam {means[0]}, SGD {means[1]}')
  return [
    Claim(
      'Pre-training with Adam transfers better than with SGD, on average over'
      ' five tasks, for ResNets too (D.1).',
      every(answers),
      'Average-5 in percent. ' + '; '.join(evidence) + '. Each value is the'
      ' mean over the fine-tuning runs of one pre-training, so the spread is'
      ' over pre-trainings. The paper has one pre-training of each.',
    )
  ]


def positions_matter(table: Table) -> list[Claim]:
  """Table 8: no positions are worst, the ways to add them are close (D.4)."""
  none = table.cells['None', 'Stem'].ours
  others = {
    f'{row}, {column.lower()}': cell.ours
    for (row, column), cell in table.cells.items()
    if row != 'None'
  }
  answer = every(
    [compare(other, none, parts=len(others)) for other in others.values()]
  )
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
      'How and where positions are added matters less than whether they are'
      ' added (D.4).',
      gap,
      f'{evidence}.',
    ),
  ]
