"""Evaluates the features that a model with frozen weights gives to data sets.

`FrozenFeatures` reads the features of a training and a test split. What it does
with them is a `Classifier`: few shots (`fewshot.py`), nearest neighbours
(`knn.py`), or a linear probe (`linear_probe.py`). None of them changes a weight
of the model.

Axes: `N` images, `D` features.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, sharding
from vit_jax.evaluators.evaluator import Batches, OnBatch, State
from vit_jax.models import layers
from vit_jax.runtime import distributed


@dataclasses.dataclass(frozen=True)
class Features:
  """Features and labels of the readable images of a view.

  Attributes:
    features: float32 [N, D]; for neighbours also a sequence of blocks of them.
    labels: int32 [N].
    rows: indices of the images in the view, [N].
  """

  features: np.ndarray | Sequence[np.ndarray]
  labels: np.ndarray
  rows: np.ndarray | None = None

  def picked(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features and labels of those `rows` that are readable."""
    chosen = np.flatnonzero(np.isin(self.rows, rows))
    return self.features[chosen], self.labels[chosen]


class Classifier:
  """What to do with frozen features.

  Attributes:
    l2: strengths of a regularisation. The best one on the selection split is
      used.
  """

  l2: Sequence[float]

  def check(self, train: data.View) -> None:
    """Raises ValueError if the training images are too few."""

  def choose(self, train: data.View, on_batch: OnBatch) -> list[int] | None:
    """Returns the training images to use, ascending; None for all."""

  def measure(
    self,
    features: Mapping[str, Features],
    num_classes: int,
    mesh: jax.sharding.Mesh,
    on_step: OnBatch = lambda: None,
  ) -> dict[str, float]:
    """Fits to the training images and classifies the others.

    Args:
      features: 'train', 'test' and, if there are several strengths,
        'selection'.
      num_classes: number of classes.
      mesh: the devices.
      on_step: called after each part of the work.

    Returns:
      The metrics, by their names.

    Raises:
      ValueError: a feature is not finite, or the images are too few.
    """
    raise NotImplementedError

  def summary(self, values: Mapping[str, float]) -> str:
    """Returns the accuracies in a few words."""
    raise NotImplementedError


