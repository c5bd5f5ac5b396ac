"""Guards blends that differ from row to row, and losses of their labels."""

import functools

import jax
import numpy as np
import pytest
import scipy.special
from flax import linen as nn

from tests import tiny_step
from tests.losses.test_mixing import CLASSES, B, C, H, W
from tests.losses.test_mixing import _batch as batch_of
from tests.losses.test_mixing import _key as key_of
from tests.losses.test_mixing import _pair as with_partners
from vit_jax import config as config_lib
from vit_jax import losses, sharding
from vit_jax.losses import mixing

SHARES = np.tile([0.3, 0, 1, 0.9], B // 4)
BOTH = dict(mixup_alpha=0.8, cutmix_alpha=1.0, seed=3)


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


@pytest.mark.parametrize(
  # The last row of an odd number has a draw of its own.
  'by, alike, rows, devices, options',
  [
    ('batch', B, B, (2, 2, 2), dict(cutmix_alpha=1.0, seed=3)),
    ('batch', B, B, (1, 1, 1), dict(mixup_alpha=0.8, seed=3)),
    ('pair', 2, 15, (1, 1, 1), BOTH),
    pytest.param('element', 1, B, (2, 2, 2), BOTH, marks=pytest.mark.gate),
  ],
)
def test_rows_are_blended_by_their_draws(by, alike, rows, devices, options):
  batch = {key: x[:rows] for key, x in batch_of(labels=3).items()}
  alphas = [options.get(f'{kind}_alpha', 0) for kind in ('mixup', 'cutmix')]
  draw = jax.jit(lambda k: mixing.draw_rows(by, rows, k, (H, W), *alphas, 0.5))
  kinds, shares = set(), []
  for step in range(4):
    found = prepared(batch, step, devices, mix_by=by, **options)
    # They are the same on any mesh.
    for name, x in draw(key_of(3, step)).items():
      np.testing.assert_allclose(found[name], x, rtol=1e-6)
      x = np.repeat(found[name][::alike], alike, axis=0)[:rows]
      np.testing.assert_array_equal(found[name], x)
    images = jax.jit(mixing.blended_images)(found)
    # Without CutMix, there are no boxes.
    found = {'outside': 0 * found['share'], 'box': np.zeros((rows, 4))} | found
    cuts = found['outside'] == 1
    kinds |= set(cuts)
    shares += [*found['share'][::alike][~cuts[::alike]]]
    expected = batch['image'] / 127.5 - 1
    before = np.roll(expected, 1, axis=0)
    for i, (top, left, bottom, right) in enumerate(found['box']):
      share = found['share'][i]
      if cuts[i]:
        inside = np.s_[top:bottom, left:right]
        expected[i][inside] = before[i][inside]
        area = (bottom - top) * (right - left)
        assert share == pytest.approx(1 - area / (H * W))
      else:
        expected[i] = share * expected[i] + (1 - share) * before[i]
    np.testing.assert_allclose(images, expected, atol=1e-6)
    np.testing.assert_array_equal(
      found['partner_label'], np.roll(batch['label'], 1, axis=0)
    )
  assert kinds == {bool(alphas[1]), not alphas[0]}
  assert len(set(shares)) == len(shares)  # Rows and steps draw anew.


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


# ---- Losses ------------------------------------------------------------------

KERNEL = np.random.default_rng(1).normal(size=(H * W * C, CLASSES)) / 4


class Linear(nn.Module):
  def __call__(self, images, *, train):
    return images.reshape(B, -1) @ np.float32(KERNEL), {}


def loss_and_metrics(batch, name, smoothing, **options):
  """Returns those of the linear model, with options of the loss."""
  config = config_lib.default()
  config.mixup_alpha = 0.8
  config.loss = config_lib.sigmoid(smoothing, **options)
  config.loss.name = name
  layout = tiny_step.one_device()
  objective = losses.build_objective(config, Linear(), layout)
  return jax.jit(objective.mean_loss)({}, batch, jax.random.key(0))


def _reference(logits, labels, name, smoothing, binary):
  """Returns the loss of blended targets, or of those above 0: [B]."""

  def smoothed(hot):
    if name == 'sigmoid':
      return np.where(hot, 1 - smoothing, smoothing)
    shares = hot / hot.sum(axis=1, keepdims=True)
    return (1 - smoothing) * shares + smoothing / CLASSES

  labels = np.reshape(labels, (B, -1, 1))
  own, share = (labels == range(CLASSES)).any(axis=1), SHARES[:, None]

  def blended(own):
    return share * own + (1 - share) * np.roll(own, 1, axis=0)

  targets = smoothed(blended(own) > 0) if binary else blended(smoothed(own))
  x = logits.astype(np.float64)
  if name == 'softmax':
    return -(targets * scipy.special.log_softmax(x, axis=1)).sum(axis=1)
  log1p = np.log1p(np.exp(x))
  return (targets * (log1p - x) + (1 - targets) * log1p).sum(axis=1)


@pytest.mark.parametrize('binary', [False, True])
@pytest.mark.parametrize(
  'name, labels, smoothing, reduce',
  [
    ('sigmoid', 1, 0.0, 'mean'),
    ('sigmoid', 3, 0.1, 'sum'),
    ('softmax', 1, 0.1, 'mean'),
    ('softmax', 3, 0.0, 'sum'),
  ],
)
def test_the_loss_is_that_of_blended_targets(
  name, labels, smoothing, reduce, binary
):
  batch = with_partners(batch_of(labels), SHARES)
  found, metrics = loss_and_metrics(
    batch, name, smoothing, reduce=reduce, binary=binary
  )
  images = np.asarray(mixing.blended_images(batch))
  logits = images.reshape(B, -1) @ np.float32(KERNEL)
  expected = _reference(logits, batch['label'], name, smoothing, binary).mean()
  expected /= CLASSES if reduce == 'mean' else 1
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  # The accuracy counts labels by their shares.
  best = logits.argmax(1)[:, None]
  of_own, of_partner = (
    (batch[key].reshape(B, -1) == best).any(axis=1)
    for key in ('label', 'partner_label')
  )
  accuracy = np.where(of_own, SHARES, 0) + np.where(of_partner, 1 - SHARES, 0)
  np.testing.assert_allclose(metrics['accuracy'], accuracy.mean(), rtol=1e-5)
