"""Guards: masked patch prediction counts every image once, on any mesh."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import data, masked_patch, models, sharding
from vit_jax.data import ops
from vit_jax.evaluators import evaluator
from vit_jax.evaluators.patch_prediction import MaskedPatchPrediction
from vit_jax.masked_patch import task as task_lib
from vit_jax.training import step as step_lib

SIZE = (8, 12)  # 2 x 3 patches of 4x4 px.


class Images(data.Source):
  """Dark images as PNG files; those with indices in `broken` are unreadable."""

  def __init__(self, count, broken=()):
    self.info = data.SourceInfo('images', {'test': count}, 'a')
    pixels = np.random.default_rng(0).integers(0, 80, (count, *SIZE, 3))
    self.pixels = pixels.astype(np.uint8)
    self.broken = broken

  def read(self, split, index):
    image = cv2.imencode('.png', self.pixels[index][..., ::-1])[1].tobytes()
    broken = index in self.broken
    return data.Record(b'broken' if broken else image, 0, f'{split}/{index}')


def _build(target):
  model = models.build(
    'ViT-Ti/4', num_classes=1, width=16, depth=1, heads=2, mlp_dim=32
  )
  task = masked_patch.build(
    model,
    SIZE,
    3,
    target=target,
    fraction=0.5,
    mask_share=0.8,
    other_share=0.1,
  )
  model = masked_patch.adapted(model, task)
  params = step_lib.init_params(model, jax.random.key(0), (*SIZE, 3))
  head = params['patch_head']
  head['kernel'] = jax.random.normal(jax.random.key(1), head['kernel'].shape)
  return model, task, params


def _evaluate(source, target='mean_colour', *, devices=8, batch_size=8):
  model, task, params = _build(target)
  mesh = sharding.make_mesh(devices)
  measured = MaskedPatchPrediction(
    data.View(source, 'test'),
    evaluator.batches(
      ops.parse('resize', image_size=SIZE, channels=3),
      mesh,
      batch_size=batch_size,
      **dict(num_classes=1, unreadable='skip-and-count', threads=0),
    ),
    *(model, task, mesh),
  )
  state = step_lib.TrainState(jnp.int32(0), params, (), {})
  values = dict(measured.run(state))
  assert f'on {values["count"]} examples' in measured.summary(values)
  return values


def _expected(source, target):
  """Computes the metrics with NumPy from one batch of all images."""
  model, task, params = _build(target)
  keys = task_lib.image_keys(
    masked_patch.corruption_key(0), jnp.arange(len(source.pixels))
  )
  batch = {'image': source.pixels, 'corruption_key': keys}
  found = jax.jit(lambda p, b: masked_patch.measure(model, task, p, b))(
    params, batch
  )
  whole = np.ones(len(source.pixels), bool)
  whole[list(source.broken)] = False
  counted = np.asarray(found.corrupted)[whole]
  classes = np.asarray(found.classes)[whole][counted]
  predicted = np.asarray(found.predicted)[whole][counted]
  occurring = np.bincount(classes.ravel())
  return {
    'accuracy': np.mean(classes == predicted),
    'loss': np.asarray(found.loss)[whole][counted].mean(),
    'baseline_accuracy': occurring.max() / occurring.sum(),
    'count': whole.sum(),
  }


@pytest.mark.gate
@pytest.mark.parametrize('target', ['mean_colour', 'downsized'])
def test_every_patch_counts_once(target):
  source = Images(21, broken=(4, 20))
  values = _evaluate(source, target)
  expected = _expected(source, target) | {'excluded': 2}
  assert values == pytest.approx(expected, rel=1e-5)
  assert 0 < values['baseline_accuracy'] < 1


def test_devices_and_batch_size_do_not_change_the_metrics():
  source = Images(21)
  expected = _evaluate(source, batch_size=16)
  assert _evaluate(source, devices=1) == pytest.approx(expected, rel=1e-5)


def test_only_unreadable_images_are_an_error():
  with pytest.raises(ValueError, match="2 images of 'test' 2 are unreadable"):
    _evaluate(Images(2, broken=(0, 1)))
