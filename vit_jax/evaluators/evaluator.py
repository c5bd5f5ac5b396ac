"""Defines and runs evaluators."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from absl import logging

from vit_jax import data
from vit_jax.runtime import progress


class State(Protocol):
  """The state to evaluate, such as a `TrainState`.

  Attributes:
    eval_params: the parameters to evaluate with.
  """

  eval_params: Any


class Evaluator(Protocol):
  """An evaluator, built from an entry of `config.evals`.

  Attributes:
    num_examples: number of examples of the evaluated split.
    data: purpose -> the view that is read; the same for all processes and for
      all launches of a run.
  """

  num_examples: int
  data: Mapping[str, data.View]

  def run(
    self, state: State, on_batch: Callable[[], None]
  ) -> Iterator[tuple[str, float]]:
    """Yields names and values of metrics, the same in all processes.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch.
    """
    ...

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    ...


def digests(evaluators: Mapping[str, Evaluator]) -> dict[str, Any]:
  """Returns `data.digest` of each view that the evaluators read."""
  return {
    f'{name}: {use}': data.digest(view)
    for name, evaluator in evaluators.items()
    for use, view in evaluator.data.items()
  }


def run(
  name: str,
  evaluator: Evaluator,
  state: State,
  step: int,
  on_batch: Callable[[], None],
) -> dict[str, float]:
  """Runs an evaluator and logs its line.

  Returns:
    The evaluator's values and its duration `seconds`, each as `NAME/...`.
  """
  before = time.monotonic()
  values = dict(evaluator.run(state, on_batch))
  values['seconds'] = time.monotonic() - before
  logging.info(
    'step %d  %s: %s (%s)',
    *(step, name, evaluator.summary(values)),
    progress.duration(values['seconds']),
  )
  return {f'{name}/{key}': value for key, value in values.items()}