class FrozenFeatures:
  """Evaluates a model's features by a classifier."""

  def __init__(
    self,
    views: Mapping[str, data.View],
    classifier: Classifier,
    batches: Batches,
    model: nn.Module,
    mesh: jax.sharding.Mesh,
    *,
    layer: str = layers.DEFAULT,
  ):
    """Checks the views, but reads and compiles nothing yet.

    Args:
      views: 'train', 'test' and 'selection' -> the images; the last is needed
        only if there are several strengths to choose among.
      classifier: what to do with the features.
      batches: see `evaluator.batches`.
      model: see `models.build`.
      mesh: the devices to use.
      layer: the layer of the features, see `layers.names`.

    Raises:
      ValueError: two views share images, images have several labels, the model
        has no such layer, or several strengths lack a selection view.
    """
    views = dict(views)
    if len(classifier.l2) < 2:
      views.pop('selection', None)
    elif 'selection' not in views:
      raise ValueError(
        f'l2={classifier.l2} are several strengths, and the test split must not'
        ' choose among them. Set selection_split, or a single strength.'
      )
    for (one, a), (other, b) in itertools.combinations(views.items(), 2):
      if shared := a.shared(b):
        raise ValueError(
          f'the {one} split {a.split!r} and the {other} split {b.split!r} of'
          f' {a.source.info.spec!r} may share {shared} images; choose disjoint'
          ' splits.'
        )
    info = views['train'].source.info
    if info.multi_label:
      raise ValueError(
        f'{info.spec!r} has several labels per image, but a classifier of'
        ' features needs exactly one. Choose another dataset.'
      )
    if layer != layers.DEFAULT:  # All models have the default.
      layers.check(model, layer)
    classifier.check(views['train'])
    self._classifier, self._mesh = classifier, mesh
    self._num_classes = info.num_classes
    self._read = functools.partial(
      read, batches=batches, model=model, mesh=mesh, layer=layer
    )
    self.num_examples = len(views['test'])
    self.data = views

  def run(
    self, state: State, on_batch: OnBatch = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields the classifier's metrics.

    Also yields `count`, the number of test images; and `excluded`, the number
    of unreadable images, if there are any.

    Args:
      state: its `eval_params` are evaluated.
      on_batch: called after every batch, and every part of a fit.

    Raises:
      ValueError: a feature is not finite, or a split has no readable image.
    """
    views, read = dict(self.data), self._read
    chosen = self._classifier.choose(views['train'], on_batch)
    if chosen is not None:
      views['train'] = data.Picked(views['train'], chosen)
    found = {
      use: read(view, params=state.eval_params, on_batch=on_batch)
      for use, view in views.items()
    }
    if chosen is not None:
      rows = np.asarray(chosen)[found['train'].rows]
      found['train'] = dataclasses.replace(found['train'], rows=rows)
    results = self._classifier.measure(
      found, self._num_classes, self._mesh, on_batch
    )
    # Processes may round differently, but must agree on the best result.
    yield from distributed.broadcast(results).items()
    yield 'count', len(found['test'].labels)
    unreadable = sum(
      len(view) - len(found[use].labels) for use, view in views.items()
    )
    if unreadable:
      logging.warning('%d unreadable image(s) are left out.', unreadable)
      yield 'excluded', unreadable

  def summary(self, values: dict[str, float]) -> str:
    """Returns one line for the log on the values of `run`."""
    shown = self._classifier.summary(values)
    return f'{shown} on {values["count"]:.0f} examples'


@functools.lru_cache(16)
def compiled_features(
  model: nn.Module, mesh: jax.sharding.Mesh, layer: str = layers.DEFAULT
) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
  """Returns the jitted features; cached like `classification.compiled_sums`.

  Returns:
    `(params, batch) -> features [B, D] float32, labels [B], mask [B]`.
  """

  def represent(params, batch):
    with sharding.use_mesh(mesh):
      features = layers.represent(model, params, batch['image'], layer)
    return features, batch['label'], batch['mask']

  # Replicate, so that every process gets all rows.
  return jax.jit(represent, out_shardings=NamedSharding(mesh, P()))


def read(
  view: data.View,
  batches: Batches,
  model: nn.Module,
  params: Any,
  mesh: jax.sharding.Mesh,
  *,
  layer: str = layers.DEFAULT,
  on_batch: OnBatch = lambda: None,
) -> Features:
  """Returns the features of a view.

  Args:
    view: the images.
    batches: see `evaluator.batches`.
    model: see `models.build`.
    params: its parameters.
    mesh: the devices to use.
    layer: the layer, see `layers.names`.
    on_batch: called after every batch.

  Raises:
    ValueError: no image is readable.
  """
  represent, parts, pending = compiled_features(model, mesh, layer), [], None
  info = view.source.info
  for batch in batches(view, num_classes=info.num_classes, max_labels=1):
    outputs = represent(params, sharding.put_batch(batch, mesh))
    # One batch behind, as in `evaluator.total`.
    if pending is not None:
      parts.append(_readable(*pending))
    pending = outputs
    on_batch()
  parts.append(_readable(*pending))
  counted = np.concatenate([mask for *_, mask in parts])
  if not counted.any():
    raise ValueError(
      f'no image of {view.split!r} is readable. Check the data set.'
    )
  features, labels, _ = zip(*parts, strict=True)
  return Features(
    np.concatenate(features), np.concatenate(labels), np.flatnonzero(counted)
  )


def _readable(features, labels, mask):
  mask = np.asarray(mask)
  return np.asarray(features)[mask], np.asarray(labels)[mask], mask


# ---- What classifiers share --------------------------------------------------


def check_finite(features: np.ndarray) -> None:
  """Raises ValueError unless all features [N, D] are finite."""
  wrong = np.sum(~np.isfinite(features).all(axis=1))
  if wrong:
    raise ValueError(
      f'the features of {wrong} of {len(features)} images are not finite,'
      ' because the weights have diverged or the features overflow. Evaluate an'
      ' earlier checkpoint, or use float32.'
    )


def check_numbers(
  name: str, values: Sequence[float], least: int | None = None
) -> None:
  """Raises ValueError unless there are values, and all of them are different.

  Args:
    name: the key.
    values: the numbers.
    least: the least number; None: positive finite numbers.
  """
  if least is None:
    bound, fits = 'positive', all(0 < v < math.inf for v in values)
  else:
    bound, fits = f'{least} or more', all(v >= least for v in values)
  if not (values and fits and len(set(values)) == len(values)):
    raise ValueError(
      f'{name}={tuple(values)} must be different numbers, {bound}.'
    )


def accuracy(fitted: Any, features: np.ndarray, labels: np.ndarray) -> float:
  """Returns how many predictions are the labels, 0 to 1."""
  return float(np.mean(fitted.predict(features) == labels))


def best(l2: Sequence[float], accuracies: Sequence[float], what: str) -> int:
  """Returns the index of the best strength, the first of equals; logs all."""
  for strength, found in zip(l2, accuracies, strict=True):
    logging.info(
      '%s, l2=%g: %.2f%% on the selection split', what, strength, 100 * found
    )
  return int(np.argmax(accuracies))
