"""Measures accuracy and loss on a whole split, with every example once."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, losses, sharding
from vit_jax.evaluators import calibration, evaluator, predictions
from vit_jax.evaluators.evaluator import Batches, OnBatch, State
from vit_jax.models.shared import normalize

# Loss -> the probabilities that it trains the logits for: [B, K] -> [B, K].
PROBABILITIES = {'softmax': jax.nn.softmax, 'sigmoid': jax.nn.sigmoid}

_TOP = 5
# The logit of a class that may not be predicted. It is finite, because the loss
# multiplies it by a target of 0.
_BARRED = -1e9


@functools.lru_cache(16)
def compiled_sums(
  model: nn.Module,
  loss: losses.Loss,
  mesh: jax.sharding.Mesh,
  probabilities: Callable[[jax.Array], jax.Array],
  kept: int,
) -> Callable[..., tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
  """Returns the jitted sums over the examples of a batch.

  The cache returns the same function for the same arguments, so that
  evaluations with equal batch shapes are compiled once.

  Args:
    model: see `models.build`.
    loss: see `losses.build`.
    mesh: the devices to use.
    probabilities: function of the logits, see `PROBABILITIES`.
    kept: number of the most probable classes to keep of each example; 0 keeps
      nothing of single examples.

  Returns:
    `(params, batch, barred) -> (sums, rows)`. `barred` is None, or bool [K]
    with the classes that may not be predicted. `rows` are columns of
    `predictions.read`, or empty if nothing is kept.
  """

  def sums(params, batch, barred):
    with sharding.use_mesh(mesh):
      logits, _ = model.apply(
        {'params': params}, normalize(batch['image']), train=False
      )
    if barred is not None:
      logits = jnp.where(barred, _BARRED, logits)
    labels = batch['label'].reshape(len(logits), -1)  # [B, M]
    readable, labelled = batch['mask'], (labels >= 0).any(axis=-1)
    counted = readable & labelled
    correct = losses.correct(logits, labels) & counted
    each_loss = loss(logits, labels)
    shares = probabilities(logits)
    confidence = shares.max(axis=-1)
    result = {
      'correct': jnp.sum(correct),
      'loss': jnp.sum(jnp.where(counted, each_loss, 0.0)),
      'count': jnp.sum(counted),
      'excluded': jnp.sum(batch['unreadable']),
      'unlabelled': jnp.sum(readable & ~labelled),
      'calibration': calibration.sums(confidence, correct, counted),
    }
    if 'truncated' in batch:
      result['truncated'] = jnp.sum(batch['truncated'])
    if logits.shape[-1] > _TOP:
      _, top = jax.lax.top_k(logits, _TOP)  # [B, 5]
      among = (top[:, :, None] == labels[:, None]).any(axis=(1, 2))
      result['among_top'] = jnp.sum(among & counted)
    if not kept:
      return result, {}
    values, classes = jax.lax.top_k(shares, kept)
    return result, {
      'labels': labels,
      'prediction': jnp.where(readable, jnp.argmax(logits, axis=-1), -1),
      'confidence': jnp.where(readable, confidence, jnp.nan),
      'loss': jnp.where(counted, each_loss, jnp.nan),
      'correct': correct,
      'counted': counted,
      'unreadable': batch['unreadable'],
      'unlabelled': readable & ~counted,
      'top5': jnp.where(readable[:, None], classes, -1),
      'top5_probability': jnp.where(readable[:, None], values, jnp.nan),
    }

  # The parameters keep their sharding; every process gets the sums, and all
  # rows.
  return jax.jit(sums, out_shardings=NamedSharding(mesh, P()))


class Classification:
  """Evaluates a classifier on one split of one data set."""

  def __init__(
    self,
    view: data.View,
    batches: Batches,
    model: nn.Module,
    loss: str,
    mesh: jax.sharding.Mesh,
    *,
    num_classes: int,
    candidates: Sequence[int] | None = None,
    save_predictions: bool = False,
  ):
    """Prepares the evaluation, but reads and compiles nothing yet.

    Args:
      view: the examples.
      batches: see `evaluator.batches`.
      model: see `models.build`.
      loss: name of the training loss, see `losses.LOSSES`.
      mesh: the devices to use.
      num_classes: number of classes of the model.
      candidates: the classes that may be predicted; None allows all.
      save_predictions: whether `run` keeps the predictions, so that
        `save_predictions` can write them.
    """
    self._view, self._batches, self._mesh = view, batches, mesh
    self.num_examples = len(view)
    self.data = {'test': view}
    self._barred, allowed = None, num_classes
    if candidates is not None:
      self._barred = np.ones(num_classes, bool)
      self._barred[np.asarray(candidates)] = False
      allowed = len(candidates)
    kept = min(predictions.TOP, allowed) if save_predictions else 0
    self._keeps = save_predictions and jax.process_index() == 0
    self._rows: list[Mapping[str, jax.Array]] = []
    self._sums = compiled_sums(
      model, losses.build(loss), mesh, PROBABILITIES[loss], kept
    )

  def run(
    self, state: State, on_batch: OnBatch = lambda: None
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
    totals = evaluator.total(self._view, self._each_batch(state), on_batch)
    count = totals['count']
    yield 'accuracy', float(totals['correct'] / count)
    yield 'loss', float(totals['loss'] / count)
    if 'among_top' in totals:
      yield f'top{_TOP}_accuracy', float(totals['among_top'] / count)
    yield 'ece', calibration.error(totals['calibration'])
    yield from evaluator.counts(totals)

  def _each_batch(self, state: State) -> Iterator[dict[str, jax.Array]]:
    """Yields the sums of each batch; keeps its rows if they are written."""
    self._rows = []
    for batch in self._batches(self._view):
      batch = sharding.put_batch(batch, self._mesh)
      sums, rows = self._sums(state.eval_params, batch, self._barred)
      if self._keeps:
        self._rows.append(rows)
      yield sums

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
    rows = jax.device_get(self._rows)
    self._rows = []  # Frees the memory.
    columns = {key: np.concatenate([r[key] for r in rows]) for key in rows[0]}
    predictions.write(path, columns, self._view, facts)

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    return (
      f'accuracy {100 * values["accuracy"]:.2f}%, loss {values["loss"]:.4f} on'
      f' {values["count"]:.0f} examples'
    )
