"""Guards policies: each change, and how often it is drawn."""

import random
import types

import numpy as np
import pytest
import scipy.stats
from PIL import Image, ImageFilter, ImageOps

from tests.data.test_decoding import noise
from tests.data.test_ops import from_pillow, generator, picture, to_pillow
from vit_jax.data.ops import policies

BICUBIC = Image.Resampling.BICUBIC
FILLS = {3: (124, 116, 104), 1: 117}
# Changes that depend on a rounded mean of pixels or colours, which OpenCV may
# round to the other side.
BLENDED = {'saturation': 1, 'contrast': 1, 'sharpness': 1}
DEIT = policies.TimmRandAugment('rand-m9-mstd0.5-inc1')


def our_name(timm_name):
  """Returns the name in `TIMM_RAND_AUGMENT` of one of timm's changes."""
  name = timm_name.removesuffix('Increasing').removesuffix('Rel').lower()
  ours = {name.replace('_', ''): name for name in policies.TIMM_RAND_AUGMENT}
  return ours[name.replace('color', 'saturation')]


def posterize_as_before(image, bits, posterize=ImageOps.posterize):
  return posterize(image, bits) if bits else image.point([0] * 768)


class Spy(policies.TimmRandAugment):
  """Notes the changes that are drawn, and their magnitudes."""

  def change(self, name, image, x, rng):
    self.__dict__.setdefault('seen', []).append((name, 10 * x))
    return image


def drawn(config, times=4000):
  spy, rng, image = Spy(config), generator(), noise(2, 2)
  for _ in range(times):
    spy(image, rng)
  names, magnitudes = zip(*spy.seen, strict=True)
  return names, np.array(magnitudes)


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('sign', [1, -1])
def test_changes_of_shape_are_pillows(sign, channels):
  image = picture(channels=channels)
  rng = types.SimpleNamespace(random=lambda: 0.5 - sign * 0.1)
  v = sign * 0.9
  for name, matrix in (
    ('shear_x', (1, 0.3 * v, 0, 0, 1, 0)),
    ('shear_y', (1, 0, 0, 0.3 * v, 1, 0)),
    ('translate_x', (1, 0, 0.45 * v * 50, 0, 1, 0)),
    ('translate_y', (1, 0, 0, 0, 1, 0.45 * v * 40)),
    ('rotate', None),
  ):
    options = {'resample': BICUBIC, 'fillcolor': FILLS[channels]}
    made = to_pillow(image)
    expected = (
      made.transform(made.size, Image.Transform.AFFINE, matrix, **options)
      if matrix
      else made.rotate(30 * v, **options)
    )
    found = DEIT.change(name, image, 0.9, rng)
    np.testing.assert_array_equal(found, from_pillow(expected))


def test_changes_are_drawn_alike_and_half_of_them_applied():
  names, magnitudes = drawn('rand-m9-n3-mstd0.5')
  assert abs(len(names) / 12000 - 0.5) < 6 * 0.5 / 12000**0.5
  counts = [names.count(name) for name in policies.TIMM_RAND_AUGMENT]
  assert len(counts) == 15
  assert scipy.stats.chisquare(counts).pvalue > 1e-3
  assert magnitudes.max() == 10
  expected = np.clip(generator(1).normal(9, 0.5, 6000), 0, 10)
  assert scipy.stats.ks_2samp(magnitudes, expected).pvalue > 1e-3
  names, magnitudes = drawn('rand')  # 10, twice, and without noise.
  assert set(magnitudes) == {10}
  assert abs(len(names) / 8000 - 0.5) < 6 * 0.5 / 8000**0.5
  # A large deviation makes magnitudes uniform.
  test = scipy.stats.kstest(
    drawn('rand-m8-mstd101')[1], scipy.stats.uniform(0, 8).cdf
  )
  assert test.pvalue > 1e-3


def test_changes_of_shape_may_draw_how_they_interpolate():
  image, made = picture(), {}
  for method in ('pillow_bilinear', 'pillow_bicubic', 'random'):
    op, rng = policies.TimmRandAugment(method=method), generator()
    made[method] = [op.change('rotate', image, 1, rng) for _ in range(200)]
    made[method] = [each.tobytes() for each in made[method]]
  linear, cubic = set(made['pillow_bilinear']), set(made['pillow_bicubic'])
  assert set(made['random']) == linear | cubic
  share = np.mean([each in cubic for each in made['random']])
  assert abs(share - 0.5) < 6 * (0.25 / 200) ** 0.5


@pytest.mark.parametrize('channels', [1, 3])
def test_three_augment(channels, monkeypatch):
  blurs, counts, rng = [], [0, 0, 0], generator()

  def blur(radius, kind=ImageFilter.GaussianBlur):
    blurs.append(kind(radius))
    return blurs[-1]

  monkeypatch.setattr(ImageFilter, 'GaussianBlur', blur)
  image, op = picture(20, 25, channels), policies.ThreeAugment()
  made = to_pillow(image)
  grey = from_pillow(made.convert('L').convert(made.mode))
  solarised = from_pillow(ImageOps.solarize(made))
  for _ in range(1500):
    before, found = len(blurs), op(image, rng)
    expected = [grey, solarised]
    if len(blurs) > before:  # A small radius leaves a grey image as it is.
      expected = [None, None, from_pillow(made.filter(blurs[-1]))]
    counts[[np.array_equal(found, each) for each in expected].index(True)] += 1
  assert counts[2] == len(blurs)
  assert scipy.stats.chisquare(counts).pvalue > 1e-3
  uniform = scipy.stats.uniform(0.1, 1.9)
  radii = [each.radius for each in blurs]
  assert min(radii) < 0.15
  assert scipy.stats.kstest(radii, uniform.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
  'm, threshold', [(5, 128), (10, 0), (15, 128), (20, 0)]
)
def test_thresholds_of_big_vision_wrap_around_like_bytes(m, threshold):
  image = picture()
  found = policies.RAND_AUGMENT['solarize'](image, m / 10, generator())
  expected = np.where(image < threshold, image, 255 - image)
  np.testing.assert_array_equal(found, expected)


# ---- Against timm ------------------------------------------------------------


@pytest.mark.hf
@pytest.mark.parametrize('increasing', [False, True])
def test_each_change_is_timms(increasing, monkeypatch):
  from timm.data import auto_augment

  ours = policies.TimmRandAugment(f'rand-inc{int(increasing)}')
  theirs = auto_augment.rand_augment_choices('rand', increasing)
  assert len({our_name(name) for name in theirs}) == 15
  # Pillow refuses 0 bits from version 13 on; before, the image became black.
  monkeypatch.setattr(ImageOps, 'posterize', posterize_as_before)
  hparams = {'img_mean': FILLS[3], 'interpolation': BICUBIC}
  largest = {}
  for name in theirs:
    for magnitude in (0, 2.5, 5, 8.7, 9, 9.8, 10):
      op = auto_augment.AugmentOp(name, 1.0, magnitude, hparams)
      for draw in (0.2, 0.8):
        monkeypatch.setattr(random, 'random', lambda draw=draw: draw)
        rng = types.SimpleNamespace(random=lambda draw=draw: draw)
        for image in (picture(64, 56), noise(32, 40), picture(224, 224)):
          expected = np.asarray(op(to_pillow(image))).astype(int)
          found = ours.change(our_name(name), image, magnitude / 10, rng)
          off = int(np.abs(found - expected).max())
          largest[name] = max(off, largest.get(name, 0))
  for name, off in largest.items():
    assert off <= BLENDED.get(our_name(name), 0), name
