"""Guards image operations, and the strings that name them."""

import math
import pickle

import numpy as np
import pytest
import scipy.stats
from PIL import Image, ImageEnhance, ImageOps

from tests.data.test_decoding import encode, noise
from vit_jax.data import ops
from vit_jax.data.ops import augment, crops, decoding, geometry, policies

# Operations that keep an image's size.
SAME_SIZE = (
  *(augment.ColourJitter, augment.RandomErasing, policies.RandAugment),
  *(policies.ThreeAugment, policies.TimmRandAugment),
)


def generator(seed=0):
  return np.random.default_rng(seed)


def test_resize_values():
  image = np.array([[[0], [100]]], np.uint8)
  # The new centres are at -0.25, 0.25, 0.75, 1.25 of the source.
  resized = geometry.Resize((1, 4))(image, generator())
  assert resized.tolist() == [[[0], [25], [75], [100]]]


@pytest.mark.parametrize('resample', Image.Resampling)
@pytest.mark.parametrize('size', [(7, 5), (23, 40), (5, 40), (16, 11)])
def test_resizing_is_that_of_pillow(resample, size):
  op = geometry.Resize(size, method=f'pillow_{resample.name.lower()}')
  for channels in (3, 1):
    image = noise(16, 11, channels)
    expected = Image.fromarray(image.squeeze()).resize(size[::-1], resample)
    np.testing.assert_array_equal(
      op(image, generator()).squeeze(), np.asarray(expected)
    )
  # Pillow would weight four channels by the last one, as transparency.
  image = noise(16, 11, 4)
  parts = [op(image[..., i : i + 1], generator()) for i in range(4)]
  np.testing.assert_array_equal(op(image, generator()), np.dstack(parts))


@pytest.mark.parametrize('op', [crops.CentralCrop, crops.RandomCrop])
@pytest.mark.parametrize('shape', [(3, 9), (9, 3)])
def test_crop_of_a_smaller_image(op, shape):
  size = f'{shape[0]}x{shape[1]}'
  with pytest.raises(ValueError, match=f'{size} .* smaller .* of 4x5'):
    op((4, 5))(noise(*shape), generator())


# ---- Strings -----------------------------------------------------------------


def test_parse_fills_in_the_size():
  parse = ops.parse('inception_crop|flip', image_size=(4, 6), channels=3)
  assert parse.ops == (crops.InceptionCrop((4, 6)), geometry.Flip())
  assert parse.image_size == (4, 6)
  text = " resize_small(9, antialias=True) | pad(2, 'reflect')|random_crop "
  parse = ops.parse(text, image_size=4, channels=1)
  assert parse.image_size == (4, 4)
  assert parse.ops == (
    geometry.ResizeSmall(9, antialias=True),
    geometry.Pad(2, 'reflect'),
    crops.RandomCrop(4),
  )


@pytest.mark.parametrize('name', sorted(ops.OPS))
def test_every_operation_parses_runs_and_pickles(name):
  text = f'resize_small(9)|{name}'
  if name in ('pad', 'trim'):
    text = f'{name}(n=1)|resize'
  if name == 'shift':
    text = 'shift(y=1, x=-2)|resize'
  if name in ('flip', 'resize_small') or ops.OPS[name] in SAME_SIZE:
    text += '|central_crop'
  preprocess = ops.parse(text, image_size=(5, 6), channels=3)
  copy = pickle.loads(pickle.dumps(preprocess))
  image = encode(noise(12, 13), '.png')
  result = preprocess(image, generator(1))
  assert result.shape == (5, 6, 3)
  assert result.dtype == np.uint8
  np.testing.assert_array_equal(result, copy(image, generator(1)))


