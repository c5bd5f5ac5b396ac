"""What an evaluator is, and what all of them share."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from absl import logging

from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.runtime import printable

OnBatch = Callable[[], None]
# Reads a view batch by batch; see `batches`.
Batches = Callable[..., Iterable[Mapping[str, np.ndarray]]]


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

  def run(self, state: State, on_batch: OnBatch) -> Iterator[tuple[str, float]]:
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
  on_batch: OnBatch,
) -> dict[str, float]:
  """Runs an evaluator and logs its line.

  Returns:
    The evaluator's values and its duration `seconds`, each as `NAME/...`.

  Raises:
    ValueError: the evaluator cannot measure; names it.
  """
  before = time.monotonic()
  try:
    values = dict(evaluator.run(state, on_batch))
  except ValueError as error:
    raise ValueError(f'evals.{name}: {error}') from error
  values['seconds'] = time.monotonic() - before
  logging.info(
    'step %d  %s: %s (%s)',
    *(step, name, evaluator.summary(values)),
    printable.duration(values['seconds']),
  )
  return {f'{name}/{key}': value for key, value in values.items()}


def batches(
  preprocess: ops.Preprocess,
  mesh: jax.sharding.Mesh,
  *,
  batch_size: int,
  **reading: Any,
) -> Batches:
  """Returns a function that reads a view, each example once.

  Args:
    preprocess: deterministic ops, see `data/ops`.
    mesh: the devices to use.
    batch_size: global batch size; the last batch is padded and masked.
    **reading: further arguments of `pipeline.eval_batches`.
  """
  return functools.partial(
    pipeline.eval_batches,
    preprocess=preprocess,
    batch_size=batch_size,
    rows=sharding.local_rows(mesh, batch_size),
    **reading,
  )


def total(
  view: data.View, sums: Iterable[Mapping[str, jax.Array]], on_batch: OnBatch
) -> dict[str, np.ndarray]:
  """Adds up the sums of all batches in float64.

  Args:
    view: what is evaluated.
    sums: the sums of each batch: `count`, `excluded` (unreadable images),
      `unlabelled` (images without a label), and others.
    on_batch: called after every batch.

  Raises:
    ValueError: no image counts.
  """
  totals, pending = {}, {}
  for each in sums:
    # Fetch one batch late, so that the device computes while the next batch is
    # read. At most two batches wait on the device.
    _add(totals, pending)
    pending = each
    on_batch()
  _add(totals, pending)
  left_out = {key: int(totals[key]) for key in ('excluded', 'unlabelled')}
  seen = int(totals['count']) + sum(left_out.values())
  if seen != len(view):
    raise RuntimeError(
      f'Evaluation saw {seen} examples of {len(view)} in {view.split!r}.'
    )
  if not totals['count']:
    raise ValueError(
      f'Of {len(view)} images of {view.split!r} {left_out["excluded"]} are'
      f' unreadable and {left_out["unlabelled"]} have no label, so no image is'
      ' left to evaluate. Check the data set.'
    )
  return totals


def counts(totals: Mapping[str, np.ndarray]) -> Iterator[tuple[str, int]]:
  """Yields `count`, and the numbers of images with a fault, if not 0."""
  for name in ('count', 'unlabelled', 'truncated', 'excluded'):
    if totals.get(name):
      yield name, int(totals[name])
  if totals['excluded']:
    logging.warning(
      'The evaluation leaves out %d unreadable image(s).', totals['excluded']
    )


def _add(totals, sums) -> None:
  for key, value in sums.items():
    totals[key] = totals.get(key, 0) + np.asarray(value, np.float64)
