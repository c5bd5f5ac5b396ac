"""Evaluates the features that a model with frozen weights gives to data sets.

`FrozenFeatures` reads the features of a training and a test split; its
subclasses classify by few shots (`fewshot.py`), nearest neighbours (`knn.py`),
or a linear probe (`linear_probe.py`). None of them changes a weight of the
model.

Axes: `N` images, `D` features, `K` classes.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data
from vit_jax.evaluators import evaluator
from vit_jax.evaluators.evaluator import Context, OnBatch, ReadBatches
from vit_jax.models import layers
from vit_jax.runtime import distributed

# Images classified at a time, to bound the memory.
_CHUNK = 8192


@dataclasses.dataclass(frozen=True)
class Features:
  """Features and labels of the readable images of a view.

  Attributes:
    features: float32 [N, D].
    labels: int32 [N].
    rows: indices of the images in the view, [N].
  """

  features: np.ndarray
  labels: np.ndarray
  rows: np.ndarray | None = None


class FrozenFeatures:
  """Evaluates a model's features; a subclass says how it classifies.

  Its `measure(features, on_step)` fits to the training images and classifies
  the others. It gets the features of each view, by its name in `data`, and a
  function to call after each part of the work. It returns the metrics by their
  names, and raises a ValueError if a feature is not finite.
  """

  def __init__(self, given: Context):
    """Checks the views.

    Raises:
      ValueError: two views share images, images have several labels, there are
        fewer training images than neighbours, the model has no such layer, or
        several strengths lack a selection view.
    """
    section, info = given.section, given.source.info
    keys = {'train': 'train_split', 'test': 'split'}
    if len(section.get('l2', ())) > 1:
      if not section.selection_split:
        raise ValueError(
          f'l2={section.l2} are several strengths, and the test split must not'
          ' choose among them. Set selection_split, or a single strength.'
        )
      keys['selection'] = 'selection_split'
    views = {use: given.view(key) for use, key in keys.items()}
    for (one, a), (other, b) in itertools.combinations(views.items(), 2):
      if shared := a.shared(b):
        raise ValueError(
          f'the {one} split {a.split!r} and the {other} split {b.split!r} of'
          f' {info.spec!r} may share {shared} images; choose disjoint splits.'
        )
    if info.multi_label:
      raise ValueError(
        f'{info.spec!r} has several labels per image, but a classifier of'
        ' features needs exactly one. Choose another dataset.'
      )
    most, train = max(section.get('k', (1,))), views['train']
    if len(train) < most:
      raise ValueError(
        f'k={most} needs {most} training images, but {train.split!r} has'
        f' {len(train)}.'
      )
    # Few-shot evaluations have no choice of the layer.
    self._layer = section.get('layer', layers.DEFAULT)
    layers.check(given.model, self._layer, vectors=True)
    self._model = given.model
    self._batches = given.batches(
      *views.values(), num_classes=info.num_classes, max_labels=1
    )
    self.section, self.mesh = section, given.mesh
    self.num_classes = info.num_classes
    self.data = views

  def views(self, on_batch: OnBatch) -> Mapping[str, data.View]:
    """Returns what to read of `data`: here, all of it."""
    return self.data

  def run(
    self, params: Any, on_batch: OnBatch = lambda: None
  ) -> Iterator[tuple[str, float]]:
    """Yields the classifier's metrics.

    Also yields `count`, the number of test images; and `excluded`, the number
    of unreadable images, if there are any.

    Args:
      params: the model's parameters.
      on_batch: called after every batch, and every part of a fit.

    Raises:
      ValueError: a feature is not finite, or a split has no readable image.
    """
    views = self.views(on_batch)
    found = {
      use: read(
        *(view, self._batches, self._model, params, self.mesh),
        layer=self._layer,
        on_batch=on_batch,
      )
      for use, view in views.items()
    }
    # Processes may round differently, but must agree on the best result.
    yield from distributed.broadcast(self.measure(found, on_batch)).items()
    yield 'count', len(found['test'].labels)
    unreadable = sum(
      len(view) - len(found[use].labels) for use, view in views.items()
    )
    if unreadable:
      logging.warning('%d unreadable image(s) are left out.', unreadable)
      yield 'excluded', unreadable


def read(
  view: data.View,
  batches: ReadBatches,
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
    batches: see `Context.batches`.
    model: see `models.build`.
    params: its parameters.
    mesh: the devices to use.
    layer: the layer, see `layers.names`.
    on_batch: called after every batch.

  Raises:
    ValueError: no image is readable.
  """
  represent = layers.compiled(model, mesh, layer)
  everywhere = NamedSharding(mesh, P())  # Every process gets all rows.
  results = (
    (
      represent(params, batch['image']),
      *jax.device_put((batch['label'], batch['mask']), everywhere),
    )
    for batch in batches(view)
  )
  parts = [
    (features[mask], labels[mask], mask)
    for features, labels, mask in evaluator.fetched(results, on_batch)
  ]
  features, labels, masks = map(np.concatenate, zip(*parts, strict=True))
  if not masks.any():
    raise ValueError(
      f'no image of {view.split!r} is readable. Check the data set.'
    )
  return Features(features, labels, np.flatnonzero(masks))


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


@dataclasses.dataclass(frozen=True)
class Linear:
  """A fitted linear classifier of standardised features.

  Attributes:
    mean: [D], the mean of the training images' features.
    scale: [D], what the features are divided by.
    kernel: [D, K].
    bias: [K].
  """

  mean: np.ndarray
  scale: np.ndarray
  kernel: np.ndarray
  bias: np.ndarray

  def scores(self, features: np.ndarray) -> np.ndarray:
    """Returns the scores [N, K] of features [N, D]."""
    return (features - self.mean) / self.scale @ self.kernel + self.bias

  def predict(self, features: np.ndarray) -> np.ndarray:
    """Returns the class of the highest score, int64 [N]."""
    parts = range(0, len(features), _CHUNK)
    return np.concatenate(
      [self.scores(features[i : i + _CHUNK]).argmax(axis=1) for i in parts]
    )

  def accuracy(self, of: Features) -> float:
    """Returns how many predictions are the labels, 0 to 1."""
    return float(np.mean(self.predict(of.features) == of.labels))


def best(l2: Sequence[float], accuracies: Sequence[float], what: str) -> int:
  """Returns the index of the best strength, the first of equals; logs all."""
  for strength, found in zip(l2, accuracies, strict=True):
    logging.info(
      '%s, l2=%g: %.2f%% on the selection split', what, strength, 100 * found
    )
  return int(np.argmax(accuracies))
