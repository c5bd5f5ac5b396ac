"""Reads the features that a model with frozen weights gives to data sets."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import flax.linen as nn
import jax
import numpy as np
from absl import logging
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from vit_jax import data, sharding
from vit_jax.data import ops, pipeline
from vit_jax.evaluators.evaluator import State
from vit_jax.models import layers

OnBatch = Callable[[], None]


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
  rows: np.ndarray

  def picked(self, rows: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features and labels of those `rows` that are readable."""
    chosen = np.flatnonzero(np.isin(self.rows, rows))
    return self.features[chosen], self.labels[chosen]


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


class _Filled:
  """The features so far, in arrays that have their final size at once."""

  def __init__(self, size: int):
    self._arrays: list[np.ndarray] = []
    self._size, self._seen, self.count = size, 0, 0

  def add(self, features, labels, mask) -> None:
    """Appends the rows of a batch that `mask` keeps."""
    mask = np.asarray(mask)
    rows = self._seen + np.flatnonzero(mask)
    self._seen += len(mask)
    parts = [np.asarray(features)[mask], np.asarray(labels)[mask], rows]
    if not self._arrays:
      self._arrays = [
        np.empty((self._size, *part.shape[1:]), part.dtype) for part in parts
      ]
    end = self.count + len(rows)
    for array, part in zip(self._arrays, parts, strict=True):
      array[self.count : end] = part
    self.count = end

  def features(self) -> Features:
    return Features(*(array[: self.count] for array in self._arrays))


class Reader:
  """Reads features of the views of an evaluation.

  Attributes:
    name: name of the evaluation, for messages.
    views: purpose -> the images.
    num_classes: number of classes of the data set.
    mesh: the devices.
  """

  def __init__(
    self,
    views: Mapping[str, data.View],
    preprocess: ops.Preprocess,
    model: nn.Module,
    mesh: jax.sharding.Mesh,
    *,
    batch_size: int,
    reading: dict,
    name: str,
    layer: str = layers.DEFAULT,
  ):
    """Checks the views, but reads and compiles nothing yet.

    Args:
      views: purpose -> the images, which no two purposes may share.
      preprocess: deterministic ops, for all views.
      model: see `models.build`.
      mesh: the devices to use.
      batch_size: global batch size.
      reading: further arguments of `pipeline.eval_batches`.
      name: name of the evaluation.
      layer: the layer, see `layers.names`.

    Raises:
      ValueError: two views share images, images have several labels, or the
        model has no such layer.
    """
    _check_apart(views)
    info = views['train'].source.info
    if info.multi_label:
      raise ValueError(
        f'{info.spec!r} has several labels per image, but a classifier of'
        ' features needs exactly one. Choose another dataset.'
      )
    if layer != layers.DEFAULT:  # All models have the default.
      layers.check(model, layer)
    self.name, self.views, self.mesh = name, dict(views), mesh
    self.num_classes = info.num_classes
    self._represent = compiled_features(model, mesh, layer)
    self._batches = lambda view: pipeline.eval_batches(
      view,
      preprocess,
      batch_size=batch_size,
      rows=sharding.local_rows(mesh, batch_size),
      **reading | {'num_classes': self.num_classes, 'max_labels': 1},
    )

  def read(self, view: data.View, state: State, on_batch: OnBatch) -> Features:
    """Returns the features of a view; ValueError if no image is readable."""
    found = _Filled(len(view))
    pending = None
    for batch in self._batches(view):
      outputs = self._represent(
        state.eval_params, sharding.put_batch(batch, self.mesh)
      )
      # One batch behind, as in `summing.total`.
      if pending is not None:
        found.add(*pending)
      pending = outputs
      on_batch()
    found.add(*pending)
    if not found.count:
      raise ValueError(
        f'evals.{self.name}: no image of {view.split!r} is readable. Check the'
        ' data set.'
      )
    return found.features()

  def read_all(self, state: State, on_batch: OnBatch) -> dict[str, Features]:
    """Returns the features of all views, by their purposes."""
    return {
      use: self.read(view, state, on_batch) for use, view in self.views.items()
    }

  def counts(
    self,
    features: Mapping[str, Features],
    views: Mapping[str, data.View] | None = None,
  ) -> Iterator[tuple[str, float]]:
    """Yields `count`, and `excluded` if there are unreadable images.

    Args:
      features: what was read, by purpose.
      views: the views that were read; None: all images of `self.views`.
    """
    yield 'count', len(features['test'].labels)
    unreadable = sum(
      len(view) - len(features[use].labels)
      for use, view in (views or self.views).items()
    )
    if unreadable:
      logging.warning(
        'evals.%s leaves out %d unreadable image(s).', self.name, unreadable
      )
      yield 'excluded', unreadable


def _check_apart(views: Mapping[str, data.View]) -> None:
  names = list(views)
  for i, one in enumerate(names):
    for other in names[i + 1 :]:
      if shared := views[one].shared(views[other]):
        raise ValueError(
          f'the {one} split {views[one].split!r} and the {other} split'
          f' {views[other].split!r} of {views[one].source.info.spec!r} share'
          f' {shared} images; choose disjoint splits.'
        )
