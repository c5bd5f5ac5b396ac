"""Guards: masked patch prediction counts every image once, on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.scenes import context
from vit_jax import config as config_lib
from vit_jax import data, models
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.patch_prediction import MaskedPatchPrediction
from vit_jax.losses import corruption, masked_patch
from vit_jax.training import step as step_lib

SIZE = (8, 12)  # 2 x 3 patches of 4x4 px.


class Images(data.Source):
  """Dark images; those with indices in `broken` are unreadable."""

  def __init__(self, count, broken=()):
    self.info = data.SourceInfo('images', {'test': count}, 'a')
    pixels = np.random.default_rng(0).integers(0, 80, (count, *SIZE, 3))
    self.pixels = pixels.astype(np.uint8)
    self.broken = broken

  def read(self, split, index):
    image = b'broken' if index in self.broken else self.pixels[index]
    return data.Record(image, 0, f'{split}/{index}')


def _build(source, target, **options):
  """Returns the context of an evaluation, the task, and random parameters."""
  model = models.build(
    'ViT-Ti/4', num_classes=1, width=16, depth=1, heads=2, mlp_dim=32
  )
  given = context(
    config_lib.evaluation('test', config_lib.MASKED_PATCH),
    *(model, source, SIZE),
    **{'channels': 3, **options},
  )
  given.config.loss = config_lib.masked_patch(target)
  task = masked_patch.build(given.config, model)
  params = step_lib.init_params(task.model, jax.random.key(0), (*SIZE, 3))
  head = params['patch_head']
  head['kernel'] = jax.random.normal(jax.random.key(1), head['kernel'].shape)
  return given, task, params


def _evaluate(source, target='mean_colour', **options):
  given, _, params = _build(source, target, **options)
  return dict(MaskedPatchPrediction(given).run(params))


def _expected(source, target):
  """Computes the metrics with NumPy from one batch of all images."""
  _, task, params = _build(source, target)
  keys = corruption.image_keys(
    corruption.corruption_key(0), jnp.arange(len(source.pixels))
  )
  batch = {'image': source.pixels, 'corruption_key': keys}
  found = jax.jit(lambda p, b: masked_patch.measure(task, p, b))(params, batch)
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


def test_every_patch_counts_once():
  source = Images(21, broken=(4, 20))
  values = _evaluate(source, 'downsized')
  expected = _expected(source, 'downsized') | {'excluded': 2}
  assert values == pytest.approx(expected, rel=1e-5)
  assert 0 < values['baseline_accuracy'] < 1


def test_devices_and_batch_size_do_not_change_the_metrics():
  source = Images(21)
  expected = _evaluate(source, batch_size=16)
  assert _evaluate(source, devices=1) == pytest.approx(expected, rel=1e-5)


def test_the_loss_must_suit_the_evaluation():
  given, *_ = _build(Images(2), 'mean_colour')
  with pytest.raises(ValueError, match="'masked_patch' and 'few_shot'"):
    Classification(given)
  given.config.loss = config_lib.softmax()
  with pytest.raises(ValueError, match=r"loss.name='masked_patch', but .*soft"):
    MaskedPatchPrediction(given)
