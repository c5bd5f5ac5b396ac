"""Candidates may be compared on held-out training data only, never on a test.

Before a sweep starts, each candidate must have one evaluation, of a part of
the split that it would be retrained on: a part that the candidate itself does
not train on, and that nothing is reported on later. There is no other number
that a choice could be made by (`state.held_out_accuracy`).
"""

import functools
from collections.abc import Mapping

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import inputs
from vit_jax.data import splits
from vit_jax.sweep.spec import HELD_OUT


def check(
  name: str,
  config: ml_collections.ConfigDict,
  finals: Mapping[str, ml_collections.ConfigDict],
) -> None:
  """Checks what a candidate is measured on.

  Args:
    name: the candidate's.
    config: the candidate's.
    finals: the configs of the runs that would be reported if it is chosen.

  Raises:
    ValueError: it is not measured on held-out training data, or the runs to
      report train on something else or are measured on the same examples.
  """
  if list(config.evals) not in [[key] for key in HELD_OUT]:
    raise ValueError(
      f'{name} has the evaluations {list(config.evals)}. A candidate has one,'
      f' called {" or ".join(HELD_OUT)}, of training data that is held out:'
      ' what is chosen by a test result cannot be tested by it.'
    )
  [(key, section)] = config.evals.items()
  dataset, part = config.data.dataset, section.split
  where = f'{name}: evals.{key} reads {part!r}'
  if section.kind != 'classification':
    raise ValueError(
      f'{name}: evals.{key}.kind={section.kind!r} gives no accuracy to choose'
      " by; expected 'classification'."
    )
  if section.dataset not in ('', dataset):
    raise ValueError(
      f'{where} of {section.dataset!r}, but a candidate is measured on a part'
      f' of its training data, {dataset!r}.'
    )
  _check_part(where, config, part, config.data.train_split, 'it trains on')
  if overlap(config, part, config.data.train_split):
    raise ValueError(
      f'{where}, which is not held out: data.train_split='
      f'{config.data.train_split!r} has some of it.'
    )
  for final, other in finals.items():
    if other.data.dataset != dataset:
      raise ValueError(
        f'{final} trains on {other.data.dataset!r}, but what it is chosen by,'
        f' {name}, on {dataset!r}.'
      )
    split = other.data.train_split
    _check_part(where, config, part, split, f'{final} trains on')
    for tested, evaluation in other.evals.items():
      if evaluation.split == config_lib.AUTO:
        raise ValueError(
          f'{final} does not say what it is measured on, which may be what its'
          f' settings are chosen by: give it eval=SPLIT, such as eval=test, in'
          ' the argument of its config.'
        )
      if evaluation.dataset in ('', dataset) and overlap(
        config, split, evaluation.split
      ):
        raise ValueError(
          f'{final} trains on {split!r}, and is measured on some of the same'
          f' (evals.{tested}.split={evaluation.split!r}).'
        )
      if evaluation.dataset in ('', dataset) and overlap(
        config, part, evaluation.split
      ):
        raise ValueError(
          f'{where}, and {final} is measured on some of the same'
          f' (evals.{tested}.split={evaluation.split!r}): what is chosen by a'
          ' test result cannot be tested by it.'
        )


def _check_part(where, config, part, split, whose) -> None:
  """Refuses what is no part of the splits that are trained on."""
  extra = splits.names(part) - splits.names(split)
  if extra:
    raise ValueError(
      f'{where}, but {sorted(extra)} is no split that {whose} ({split!r} of'
      f' {config.data.dataset!r}); hold out a part of that, such as'
      f' shuffled({min(splits.names(split))})[90%:].'
    )


def overlap(config: ml_collections.ConfigDict, one: str, other: str) -> bool:
  """Whether two split expressions of the training data share an example.

  If the data set is not here to be asked for its sizes: whether they might.
  Two random parts of the same examples might, unless they are slices of the
  same order: `shuffled(train)[:90%]` and `shuffled(train)[90%:]` do not.
  """
  sizes = _sizes(_Section(config))
  if sizes:
    return splits.may_overlap(one, other, sizes)
  return splits.may_overlap_at_any_size(one, other)


class _Section:
  """A config as a cache's key: equal if they read the same data."""

  def __init__(self, config: ml_collections.ConfigDict):
    self.config = config
    data = config.data
    self._key = (
      *(data.dataset, data.data_dir, data.image_key, data.label_key),
      config.num_classes,
    )

  def __hash__(self):
    return hash(self._key)

  def __eq__(self, other):
    return self._key == other._key


@functools.cache
def _sizes(section: _Section) -> dict[str, int] | None:
  """The sizes of a data set's splits; None if it can't be opened here."""
  config = section.config
  try:
    return dict(inputs.open_source(config, config.data.dataset).info.splits)
  except (ValueError, OSError):
    return None


def read(config: ml_collections.ConfigDict, name: str) -> None:
  """Checks one run's config as far as it goes without its data.

  Raises:
    ValueError: says which run, and what is wrong.
  """
  if 'stages' in config:
    raise ValueError(
      f'{name}: its config has stages; a run of a sweep has none.'
    )
  try:
    config_lib.validate(config)
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from None