@pytest.mark.parametrize(
  'text, message',
  [
    ('rotate', "unknown operation 'rotate'; choose from .*'central_crop'"),
    ('flip|', "cannot read ''"),
    ('os.system(1)', r"cannot read 'os.system\(1\)'"),
    ('flip(0.5)', r"'flip\(0.5\)': .*accepted: flip\(\)"),
    ('resize(sise=8)', r"'sise'.*; accepted: resize\(size"),
    ('resize(-8)', r'positive integer or a pair.*got -8; accepted: resize'),
    ('resize(exit())', r'exit\(\) is not a Python literal; accepted: resize'),
    ('pad(-1)', 'n=-1 must be a whole number'),
    ("pad(1, 'ones')", r"'ones'; choose from \['reflect', 'zeros'\]"),
    ('shift(1, 0.5)', r'x=0\.5 must be a whole number'),
    ('inception_crop(min_area=0)', 'min_area=0, max_area=1.0'),
    ('inception_crop(max_area=2)', 'min_area=0.05, max_area=2'),
    ('inception_crop(min_aspect=2)', 'min_aspect=2, max_aspect=1.3'),
    ('rand_augment(n=-1)', 'n must be a non-negative integer, got -1'),
    ('rand_augment(2, 31)', 'm must be a number from 0 to 30, got 31'),
    ("timm_rand_augment('rand-m9-w3')", r"'w3'; choose from .*'mstd'"),
    ("timm_rand_augment('v0-m9')", 'must look like rand-m9-mstd0.5-inc1'),
    ("timm_rand_augment(method='area')", "'area'; choose from .*bicubic"),
    ("random_resized_crop(method='x')", "'x'; choose from .*'random'"),
    ('random_resized_crop(min_area=0)', 'min_area=0, max_area=1.0'),
    ('eval_crop(1.1)', r'ratio must lie in \(0, 1\], got 1.1'),
    ("random_erasing(noise='pixel')", r"'pixel'; choose from \['normal'"),
    ('random_erasing(1.5)', r'p must lie in \[0, 1\], got 1.5'),
    ('colour_jitter(-0.1)', 'brightness must be at least 0, got -0.1'),
    ('colour_jitter(hue=0.6)', r'hue must lie in \[0, 0.5\] turns, got 0.6'),
  ],
)
def test_parse_errors(text, message):
  with pytest.raises(ValueError, match=message):
    ops.parse(text, image_size=8, channels=3)


def test_only_the_rows_above_the_end_of_a_crop_are_decoded(monkeypatch):
  seen = []

  def spy(*args, rows=0, **kwargs):
    seen.append(rows)
    return ops.decode(*args, rows=rows, **kwargs)

  monkeypatch.setattr(decoding, 'decode', spy)
  jpeg = encode(noise(300, 400), '.jpg')
  whole = decoding.decode(jpeg, 3)
  for text in (
    *('inception_crop|flip', 'random_crop', 'central_crop'),
    *('random_resized_crop', "random_resized_crop(method='random')|flip"),
  ):
    parsed = ops.parse(text, image_size=32, channels=3)
    top, _, height, _ = parsed.ops[0].box(300, 400, generator(2))
    np.testing.assert_array_equal(
      parsed(jpeg, generator(2)), parsed(whole, generator(2))
    )
    assert seen[-2:] == [top + height, 0]


def test_a_corrupt_image_draws_nothing():
  jpeg = encode(noise(300, 400), '.jpg')
  parsed = ops.parse('inception_crop', image_size=32, channels=3)
  rng = generator(3)
  with pytest.raises(ops.CorruptImageError):
    parsed(jpeg[: len(jpeg) // 99] + b'\xff\xd9', rng)
  assert rng.random() == generator(3).random()


# ---- Against their originals -------------------------------------------------


def _tensorflow_box(height, width, rng):
  """Draws a crop step by step as TensorFlow's kernel does."""
  area = height * width
  for _ in range(100):
    aspect = rng.uniform(0.75, 1.33)
    low = int(np.rint(math.sqrt(0.05 * area / aspect)))
    high = int(np.rint(math.sqrt(area / aspect)))
    if np.rint(high * aspect) > width:
      high = int((width + 0.5 - 1e-7) / aspect)
    high = min(high, height)
    drawn = min(low, high)
    if drawn < high:
      drawn += int(rng.integers(high - drawn + 1))
    wide = int(np.rint(drawn * aspect))
    if wide * drawn < 0.05 * area:
      drawn += 1
      wide = int(np.rint(drawn * aspect))
    if wide * drawn > area:
      drawn -= 1
      wide = int(np.rint(drawn * aspect))
    fits = 0 < wide <= width and 0 < drawn <= height
    if fits and 0.05 * area <= wide * drawn <= area:
      return drawn, wide
  return height, width


@pytest.mark.parametrize('height, width', [(375, 500), (32, 32), (90, 400)])
def test_inception_crops_have_the_distribution_of_tensorflows_algorithm(
  height, width
):
  op, rng = crops.InceptionCrop(8), np.random.default_rng(0)
  found = np.array([op.box(height, width, rng)[2:] for _ in range(4000)])
  expected = np.array(
    [_tensorflow_box(height, width, rng) for _ in range(4000)]
  )
  for measure in (
    lambda sides: sides[:, 0] * sides[:, 1],
    lambda sides: sides[:, 1] / sides[:, 0],
  ):
    test = scipy.stats.ks_2samp(measure(found), measure(expected))
    assert test.pvalue > 1e-3, test


# ---- Colours and shapes ------------------------------------------------------


def picture(height=40, width=50, channels=3, seed=0):
  """A smooth gradient with noise, and not all of the values."""
  rows, columns = np.mgrid[:height, :width]
  smooth = 40 + 120 * rows / height + 60 * columns / width
  noise = generator(seed).uniform(-25, 25, (height, width, channels))
  return (smooth[:, :, None] + noise).astype(np.uint8)


def to_pillow(image):
  return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def from_pillow(image):
  array = np.asarray(image)
  return array if array.ndim == 3 else array[:, :, None]


def assert_close(found, expected, most):
  assert found.shape == expected.shape
  assert np.abs(found.astype(int) - expected.astype(int)).max() <= most


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  'change',
  [
    (augment.auto_contrast, ImageOps.autocontrast),
    (augment.equalize, ImageOps.equalize),
    (lambda x: policies.RAND_AUGMENT['invert'](x, 1, None), ImageOps.invert),
    (augment.posterize, ImageOps.posterize, 1, 4, 8),
    (augment.solarize, ImageOps.solarize, 0, 100, 256),
    (
      augment.brightness,
      lambda x, factor: ImageEnhance.Brightness(x).enhance(factor),
      *(0.1, 0.7, 1.0, 1.9),
    ),
  ],
)
def test_changes_by_a_table_are_exactly_pillows(change, channels):
  (ours, pillow, *values), image = change, picture(channels=channels)
  for value in [(v,) for v in values] or [()]:
    np.testing.assert_array_equal(
      ours(image, *value), from_pillow(pillow(to_pillow(image), *value))
    )


@pytest.mark.parametrize('factor', [0.1, 0.64, 1.0, 1.9])
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  'ours, pillow',
  [
    (augment.contrast, ImageEnhance.Contrast),
    (augment.saturation, ImageEnhance.Color),
    (augment.sharpness, ImageEnhance.Sharpness),
  ],
)
def test_enhancements_are_pillows(ours, pillow, channels, factor):
  image = picture(channels=channels)
  expected = from_pillow(pillow(to_pillow(image)).enhance(factor))
  found = ours(image, factor)
  assert_close(found, expected, most=1 if factor <= 1 else 2)
  # Few pixels differ, so no rounding differs in general.
  assert (found != expected).mean() < 0.03
  if factor == 1:
    np.testing.assert_array_equal(found, image)


