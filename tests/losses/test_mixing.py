"""Guards: mixup and CutMix blend the right images and labels, on any mesh."""

import functools
import re

import jax
import numpy as np

from tests import tiny_step
from vit_jax import config as config_lib
from vit_jax import sharding
from vit_jax.losses import mixing

B, H, W, C, CLASSES = 16, 4, 6, 3, 5


def _batch(labels=1):
  rng = np.random.default_rng(0)
  label = rng.integers(0, CLASSES, (B, labels), dtype=np.int32)
  if labels > 1:
    label[3:7, 1:] = -1
  return {
    'image': rng.integers(0, 256, (B, H, W, C), dtype=np.uint8),
    'label': label if labels > 1 else label[:, 0],
  }


def _layout(data, fsdp, tensor):
  return sharding.Layout(sharding.make_mesh(data, fsdp, tensor))


def _pair(batch, share):
  """Returns the batch with its partners, all in one proportion."""
  partners = {f'partner_{k}': np.roll(x, 1, axis=0) for k, x in batch.items()}
  return batch | partners | {'share': np.full(B, share, np.float32)}


def _prepare(layout, **changes):
  """Returns the jitted function of a config with these keys."""
  config = config_lib.default()
  config.update(changes)
  return jax.jit(mixing.make_prepare_batch(config, layout))


def _key(seed, step):
  return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2), step)


def test_a_device_is_sent_one_image_and_nothing_is_gathered():
  layout = _layout(2, 4, 1)
  put = sharding.put_batch(_batch(), layout.mesh)
  pair = _prepare(layout, mixup_alpha=0.1)
  text = pair.lower(put, 0).compile().as_text()
  sent = f'u8[1,{H},{W},{C}]'
  assert re.search(rf'= {re.escape(sent)}\S* collective-permute', text)
  assert 'all-gather' not in text
  assert 'all-to-all' not in text


def test_boxes_are_distributed_as_defined():
  height, width, count, alpha = 60, 90, 20_000, 0.3
  keys = jax.random.split(jax.random.key(0), count)
  draw = jax.jit(
    jax.vmap(lambda key: mixing.draw_box(key, (height, width), alpha))
  )
  found = np.asarray(draw(keys)).T
  rng = np.random.default_rng(0)
  side = np.sqrt(1 - rng.beta(alpha, alpha, count))
  bounds = []
  for pixels in (height, width):
    length = np.floor(pixels * side).astype(int)
    start = rng.integers(0, pixels, count) - length // 2
    bounds.append(np.clip([start, start + length], 0, pixels))
  (top, bottom), (left, right) = bounds
  quantiles = np.linspace(0.05, 0.95, 19)
  for ours, theirs in zip(found, (top, left, bottom, right), strict=True):
    np.testing.assert_allclose(
      np.quantile(ours, quantiles), np.quantile(theirs, quantiles), atol=2
    )
  areas = (found[2] - found[0]) * (found[3] - found[1])
  assert areas.min() >= 0
  np.testing.assert_allclose(
    areas.mean(), ((bottom - top) * (right - left)).mean(), rtol=0.03
  )
  # Both sides have the same proportion, where nothing is cut off.
  whole = (found[:2].min(0) > 0) & (found[2] < height) & (found[3] < width)
  sides = (found[2:] - found[:2])[:, whole]
  np.testing.assert_allclose(sides[0] / height, sides[1] / width, atol=0.02)


def test_steps_have_either_mixup_or_cutmix():
  count, alpha, share = 4000, 0.4, 0.2

  def drawn(*options):
    draw = functools.partial(mixing.draw_rows, 'element', count)
    key = jax.random.key(0)
    return jax.device_get(jax.jit(lambda: draw(key, (H, W), alpha, *options))())

  alone = drawn(0.0, 0.5)['share']
  assert abs(alone.mean() - 0.5) < 0.02
  # The variance of Beta(a, a) is 1 / (4 (2 a + 1)).
  assert abs(alone.var() - 1 / (4 * (2 * alpha + 1))) < 0.005
  # A step of mixup has the proportion that it has without CutMix, and no box.
  found = drawn(1.0, share)
  cuts = found['outside'] == 1
  assert abs(cuts.mean() - share) < 6 * (share * (1 - share) / count) ** 0.5
  np.testing.assert_array_equal(found['share'][~cuts], alone[~cuts])
  np.testing.assert_array_equal(found['outside'][~cuts], alone[~cuts])
  assert not found['box'][~cuts].any()
  assert found['box'][cuts].any()
  # Those of neighbours have nothing to do with each other.
  for x in (found['share'], cuts, found['box'][:, 0]):
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 5 / count**0.5


def test_without_alphas_nothing_is_blended():
  layout = tiny_step.one_device()
  assert mixing.make_prepare_batch(config_lib.default(), layout) is None
