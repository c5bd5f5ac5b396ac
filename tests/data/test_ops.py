"""Guards image operations and the strings that name them."""

import pickle

import cv2
import numpy as np
import pytest
from PIL import Image

from vit_jax.data import ops
from vit_jax.data.ops import augment, decoding

# Operations of `augment`, which keep an image's size.
SAME_SIZE = (augment.ColourJitter, augment.RandAugment, augment.RandomErasing)


def generator(seed=0):
  return np.random.default_rng(seed)


def noise(height, width, channels=3, seed=0):
  return generator(seed).integers(
    0, 256, (height, width, channels), dtype=np.uint8
  )


def encode(image, extension):
  """Encodes uint8 [h, w, 3] RGB or [h, w, 1]."""
  if image.shape[2] == 3:
    image = image[:, :, ::-1]
  return cv2.imencode(extension, image)[1].tobytes()


def test_resize_values():
  image = np.array([[[0], [100]]], np.uint8)
  # The new centres are at -0.25, 0.25, 0.75, 1.25 of the source.
  resized = ops.Resize((1, 4))(image, generator())
  assert resized.tolist() == [[[0], [25], [75], [100]]]


@pytest.mark.parametrize('resample', Image.Resampling)
@pytest.mark.parametrize('size', [(7, 5), (23, 40), (5, 40), (16, 11)])
def test_resizing_is_that_of_pillow(resample, size):
  op = ops.Resize(size, method=f'pillow_{resample.name.lower()}')
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


@pytest.mark.parametrize('op', [ops.CentralCrop, ops.RandomCrop])
@pytest.mark.parametrize('shape', [(3, 9), (9, 3)])
def test_crop_of_a_smaller_image(op, shape):
  size = f'{shape[0]}x{shape[1]}'
  with pytest.raises(ValueError, match=f'{size} .* smaller .* of 4x5'):
    op((4, 5))(noise(*shape), generator())


def test_inception_crop_area_and_aspect():
  op = ops.InceptionCrop(8)
  rng = generator()
  boxes = np.array([op.box(480, 640, rng) for _ in range(2000)])
  top, left, height, width = boxes.T
  assert (top >= 0).all()
  assert (left >= 0).all()
  assert (top + height <= 480).all()
  assert (left + width <= 640).all()
  area, aspect = height * width / (480 * 640), width / height
  # Sides are rounded to whole pixels, hence the tolerance.
  assert area.min() > 0.05 * 0.99
  assert area.min() < 0.06
  assert area.max() > 0.9
  assert aspect.min() > 0.75 * 0.99
  assert aspect.max() < 1.33 * 1.01
  assert aspect.mean() == pytest.approx((0.75 + 1.33) / 2, abs=0.01)
  # All offsets are equally likely, so the mean is the middle.
  assert (top / (480 - height + 1)).mean() == pytest.approx(0.5, abs=0.02)
  assert (left / (640 - width + 1)).mean() == pytest.approx(0.5, abs=0.02)


# Strings.


def test_parse_fills_in_the_size():
  parse = ops.parse('inception_crop|flip', image_size=(4, 6), channels=3)
  assert parse.ops == (ops.InceptionCrop((4, 6)), ops.Flip())
  assert parse.image_size == (4, 6)
  parse = ops.parse(
    ' resize_small(9, antialias=True) | random_crop((4, 6)) ',
    image_size=4,
    channels=1,
  )
  assert parse.image_size == (4, 4)
  assert parse.ops == (
    ops.ResizeSmall(9, antialias=True),
    ops.RandomCrop((4, 6)),
  )
  parse = ops.parse(
    "inception_crop(min_area=0.3)|pad(2, 'reflect')", image_size=4, channels=3
  )
  assert parse.ops == (
    ops.InceptionCrop(4, min_area=0.3),
    ops.Pad(2, 'reflect'),
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
  ],
)
def test_parse_errors(text, message):
  with pytest.raises(ValueError, match=message):
    ops.parse(text, image_size=8, channels=3)


# Decoding only what is needed.


def photograph(height, width):
  """Returns a smooth JPEG, as decoders average the rest of a large one."""
  coarse = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
  pixels = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
  quality = [cv2.IMWRITE_JPEG_QUALITY, 98]
  return cv2.imencode('.jpg', pixels, quality)[1].tobytes()


def test_only_the_rows_above_the_end_of_a_crop_are_decoded(monkeypatch):
  seen = []

  def spy(*args, rows=0, **kwargs):
    seen.append(rows)
    return ops.decode(*args, rows=rows, **kwargs)

  monkeypatch.setattr(decoding, 'decode', spy)
  jpeg = photograph(300, 400)
  whole = decoding.decode(jpeg, 3)
  for text in ('inception_crop|flip', 'random_crop', 'central_crop'):
    parsed = ops.parse(text, image_size=32, channels=3)
    top, _, height, _ = parsed.ops[0].box(300, 400, generator(2))
    np.testing.assert_array_equal(
      parsed(jpeg, generator(2)), parsed(whole, generator(2))
    )
    assert seen[-2:] == [top + height, 0]


def test_a_corrupt_image_draws_nothing():
  jpeg = photograph(300, 400)
  parsed = ops.parse('inception_crop', image_size=32, channels=3)
  rng = generator(3)
  with pytest.raises(ops.CorruptImageError):
    parsed(jpeg[: len(jpeg) // 99] + b'\xff\xd9', rng)
  assert rng.random() == generator(3).random()
