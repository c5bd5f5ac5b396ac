"""Measures accuracy and loss on a whole split, with every example once."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, losses, sharding
from vit_jax.evaluators import calibration, classes, evaluator, predictions
from vit_jax.evaluators.evaluator import Context, OnBatch
from vit_jax.models.shared import normalize
from vit_jax.runtime import distributed

# Loss -> the probabilities that it trains the logits for: [B, K] -> [B, K].
PROBABILITIES = {'softmax': jax.nn.softmax, 'sigmoid': jax.nn.sigmoid}

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
    if logits.shape[-1] > predictions.TOP:
      _, top = jax.lax.top_k(logits, predictions.TOP)  # [B, 5]
      among = (top[:, :, None] == labels[:, None]).any(axis=(1, 2))
      result['among_top'] = jnp.sum(among & counted)
    if not kept:
      return result, {}
    values, best = jax.lax.top_k(shares, kept)
    return result, {
      'labels': labels,
      'prediction': jnp.where(readable, jnp.argmax(logits, axis=-1), -1),
      'confidence': jnp.where(readable, confidence, jnp.nan),
      'loss': jnp.where(counted, each_loss, jnp.nan),
      'correct': correct,
      'counted': counted,
      'unreadable': batch['unreadable'],
      'unlabelled': readable & ~counted,
      'top5': jnp.where(readable[:, None], best, -1),
      'top5_probability': jnp.where(readable[:, None], values, jnp.nan),
    }

  # The parameters keep their sharding; every process gets the sums, and all
  # rows.
  return jax.jit(sums, out_shardings=NamedSharding(mesh, P()))


class Classification:
  """Evaluates a classifier on one split; its loss smooths no labels."""

  def __init__(self, given: Context):
    """Checks the section and the classes.

    Raises:
      ValueError: the run has no classifier, class i is not the same in the data
        as in the training data, or pyarrow is needed and not installed.
    """
    config, section, source = given.config, given.section, given.source
    if config.loss.name not in losses.LOSSES:
      raise ValueError(
        'it needs a classifier, but a run with'
        f' loss.name={config.loss.name!r} has none. Use evals of other kinds,'
        " such as 'masked_patch' and 'few_shot'."
      )
    if section.save_predictions:
      predictions.check_pyarrow('save_predictions')
    view = given.view()
    max_labels = section.max_labels or config.data.max_labels
    if section.classes:
      view, max_labels = classes.relabelled(
        section.classes, view, given.trained_on.info
      )
    elif source is not given.trained_on:
      classes.check_same(source.info, given.trained_on.info)
    else:
      _tell_if_trained_on(view, config.data.train_split)
    self._barred, allowed = None, config.num_classes
    if section.restrict:
      candidates = distributed.broadcast(
        _occurring(view) if jax.process_index() == 0 else None
      )
      logging.info('Predictions are restricted to %d classes.', len(candidates))
      self._barred = np.ones(config.num_classes, bool)
      self._barred[candidates] = False
      allowed = len(candidates)
    self.data = {'test': view}
    self._batches = given.batches(view, max_labels=max_labels)
    self._keeps = section.save_predictions and jax.process_index() == 0
    self._rows: list[Mapping[str, jax.Array]] = []
    self._sums = compiled_sums(
      given.model,
      losses.build(config.loss.name, reduce=config.loss.get('reduce', 'sum')),
      given.mesh,
      PROBABILITIES[config.loss.name],
      min(predictions.TOP, allowed) if section.save_predictions else 0,
    )

  def run(
    self, params: Any, on_batch: OnBatch = lambda: None
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
      params: the model's parameters.
      on_batch: called after every batch.
    """
    totals = evaluator.total(
      self.data['test'], self._each_batch(params), on_batch
    )
    count = totals['count']
    yield 'accuracy', float(totals['correct'] / count)
    yield 'loss', float(totals['loss'] / count)
    if 'among_top' in totals:
      yield f'top{predictions.TOP}_accuracy', float(totals['among_top'] / count)
    yield 'ece', calibration.error(totals['calibration'])
    yield from evaluator.counts(totals)

  def _each_batch(self, params: Any) -> Iterator[dict[str, jax.Array]]:
    """Yields the sums of each batch; keeps its rows if they are written."""
    self._rows = []
    for batch in self._batches(self.data['test']):
      sums, rows = self._sums(params, batch, self._barred)
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
    view = self.data['test']
    facts = {'dataset': view.source.info.spec, 'split': view.split, **facts}
    rows = jax.device_get(self._rows)
    self._rows = []  # Frees the memory.
    columns = {key: np.concatenate([r[key] for r in rows]) for key in rows[0]}
    predictions.write(path, columns, view, facts)


def _occurring(view: data.View) -> list[int]:
  """Returns the classes that occur in a view, ascending."""
  labels = data.read_labels(view)
  if isinstance(labels, list):  # Several per image.
    labels = np.concatenate(labels)
  return np.unique(labels).astype(int).tolist()


def _tell_if_trained_on(view: data.View, train_split: str) -> None:
  """Warns if an evaluation uses examples of the training split."""
  shared = view.shared(data.View(view.source, train_split))
  if shared and jax.process_index() == 0:
    logging.warning(
      'Up to %d of the %d examples of %r are also training examples'
      ' (data.train_split=%r), so it does not measure generalization.',
      *(shared, len(view), view.split, train_split),
    )
