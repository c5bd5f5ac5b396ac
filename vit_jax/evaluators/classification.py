"""Measures accuracy and loss on a whole split, with every example once."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.evaluators import calibration, predictions, summing
from vit_jax.evaluators.evaluator import State
from vit_jax.models.images import normalize
from vit_jax.training import losses

Confidence = Callable[[jax.Array], jax.Array]

_TOP = 5
# The logit of a class that may not be predicted. It is finite, because the loss
# multiplies it by a target of 0.
_BARRED = -1e9


def softmax_confidence(logits: jax.Array) -> jax.Array:
  """Returns the softmax probability of the prediction: [B, K] -> [B]."""
  return jax.nn.softmax(logits, axis=-1).max(axis=-1)


def sigmoid_confidence(logits: jax.Array) -> jax.Array:
  """Returns the sigmoid probability of the prediction: [B, K] -> [B]."""
  return jax.nn.sigmoid(logits.max(axis=-1))


CONFIDENCES = {'softmax': softmax_confidence, 'sigmoid': sigmoid_confidence}
_PROBABILITIES = {
  softmax_confidence: jax.nn.softmax,
  sigmoid_confidence: jax.nn.sigmoid,
}


@functools.lru_cache(16)
def compiled_sums(
  model: nn.Module,
  loss: losses.Loss,
  mesh: jax.sharding.Mesh,
  confidence: Confidence,
  kept: int,
) -> Callable[..., tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
  """Returns the jitted sums over the examples of a batch.

  The cache returns the same function for the same arguments, so that
  evaluations with equal batch shapes are compiled once.

  Args:
    model: see `models.build`.
    loss: see `losses.build`.
    mesh: the devices to use.
    confidence: function of the logits that returns the confidences.
    kept: number of the most probable classes to keep of each example; 0 keeps
      nothing of single examples.

  Returns:
    `(params, batch, barred) -> (sums, rows)`. `barred` is None, or bool [K]
    with the classes that may not be predicted. `rows` are those of
    `predictions.rows`, or empty if nothing is kept.
  """

  def sums(params, batch, barred):
    with sharding.use_mesh(mesh):
      logits, _ = model.apply(
        {'params': params}, normalize(batch['image']), train=False
      )
    if barred is not None:
      logits = jnp.where(barred, _BARRED, logits)
    labels = batch['label'].reshape(len(logits), -1)  # [B, M]
    labelled = (labels >= 0).any(axis=-1)
    counted = batch['mask'] & labelled
    correct = losses.correct(logits, labels)
    each_loss = loss(logits, labels)
    each_confidence = confidence(logits)
    result = {
      'correct': jnp.sum(correct & counted),
      'loss': jnp.sum(jnp.where(counted, each_loss, 0.0)),
      'count': jnp.sum(counted),
      'excluded': jnp.sum(batch['unreadable']),
      'unlabelled': jnp.sum(batch['mask'] & ~labelled),
      'calibration': calibration.sums(each_confidence, correct, counted),
    }
    if 'truncated' in batch:
      result['truncated'] = jnp.sum(batch['truncated'])
    if logits.shape[-1] > _TOP:
      _, top = jax.lax.top_k(logits, _TOP)  # [B, 5]
      among = (top[:, :, None] == labels[:, None]).any(axis=(1, 2))
      result['among_top'] = jnp.sum(among & counted)
    if not kept:
      return result, {}
    return result, predictions.rows(
      logits,
      labels,
      batch=batch,
      counted=counted,
      correct=correct,
      loss=each_loss,
      confidence=each_confidence,
      probabilities=_PROBABILITIES[confidence],
      top=kept,
    )

  # The parameters keep their sharding; every process gets the sums, and all
  # rows.
  return jax.jit(sums, out_shardings=NamedSharding(mesh, P()))


class Classification:
  """Evaluates a classifier on one split of one data set."""

  def __init__(
    self,
    view: data.View,
    preprocess: ops.Preprocess,
    model: nn.Module,
    loss: losses.Loss,
    mesh: jax.sharding.Mesh,
    *,
    batch_size: int,
    reading: dict,
    confidence: Confidence = softmax_confidence,
    candidates: Sequence[int] | None = None,
    save_predictions: bool = False,
  ):
    """Prepares the evaluation, but reads and compiles nothing yet.

    Args:
      view: the examples.
      preprocess: deterministic ops, see `data/ops`.
      model: see `models.build`.
      loss: see `losses.build`.
      mesh: the devices to use.
      batch_size: global batch size; the last batch is padded and masked.
      reading: further arguments of `pipeline.eval_batches`.
      confidence: function of the logits that returns the confidences.
      candidates: the classes that may be predicted; None allows all.
      save_predictions: whether `run` keeps the predictions, so that
        `save_predictions` can write them.
    """
    self._view = view
    self._mesh = mesh
    self.num_examples = len(view)
    self.data = {'test': view}
    self._batches = lambda: pipeline.eval_batches(
      view,
      preprocess,
      batch_size=batch_size,
      rows=sharding.local_rows(mesh, batch_size),
      **reading,
    )
    self._barred = None
    if candidates is not None:
      self._barred = np.ones(reading['num_classes'], bool)
      self._barred[np.asarray(candidates)] = False
    self._predictions: dict[str, np.ndarray] = {}
    self._kept = 0
    if save_predictions:
      allowed = (
        reading['num_classes'] if candidates is None else len(candidates)
      )
      self._kept = min(predictions.TOP, allowed)
    self._sums = compiled_sums(model, loss, mesh, confidence, self._kept)

  def run(
    self, state: State, on_batch: Callable[[], None] = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields the names and values of the metrics.

    These are `accuracy` and `loss` (means over the examples); `top5_accuracy`,
    if there are more than five classes; `ece`, the expected calibration error;
    and `count`, the number of examples. An image with several labels is correct
    if the prediction is one of them. These follow if they are not 0:
    `unlabelled`, the number of images without a label, which do not count;
    `truncated`, the number of images with more labels than are kept; and
    `excluded`, the number of unreadable images. count + unlabelled + excluded
    is the split's size.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch.
    """
    collected = predictions.Collected()
    totals = summing.total(self._each_batch(state, collected), on_batch)
    count, excluded = int(totals['count']), int(totals['excluded'])
    unlabelled = int(totals['unlabelled'])
    if count + excluded + unlabelled != len(self._view):
      raise RuntimeError(
        f'Evaluation saw {count + excluded + unlabelled} examples of'
        f' {len(self._view)} in {self._view.split!r}.'
      )
    if not count:
      raise ValueError(
        f'Of {len(self._view)} images of {self._view.split!r} {excluded} are'
        f' unreadable and {unlabelled} have no label, so no image is left to'
        ' evaluate. Check the data set.'
      )
    if self._keeps:
      self._predictions = collected.all()
    yield 'accuracy', float(totals['correct'] / count)
    yield 'loss', float(totals['loss'] / count)
    if 'among_top' in totals:
      yield f'top{_TOP}_accuracy', float(totals['among_top'] / count)
    yield 'ece', calibration.error(totals['calibration'])
    yield 'count', count
    if unlabelled:
      yield 'unlabelled', unlabelled
    if totals.get('truncated'):
      yield 'truncated', int(totals['truncated'])
    if excluded:
      logging.warning(
        'The evaluation leaves out %d unreadable image(s) of %r.',
        excluded,
        self._view.split,
      )
      yield 'excluded', excluded

  def _each_batch(
    self, state: State, collected: predictions.Collected
  ) -> Iterator[dict[str, jax.Array]]:
    """Yields the sums of each batch; collects its rows if they are kept."""
    for batch in self._batches():
      sums, rows = self._sums(
        state.eval_params,
        sharding.put_batch(batch, self._mesh),
        self._barred,
      )
      if self._keeps:
        collected.add(rows)
      yield sums

  @property
  def _keeps(self) -> bool:
    """Whether this process keeps predictions, to write them."""
    return bool(self._kept) and jax.process_index() == 0

  def save_predictions(
    self, path: epath.Path, facts: Mapping[str, Any]
  ) -> None:
    """Writes what the last `run` predicted; only process 0 can.

    Args:
      path: see `predictions.path`.
      facts: see `predictions.write`; this adds those that it knows.
    """
    spec = self._view.source.info.spec
    facts = {'dataset': spec, 'split': self._view.split, **facts}
    predictions.write(path, self._predictions, self._view, facts)
    self._predictions = {}  # Frees the memory.

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    return (
      f'accuracy {100 * values["accuracy"]:.2f}%, loss {values["loss"]:.4f} on'
      f' {values["count"]:.0f} examples'
    )
