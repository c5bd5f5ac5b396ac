"""Accuracy and loss over a whole split, every example exactly once."""

import functools
from collections.abc import Callable, Iterator, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.evaluators import calibration, summing
from vit_jax.evaluators.evaluator import State
from vit_jax.models.images import normalize
from vit_jax.training import losses

Confidence = Callable[[jax.Array], jax.Array]

_TOP = 5
# The logit of a class that may not be predicted. Not infinite: it is multiplied
# by a target of 0.
_BARRED = -1e9


def softmax_confidence(logits: jax.Array) -> jax.Array:
  """The probability of the prediction, float32 [B], of logits [B, K]."""
  return jax.nn.softmax(logits, axis=-1).max(axis=-1)


def sigmoid_confidence(logits: jax.Array) -> jax.Array:
  """The same where each class has a probability of its own."""
  return jax.nn.sigmoid(logits.max(axis=-1))


CONFIDENCES = {'softmax': softmax_confidence, 'sigmoid': sigmoid_confidence}


@functools.lru_cache(16)
def compiled_sums(
  model: nn.Module,
  loss: losses.Loss,
  mesh: jax.sharding.Mesh,
  confidence: Confidence,
) -> Callable[..., dict[str, jax.Array]]:
  """What is summed over the examples of a batch, jitted.

  The same function for the same arguments: evaluations whose batches have the
  same shapes are compiled once.

  Returns:
    `(params, batch, barred) -> sums`, with `barred` bool [K], the classes that
    may not be predicted, or None.
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
    result = {
      'correct': jnp.sum(correct & counted),
      'loss': jnp.sum(jnp.where(counted, loss(logits, labels), 0.0)),
      'count': jnp.sum(counted),
      'excluded': jnp.sum(batch['unreadable']),
      'unlabelled': jnp.sum(batch['mask'] & ~labelled),
      'calibration': calibration.sums(confidence(logits), correct, counted),
    }
    if 'truncated' in batch:
      result['truncated'] = jnp.sum(batch['truncated'])
    if logits.shape[-1] > _TOP:
      _, top = jax.lax.top_k(logits, _TOP)  # [B, 5]
      among = (top[:, :, None] == labels[:, None]).any(axis=(1, 2))
      result['among_top'] = jnp.sum(among & counted)
    return result

  # The parameters come as they are split; every process gets the sums.
  return jax.jit(sums, out_shardings=NamedSharding(mesh, P()))


class Classification:
  """Evaluates on one split of one data set."""

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
  ):
    """Nothing is read or compiled yet.

    Args:
      view: the examples.
      preprocess: deterministic ops, see `data/ops.py`.
      model: see `models.build`.
      loss: see `losses.build`.
      mesh: the devices to use.
      batch_size: global; the last batch is padded and masked.
      reading: further arguments of `pipeline.eval_batches`.
      confidence: of the prediction, by the logits.
      candidates: the classes that may be predicted; None is all.
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
    self._sums = compiled_sums(model, loss, mesh, confidence)

  def run(
    self, state: State, on_batch: Callable[[], None] = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields `accuracy` and `loss` (means over the examples), `count`.

    Between them `top5_accuracy`, with more than five classes, and `ece`, the
    expected calibration error. An image with several labels counts as correct
    if the prediction is one of them; one without any counts neither way, and
    `unlabelled` says how many there are, and `truncated` how many have more
    labels than are kept. With unreadable images also `excluded`; count +
    unlabelled + excluded is the split's size.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch.
    """
    totals = summing.total(
      (
        self._sums(
          state.eval_params,
          sharding.put_batch(batch, self._mesh),
          self._barred,
        )
        for batch in self._batches()
      ),
      on_batch,
    )
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
        f' unreadable and {unlabelled} have no label: none is left.'
      )
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
        '%d unreadable image(s) of %r left out of the evaluation.',
        excluded,
        self._view.split,
      )
      yield 'excluded', excluded

  def summary(self, values: dict[str, float]) -> str:
    """One line for the log, of what `run` gave."""
    return (
      f'accuracy {100 * values["accuracy"]:.2f}%, loss {values["loss"]:.4f} on'
      f' {values["count"]:.0f} examples'
    )
