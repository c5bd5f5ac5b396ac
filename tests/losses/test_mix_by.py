"""Guards blends that differ from row to row, and losses of their labels."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn
from scipy import stats

from tests.losses.test_mixing import CLASSES, B, C, H, W
from tests.losses.test_mixing import _batch as batch_of
from tests.losses.test_mixing import _pair as with_partners
from tests.losses.test_mixing import _targets as multi_hot
from vit_jax import config as config_lib
from vit_jax import losses, sharding
from vit_jax.losses import mixing


@functools.cache
def _prepare(devices, changes):
  config = config_lib.default()
  config.update(dict(changes))
  layout = sharding.Layout(sharding.make_mesh(*devices))
  return layout, jax.jit(mixing.make_prepare_batch(config, layout))


def prepared(batch, step, devices=(2, 2, 2), **changes):
  """Returns what a step of a config with these keys makes of a batch."""
  layout, prepare = _prepare(devices, tuple(changes.items()))
  put = sharding.put_batch(batch, layout.mesh)
  return jax.device_get(prepare(put, step))


SHARES = np.tile([0.3, 0, 1, 0.9], B // 4)


BOTH = dict(mixup_alpha=0.8, cutmix_alpha=1.0, seed=3)


@pytest.mark.parametrize(
  # The last row of an odd number has a draw of its own.
  'by, alike, rows, devices',
  [('pair', 2, 15, (1, 1, 1)), ('element', 1, 16, (2, 2, 2))],
)
def test_rows_are_blended_by_draws_of_their_own(by, alike, rows, devices):
  batch = {key: x[:rows] for key, x in batch_of().items()}
  found = prepared(batch, 2, devices, mix_by=by, **BOTH)
  for name in ('share', 'outside', 'box'):
    x = np.repeat(found[name][::alike], alike, axis=0)[:rows]
    np.testing.assert_array_equal(found[name], x)
  cuts = found['outside'] == 1
  assert set(cuts) == {True, False}
  mixed = ~cuts[::alike]
  assert len(set(found['share'][::alike][mixed])) == mixed.sum()

  expected = batch['image'] / 127.5 - 1
  before = np.roll(expected, 1, axis=0)
  for i in range(rows):
    top, left, bottom, right = found['box'][i]
    share = found['share'][i]
    if cuts[i]:
      inside = np.s_[top:bottom, left:right]
      expected[i][inside] = before[i][inside]
      area = (bottom - top) * (right - left)
      assert share == pytest.approx(1 - area / (H * W))
    else:
      expected[i] = share * expected[i] + (1 - share) * before[i]
  images = jax.jit(mixing.blended_images)(found)
  np.testing.assert_allclose(images, expected, atol=1e-6)
  # Other steps draw anew.
  later = prepared(batch, 3, devices, mix_by=by, **BOTH)
  assert not set(later['share'][later['outside'] < 1]) & set(found['share'])


@pytest.mark.gate
@pytest.mark.parametrize('by', ['pair', 'element'])
def test_draws_do_not_depend_on_the_mesh(by):
  meshes = (1, 1, 1), (2, 2, 2)
  one, other = (
    prepared(batch_of(), 2, mesh, mix_by=by, **BOTH) for mesh in meshes
  )
  np.testing.assert_allclose(one['share'], other['share'], rtol=1e-6)
  np.testing.assert_array_equal(one['box'], other['box'])


def test_each_draw_is_distributed_as_that_of_a_batch():
  count, alpha, cutmix = 4000, 0.4, 0.3
  draw = jax.jit(
    lambda key: mixing.draw_rows(
      'element', count, key, (60, 90), alpha, 1.0, cutmix
    )
  )
  found = jax.device_get(draw(jax.random.key(0)))
  cuts = found['outside'] == 1
  assert abs(cuts.mean() - cutmix) < 5 * (cutmix * (1 - cutmix) / count) ** 0.5
  beta = stats.beta(alpha, alpha)
  assert stats.kstest(found['share'][~cuts], beta.cdf).pvalue > 1e-3
  # Those of neighbours have nothing to do with each other.
  for x in (found['share'], cuts, found['box'][:, 0]):
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 5 / count**0.5
  # The mean area, by a million boxes of NumPy, is 0.316 of the image's.
  top, left, bottom, right = found['box'][cuts].T
  areas = (bottom - top) * (right - left) / (60 * 90)
  assert areas.mean() == pytest.approx(
    0.316, abs=5 * areas.std() / cuts.sum() ** 0.5
  )


def test_devices_draw_without_each_other():
  layout = sharding.Layout(sharding.make_mesh(2, 4, 1))
  config = config_lib.default()
  config.update(mixup_alpha=0.8, mix_by='element')
  prepare = mixing.make_prepare_batch(config, layout)

  @jax.jit
  def split(batch):
    images = mixing.blended_images(prepare(batch, 0))
    with sharding.use_mesh(layout.mesh):
      return sharding.constrain(images, sharding.BATCH)

  text = split.lower(sharding.put_batch(batch_of(), layout.mesh)).compile()
  assert 'all-reduce' not in text.as_text()


# ---- Binary targets ----------------------------------------------------------


def reference(logits, batch, name, smoothing, reduce):
  """Returns the loss of targets that are 1 where a blended one is above 0."""
  own = multi_hot(batch['label'], 'sigmoid', 0.0)
  share = SHARES[:, None]
  targets = share * own + (1 - share) * np.roll(own, 1, axis=0) > 0
  x = logits.astype(np.float64)
  if name == 'sigmoid':
    targets = np.where(targets, 1 - smoothing, smoothing)
    log1p = np.log1p(np.exp(x))
    terms = targets * (log1p - x) + (1 - targets) * log1p
  else:
    count = targets.sum(1, keepdims=True)
    targets = targets / np.maximum(count, 1)
    targets = (1 - smoothing) * targets + smoothing * (count > 0) / CLASSES
    terms = -targets * (x - np.log(np.exp(x).sum(axis=1, keepdims=True)))
  return terms.sum(axis=1) / (CLASSES if reduce == 'mean' else 1)


@pytest.mark.parametrize(
  'name, labels, smoothing, reduce',
  [
    ('sigmoid', 1, 0.0, 'mean'),
    ('sigmoid', 3, 0.1, 'sum'),
    ('softmax', 1, 0.1, 'mean'),
    ('softmax', 3, 0.0, 'sum'),
  ],
)
def test_the_loss_of_targets_above_zero(name, labels, smoothing, reduce):
  batch = with_partners(batch_of(labels), SHARES)
  rng = np.random.default_rng(1)
  kernel = np.float32(rng.normal(size=(H * W * C, CLASSES)) / 4)

  class Linear(nn.Module):
    def __call__(self, images, *, train):
      return images.reshape(B, -1) @ kernel, {}

  config = config_lib.default()
  config.mixup_alpha = 0.8
  config.loss = config_lib.sigmoid(smoothing, binary=True, reduce=reduce)
  config.loss.name = name
  layout = sharding.Layout(sharding.make_mesh(1))
  objective = losses.build_objective(config, Linear(), layout)
  found, metrics = jax.jit(objective.mean_loss)({}, batch, jax.random.key(0))

  images = np.asarray(mixing.blended_images(batch))
  logits = images.reshape(B, -1) @ kernel
  expected = reference(logits, batch, name, smoothing, reduce)
  np.testing.assert_allclose(found, expected.mean(), rtol=1e-5)
  # The accuracy counts labels by their shares, as without `binary`.
  best = logits.argmax(1)[:, None]
  of_own, of_partner = (
    (batch[key].reshape(B, -1) == best).any(axis=1)
    for key in ('label', 'partner_label')
  )
  accuracy = np.where(of_own, SHARES, 0) + np.where(of_partner, 1 - SHARES, 0)
  np.testing.assert_allclose(metrics['accuracy'], accuracy.mean(), rtol=1e-5)
