"""Guards: each example of a split counts exactly once in accuracy and loss."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data, sharding
from vit_jax.data import ops
from vit_jax.evaluators import classification
from vit_jax.evaluators.classification import CONFIDENCES, Classification
from vit_jax.training import losses
from vit_jax.training import step as step_lib

CLASSES = 3


class FirstPixels(nn.Module):
  """A model whose logits are the first three pixels times a parameter."""

  @nn.compact
  def __call__(self, images, *, train):
    scale = self.param('scale', nn.initializers.ones, ())
    return scale * images.reshape(len(images), -1)[:, :CLASSES], {}


@dataclasses.dataclass
class Images:
  """Images of random pixels with given labels; None makes a broken image."""

  labels: list[int | None]

  def __post_init__(self):
    self.info = data.SourceInfo('images', {'test': len(self.labels)}, 'abc')
    rng = np.random.default_rng(0)
    shape = (len(self.labels), 2, 2, 1)
    self.pixels = rng.integers(0, 256, shape, dtype=np.uint8)

  def read(self, split, index):
    label = self.labels[index]
    image = b'broken' if label is None else self.pixels[index]
    return data.Record(image, label or 0, f'{split}/{index}')

  def logits(self):
    """Returns the logits of the images that are not broken, [count, 3]."""
    whole = [label is not None for label in self.labels]
    return self.pixels.reshape(-1, 4)[whole, :CLASSES] / 127.5 - 1


def _evaluate(source, *, loss='softmax', devices=8, scale=1, average=None):
  evaluator = Classification(
    data.View(source, 'test'),
    ops.parse('resize', image_size=(2, 2), channels=1),
    FirstPixels(),
    losses.build(loss),
    sharding.make_mesh(devices),
    batch_size=8,
    reading=dict(num_classes=CLASSES, unreadable='skip-and-count', threads=0),
    confidence=CONFIDENCES[loss],
  )
  state = step_lib.TrainState(
    step=jnp.int32(0),
    params={'scale': jnp.float32(scale)},
    opt_state=(),
    ema_params={} if average is None else {'scale': jnp.float32(average)},
  )
  return dict(evaluator.run(state))


def _labels(count):
  return np.random.default_rng(1).integers(0, CLASSES, count).tolist()


def _naive(logits, labels, loss):
  targets = np.eye(CLASSES)[labels]
  if loss == 'softmax':
    terms = -targets * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))
  else:
    terms = np.log1p(np.exp(np.where(targets, -logits, logits)))
  correct = logits.argmax(1) == labels
  if loss == 'softmax':
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  else:
    shares = 1 / (1 + np.exp(-logits))
  return {
    'accuracy': np.mean(correct),
    'loss': terms.sum(1).mean(),
    'ece': _naive_calibration_error(shares.max(1), correct),
  }


def _naive_calibration_error(confidence, correct):
  error = 0
  for low in range(15):
    inside = (low / 15 < confidence) & (confidence <= (low + 1) / 15)
    if inside.any():
      distance = abs(correct[inside].mean() - confidence[inside].mean())
      error += inside.mean() * distance
  return error


@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
@pytest.mark.parametrize('count', [1, 8, 21])
def test_every_example_counts_once(count, loss):
  labels = _labels(count)
  source = Images(labels)
  values = _evaluate(source, loss=loss)
  expected = _naive(source.logits(), labels, loss) | {'count': count}
  assert values == pytest.approx(expected, rel=1e-5)


def test_the_number_of_devices_does_not_change_the_metrics():
  source = Images(_labels(21))
  one, eight = (_evaluate(source, devices=n) for n in (1, 8))
  assert one == pytest.approx(eight, rel=1e-6)


def test_averaged_weights_are_evaluated_if_there_are_any():
  labels = _labels(21)
  source = Images(labels)
  values = _evaluate(source, scale=9, average=1)
  expected = _naive(source.logits(), labels, 'softmax')
  assert values['loss'] == pytest.approx(expected['loss'], rel=1e-5)


@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
def test_unreadable_images_are_left_out_and_counted(loss):
  labels = _labels(21)
  labels[3] = labels[20] = None
  source = Images(labels)
  whole = [label for label in labels if label is not None]
  expected = _naive(source.logits(), whole, loss)
  values = _evaluate(source, loss=loss)
  assert values == pytest.approx(
    expected | {'count': 19, 'excluded': 2}, rel=1e-5
  )


def test_only_unreadable_images_are_an_error():
  with pytest.raises(
    ValueError, match="Of 5 images of 'test' 5 are unreadable"
  ):
    _evaluate(Images([None] * 5))


def test_evaluations_of_the_same_shapes_are_compiled_once():
  classification.compiled_sums.cache_clear()
  for labels in (_labels(5), _labels(21), _labels(8)):
    _evaluate(Images(labels))
  assert classification.compiled_sums.cache_info().misses == 1
  compiled = classification.compiled_sums(
    FirstPixels(),
    losses.build('softmax'),
    sharding.make_mesh(8),
    CONFIDENCES['softmax'],
    0,
  )
  assert compiled._cache_size() == 1
  # Another loss needs another program.
  _evaluate(Images(_labels(5)), loss='sigmoid')
  assert classification.compiled_sums.cache_info().misses == 2


def test_images_with_more_than_max_labels_are_counted():
  class Several(Images):
    def read(self, split, index):
      record = super().read(split, index)
      return dataclasses.replace(record, label=[0, 1, 2][: index + 1])

  source = Several([0] * 3)
  evaluator = Classification(
    data.View(source, 'test'),
    ops.parse('resize', image_size=(2, 2), channels=1),
    FirstPixels(),
    losses.build('softmax'),
    sharding.make_mesh(8),
    batch_size=8,
    reading=dict(num_classes=CLASSES, max_labels=2, threads=0),
  )
  state = step_lib.TrainState(jnp.int32(0), {'scale': jnp.float32(1)}, (), {})
  found = dict(evaluator.run(state))
  assert (found['count'], found['truncated']) == (3, 1)
