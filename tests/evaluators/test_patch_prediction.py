"""Guards: masked patch prediction counts every image once, on all devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.scenes import context
from tests.models import naive
from vit_jax import config as config_lib
from vit_jax import data, models
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.patch_prediction import MaskedPatchPrediction
from vit_jax.losses import corruption, masked_patch

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


def _context(source, **options):
  model = models.build(
    'ViT-Ti/4', num_classes=1, width=16, depth=1, heads=2, mlp_dim=32
  )
  given = context(
    config_lib.evaluation('test', config_lib.MASKED_PATCH),
    *(model, source, SIZE),
    **{'channels': 3, **options},
  )
  given.config.loss = config_lib.masked_patch('downsized')
  return given


def _expected(source, task, params):
  """Computes the metrics with NumPy from one batch of all images."""
  keys = corruption.image_keys(
    corruption.corruption_key(0), jnp.arange(len(source.pixels))
  )
  batch = {'image': source.pixels, 'corruption_key': keys}
  found = jax.jit(lambda p, b: masked_patch.measure(task, p, b))(params, batch)
  whole = np.ones(len(source.pixels), bool)
  whole[list(source.broken)] = False
  counted = np.asarray(found.corrupted)[whole]
  expected = {
    'loss': np.asarray(found.loss)[whole][counted].mean(),
    'count': whole.sum(),
  }
  if not task.has_accuracy:
    return expected
  classes = np.asarray(found.classes)[whole][counted]
  predicted = np.asarray(found.predicted)[whole][counted]
  occurring = np.bincount(classes.ravel())
  baseline = occurring.max() / occurring.sum()
  assert 0 < baseline < 1
  accuracies = {'baseline_accuracy': baseline}
  return expected | accuracies | {'accuracy': np.mean(classes == predicted)}


@pytest.mark.parametrize(
  'loss',
  [
    config_lib.masked_patch('downsized'),
    config_lib.mae(decoder_depth=1, decoder_width=16, decoder_heads=2),
  ],
  ids=lambda loss: loss.name,
)
def test_every_patch_counts_once(loss):
  source = Images(21, broken=(4, 20))
  given = _context(source, batch_size=16)
  given.config.loss, given.section.kind = loss, loss.name
  task = masked_patch.build(given.config, given.model)
  params = naive.random_params(task.model, np.zeros((1, *SIZE, 3), 'f'))
  expected = _expected(source, task, params) | {'excluded': 2}
  values = dict(MaskedPatchPrediction(given).run(params))
  assert values == pytest.approx(expected, rel=1e-5)


def test_the_loss_must_suit_the_evaluation():
  given = _context(Images(2))
  with pytest.raises(ValueError, match="'masked_patch' and 'few_shot'"):
    Classification(given)
  given.config.loss = config_lib.mae()
  with pytest.raises(ValueError, match=r"loss.name='masked_patch', but .*mae"):
    MaskedPatchPrediction(given)
  given.config.loss = config_lib.softmax()
  with pytest.raises(ValueError, match=r"loss.name='masked_patch', but .*soft"):
    MaskedPatchPrediction(given)