@pytest.mark.parametrize('shape', [(40, 50), (41, 31)])
def test_rotations_are_pillows(shape):
  image = picture(*shape)
  for degrees in (0, 28, -28, 90, 180):
    expected = to_pillow(image).rotate(degrees, fillcolor=(128,) * 3)
    found = augment.rotate(image, degrees)
    assert (found != np.asarray(expected)).any(-1).mean() < 0.01


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize(
  'ours, coefficients',
  [
    (lambda x: augment.shear_x(x, 0.3), (1, 0.3, 0, 0, 1, 0)),
    (lambda x: augment.shear_y(x, 0.3), (1, 0, 0, 0.3, 1, 0)),
    (lambda x: augment.translate(x, 13, 1), (1, 0, -13, 0, 1, 0)),
    (lambda x: augment.translate(x, -4, 0), (1, 0, 0, 0, 1, 4)),
    (lambda x: augment.translate(x, 40, 0), (1, 0, 0, 0, 1, -40)),
    (lambda x: augment.translate(x, -55, 1), (1, 0, 55, 0, 1, 0)),
  ],
)
def test_shears_and_translations_are_pillows(ours, coefficients, channels):
  image = picture(channels=channels)
  expected = to_pillow(image).transform(
    (50, 40),
    Image.Transform.AFFINE,
    coefficients,
    Image.Resampling.NEAREST,
    fillcolor=(128,) * 3 if channels == 3 else 128,
  )
  different = (ours(image) != from_pillow(expected)).any(axis=-1)
  # Libraries decide ties between two pixels differently.
  assert different.mean() < 0.01


@pytest.mark.parametrize(
  'op',
  [
    *('rand_augment(1)', 'colour_jitter', 'timm_rand_augment'),
    *('three_augment', "random_erasing(noise='normal')"),
  ],
)
def test_colours_need_one_channel_or_three(op):
  parsed = ops.parse(op, image_size=8, channels=4)
  with pytest.raises(ValueError, match='of 4 channels has no colours'):
    parsed(np.zeros((8, 8, 4), np.uint8), generator())


def test_operations_that_draw_are_not_kept_between_epochs():
  text = 'resize(12)|{}|resize(8)'
  for op in (
    *('rand_augment', 'colour_jitter', 'random_erasing(1)', 'three_augment'),
    *('timm_rand_augment', 'random_resized_crop(12)', 'simple_random_crop(12)'),
  ):
    made = ops.parse(text.format(op), image_size=8, channels=3)
    assert made.without_chance(picture(20, 20))[1] == 1
