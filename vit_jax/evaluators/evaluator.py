"""What an evaluator is, what it is built from, and what all of them share."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import flax.linen as nn
import jax
import ml_collections
import numpy as np
from absl import logging

from vit_jax import data, sharding
from vit_jax.config import inputs
from vit_jax.data import ops, pipeline
from vit_jax.runtime import printable

OnBatch = Callable[[], None]
# Yields the global batches of a view, on the devices; see `Context.batches`.
ReadBatches = Callable[[data.View], Iterator[Mapping[str, jax.Array]]]


class Evaluator(Protocol):
  """An evaluator, built from an entry of `config.evals`.

  Attributes:
    data: purpose -> the view that is read; the same for all processes and for
      all launches of a run.
  """

  data: Mapping[str, data.View]

  def run(self, params: Any, on_batch: OnBatch) -> Iterator[tuple[str, float]]:
    """Yields names and values of metrics, the same in all processes.

    Args:
      params: the model's parameters.
      on_batch: called after every batch.
    """
    ...


@dataclasses.dataclass(frozen=True)
class Context:
  """What an evaluator is built from.

  Attributes:
    config: the complete config of the run.
    section: the evaluation's section of it.
    model: see `models.build`.
    mesh: the devices to use.
    trained_on: the training data.
    source: the data of the evaluation; the same object if it is the same.
    preprocess: deterministic ops, see `data/ops`.
    batch_size: global batch size; the last batch is padded and masked.
  """

  config: ml_collections.ConfigDict
  section: ml_collections.ConfigDict
  model: nn.Module
  mesh: jax.sharding.Mesh
  trained_on: data.Source
  source: data.Source
  preprocess: ops.Preprocess
  batch_size: int

  def view(self, key: str = 'split') -> data.View:
    """Returns the split that a key of the section names."""
    return data.View(self.source, self.section[key])

  def batches(self, *views: data.View, **labels: int) -> ReadBatches:
    """Decodes one example of each view, and returns how to read them all.

    Args:
      *views: what will be read, each example once.
      **labels: num_classes and max_labels, where they are not the config's.
    """
    reading = inputs.reading(self.config) | labels
    for view in views:
      pipeline.check_first_record(view, self.preprocess, **reading)
    rows = sharding.local_rows(self.mesh, self.batch_size)

    def read(view):
      for batch in pipeline.eval_batches(
        *(view, self.preprocess),
        batch_size=self.batch_size,
        rows=rows,
        **reading,
      ):
        yield sharding.put_batch(batch, self.mesh)

    return read


def digests(evaluators: Mapping[str, Evaluator]) -> dict[str, Any]:
  """Returns `data.digest` of each view that the evaluators read."""
  return {
    f'{name}: {use}': data.digest(view)
    for name, evaluator in evaluators.items()
    for use, view in evaluator.data.items()
  }


def run(
  name: str, evaluator: Evaluator, params: Any, step: int, on_batch: OnBatch
) -> dict[str, float]:
  """Runs an evaluator and logs its values.

  Returns:
    The evaluator's values and its duration `seconds`, each as `NAME/...`.

  Raises:
    ValueError: the evaluator cannot measure; names it.
  """
  before = time.monotonic()
  try:
    values = dict(evaluator.run(params, on_batch))
  except ValueError as error:
    raise ValueError(f'evals.{name}: {error}') from error
  seconds = time.monotonic() - before
  shown = ', '.join(f'{key} {_shown(key, v)}' for key, v in values.items())
  logging.info(
    'step %d  %s: %s (%s)', step, name, shown, printable.duration(seconds)
  )
  values['seconds'] = seconds
  return {f'{name}/{key}': value for key, value in values.items()}


def _shown(key: str, value: float) -> str:
  if key.endswith('accuracy'):
    return f'{100 * value:.2f}%'
  return str(value) if isinstance(value, int) else f'{value:.4g}'


def fetched(results: Iterable[Any], on_batch: OnBatch) -> Iterator[Any]:
  """Yields the result of each batch as NumPy arrays.

  It is one batch late, so that the device computes while the next batch is
  read. At most two batches wait on the device.

  Args:
    results: trees of arrays that all processes have whole.
    on_batch: called after every batch.
  """
  pending = None
  for each in results:
    if pending is not None:
      yield jax.device_get(pending)
    pending = each
    on_batch()
  yield jax.device_get(pending)


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
  totals = {}
  for each in fetched(sums, on_batch):
    for key, value in each.items():
      totals[key] = totals.get(key, 0) + np.asarray(value, np.float64)
  left_out = {key: int(totals[key]) for key in ('excluded', 'unlabelled')}
  seen = int(totals['count']) + sum(left_out.values())
  assert seen == len(view), f'saw {seen} of {len(view)} in {view.split!r}'
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
