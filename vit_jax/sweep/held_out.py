"""Ensures that candidates are compared on held-out training data only.

Before a sweep starts, this checks that each candidate has exactly one
evaluation. The evaluation must read a part of the split that the final runs
train on. The candidate must not train on this part, and the final runs must not
be evaluated on it. The choice uses no other number (`state.held_out_accuracy`).
The sizes of the data do not count: parts that overlap at some size are refused.
"""

from collections.abc import Mapping

import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import splits
from vit_jax.sweep.spec import HELD_OUT


def check(
  name: str,
  config: ml_collections.ConfigDict,
  finals: Mapping[str, ml_collections.ConfigDict],
) -> None:
  """Checks which data a candidate is evaluated on.

  Args:
    name: the candidate's name.
    config: the candidate's config.
    finals: the configs of the runs that are reported if it is chosen, by name.

  Raises:
    ValueError: it is not evaluated on held-out training data, or the runs to
      report train on other data or are evaluated on the same examples.
  """
  if list(config.evals) not in [[key] for key in HELD_OUT]:
    raise ValueError(
      f'{name} has the evaluations {list(config.evals)}. A candidate must have'
      f' exactly one, called {" or ".join(HELD_OUT)}, on held-out training'
      ' data, because a choice by a test result biases this result.'
    )
  [(key, section)] = config.evals.items()
  dataset, part = config.data.dataset, section.split
  where = f'{name}: evals.{key} reads {part!r}'
  if section.kind != 'classification':
    raise ValueError(
      f'{name}: evals.{key}.kind={section.kind!r} gives no accuracy by which to'
      " choose; expected 'classification'."
    )
  if section.dataset not in ('', dataset):
    raise ValueError(
      f'{where} of {section.dataset!r}, but a candidate must be evaluated on a'
      f' part of its training data, {dataset!r}.'
    )
  _check_part(where, config, part, config.data.train_split, 'it trains on')
  if splits.may_overlap(part, config.data.train_split):
    raise ValueError(
      f'{where}, which is not held out: data.train_split='
      f'{config.data.train_split!r} shares examples with it.'
    )
  for final, other in finals.items():
    split = other.data.train_split
    if other.data.dataset != dataset:
      raise ValueError(
        f'{final} trains on {other.data.dataset!r}, but its candidate, {name},'
        f' trains on {dataset!r}.'
      )
    _check_part(where, config, part, split, f'{final} trains on')
    for tested, evaluation in other.evals.items():
      here = f'evals.{tested}.split={evaluation.split!r}'
      if evaluation.split == config_lib.AUTO:
        raise ValueError(
          f'{final} has {here}, which may be the data by which its settings are'
          ' chosen: pass eval=SPLIT, such as eval=test, in the argument of its'
          ' config.'
        )
      if evaluation.dataset not in ('', dataset):
        continue
      if splits.may_overlap(split, evaluation.split):
        raise ValueError(
          f'{final} trains on {split!r}, and is evaluated on some of the same'
          f' examples ({here}).'
        )
      if splits.may_overlap(part, evaluation.split):
        raise ValueError(
          f'{where}, and {final} is evaluated on some of the same examples'
          f' ({here}). A choice by a test result biases this result.'
        )


def _check_part(where, config, part, split, whose) -> None:
  """Raises ValueError if `part` reads a split that is not in `split`."""
  extra = splits.names(part) - splits.names(split)
  if extra:
    raise ValueError(
      f'{where}, but {sorted(extra)} is no split that {whose} ({split!r} of'
      f' {config.data.dataset!r}). Hold out a part of the training split, such'
      f' as shuffled({min(splits.names(split))})[90%:].'
    )
