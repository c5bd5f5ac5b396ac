"""Guards crops of later recipes, and random erasing: boxes, pixels, noise."""

import math
import random

import numpy as np
import pytest
import scipy.stats
from PIL import Image

from tests.data.test_decoding import noise
from tests.data.test_ops import from_pillow, generator, to_pillow
from vit_jax.data import ops
from vit_jax.data.ops import augment, crops

BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR


def resized_by_pillow(image, size, resample=BICUBIC):
  return from_pillow(to_pillow(image).resize(size[::-1], resample))


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('ratio', [0.875, 1.0, 0.85])
@pytest.mark.parametrize('shape', [(50, 37), (37, 50), (32, 32), (20, 31)])
def test_eval_crops_are_pillows_calls(shape, ratio, channels):
  image = noise(*shape, channels)
  preprocess = ops.parse(
    f'eval_crop({ratio})', image_size=28, channels=channels
  )
  side, short = int(28 / ratio), min(shape)
  size = [side if n == short else int(side * n / short) for n in shape]
  whole = resized_by_pillow(image, size)
  # Python rounds a half to the even number, as torchvision does.
  top, left = (round((n - 28) / 2.0) for n in size)
  expected = whole[top : top + 28, left : left + 28]
  np.testing.assert_array_equal(preprocess(image, None), expected)


def test_an_eval_crop_may_squash_images():
  image = noise(50, 37, 3)
  op = crops.EvalCrop(0.8, 'pillow_bilinear', True, size=(28, 20))
  whole = resized_by_pillow(image, (35, 25), BILINEAR)
  # Halves become even: 3.5 and 2.5.
  np.testing.assert_array_equal(op(image, None), whole[4:32, 2:22])


def test_the_size_of_an_eval_crop_may_be_given():
  preprocess = ops.parse(
    'eval_crop(0.5, size=8)|resize', image_size=(5, 6), channels=3
  )
  assert preprocess.ops[0] == crops.EvalCrop(0.5, size=8)
  assert crops.EvalCrop(size=(4, 8))(noise(9, 9), None).shape == (4, 8, 3)


def test_random_resized_crops_are_resized_by_pillow():
  image, linear = noise(40, 50), []
  fixed = crops.RandomResizedCrop(16)
  either = crops.RandomResizedCrop(16, method='random')
  for seed in range(200):
    top, left, h, w = fixed.box(40, 50, generator(seed))
    part = image[top : top + h, left : left + w]
    cubic = resized_by_pillow(part, (16, 16))
    np.testing.assert_array_equal(fixed(image, generator(seed)), cubic)
    found = either(image, generator(seed))
    linear.append(not np.array_equal(found, cubic))
    if linear[-1]:
      expected = resized_by_pillow(part, (16, 16), BILINEAR)
      np.testing.assert_array_equal(found, expected)
  assert abs(np.mean(linear) - 0.5) < 6 * (0.25 / 200) ** 0.5


@pytest.mark.parametrize(
  'shape, box',
  [((20, 400), (0, 186, 20, 27)), ((400, 20), (186, 0, 27, 20))],
)
def test_a_narrow_image_gives_a_crop_of_its_middle(shape, box):
  op = crops.RandomResizedCrop(8, min_area=1.0)
  assert op.box(*shape, generator()) == box
  # An aspect in range gives the whole image.
  op = crops.RandomResizedCrop(8, min_area=1.0, min_aspect=0.01)
  assert op.box(400, 20, generator()) in [(0, 0, 400, 20), (0, 0, 399, 20)]


@pytest.mark.parametrize('shape', [(30, 21), (12, 12)])
def test_simple_random_crops_are_windows_of_a_padded_image(shape):
  image, op = noise(*shape), crops.SimpleRandomCrop(12)
  size = [n * 12 // min(shape) for n in shape]
  padded = np.pad(
    resized_by_pillow(image, size), ((4, 4), (4, 4), (0, 0)), mode='reflect'
  )
  windows = np.lib.stride_tricks.sliding_window_view(padded, (12, 12), (0, 1))
  places = {
    windows[y, x].transpose(1, 2, 0).tobytes(): (y, x)
    for y, x in np.ndindex(windows.shape[:2])
  }
  rng, counts = generator(), dict.fromkeys(places.values(), 0)
  for _ in range(20 * len(places)):
    counts[places[op(image, rng).tobytes()]] += 1
  assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3


def erased(op, image, rng):
  """Returns the box of an image of zeros that changed, or None."""
  rows, columns = np.nonzero(op(image, rng).any(axis=2))
  if not len(rows):
    return None
  box = rows.min(), columns.min(), rows.max() + 1, columns.max() + 1
  # All is noise, which may be black by chance.
  assert len(rows) > 0.99 * (box[2] - box[0]) * (box[3] - box[1]) - 1
  return box


def test_erased_boxes_and_their_distribution():
  op = augment.RandomErasing()
  image = np.zeros((100, 120, 3), np.uint8)
  rng = generator()
  boxes = [erased(op, image, rng) for _ in range(2000)]
  found = np.array([box for box in boxes if box])
  assert abs(len(found) / 2000 - 0.25) < 6 * (0.25 * 0.75 / 2000) ** 0.5
  top, left, bottom, right = found.T
  area = (bottom - top) * (right - left) / 12000
  aspect = (right - left) / (bottom - top)
  # Sides are rounded to whole pixels, hence the tolerances.
  assert 0.018 < area.min() < 0.03
  assert 0.3 < area.max() < 0.34
  assert abs(area.mean() - (0.02 + 1 / 3) / 2) < 0.015
  assert 0.28 < aspect.min() < 0.35
  assert 2.9 < aspect.max() < 3.6
  # The logarithm is uniform, so both directions are equally frequent.
  assert abs(np.log(aspect).mean()) < 0.12
  assert abs(np.log(aspect).std() - math.log(1 / 0.09) / 12**0.5) < 0.1
  # Places are uniform.
  assert abs((top / (101 - (bottom - top))).mean() - 0.5) < 0.06
  assert abs((left / (121 - (right - left))).mean() - 0.5) < 0.06


@pytest.mark.parametrize('channels', [1, 3])
def test_normal_noise_has_the_moments_of_imagenet(channels):
  op = augment.RandomErasing(1.0, noise='normal')
  black = np.zeros((200, 200, channels), np.uint8)
  values = []
  for seed in range(20):
    made = op(black, generator(seed))
    # What does not depend on the image.
    erased = (made == op(255 - black, generator(seed))).all(axis=-1)
    values.append(made[erased])
  values = np.concatenate(values)
  mean = 255 * np.array([0.485, 0.456, 0.406])
  deviation = 255 * np.array([0.229, 0.224, 0.225])
  if channels == 1:
    mean, deviation = mean.mean(), deviation.mean()
  drawn = generator(1).normal(mean, deviation, (100_000, channels))
  expected = np.clip(np.rint(drawn), 0, 255)
  np.testing.assert_allclose(values.mean(0), expected.mean(0), atol=1)
  np.testing.assert_allclose(values.std(0), expected.std(0), atol=1)
  assert (values == 255).mean() > 0.005


# ---- Against timm and torchvision --------------------------------------------


def measures(boxes, shape):
  """Areas, aspects, and places of boxes (top, left, height, width)."""
  top, left, height, width = np.array(boxes).T
  yield height * width
  yield width / height
  for start, length, side in ((top, height, 0), (left, width, 1)):
    yield start / np.maximum(shape[side] - length, 1)


def assert_alike(found, expected, shape):
  pairs = zip(measures(found, shape), measures(expected, shape), strict=True)
  for one, other in pairs:
    test = scipy.stats.ks_2samp(one, other)
    assert test.pvalue > 1e-3, test


@pytest.mark.hf
@pytest.mark.parametrize('shape', [(375, 500), (200, 900), (40, 32)])
def test_boxes_are_those_of_timm(shape):
  from timm.data.transforms import RandomResizedCropAndInterpolation

  theirs = RandomResizedCropAndInterpolation(224)
  made, rng = Image.new('L', shape[::-1]), generator()
  random.seed(0)
  op = crops.RandomResizedCrop(224)
  assert_alike(
    [op.box(*shape, rng) for _ in range(4000)],
    [theirs.get_params(made, theirs.scale, theirs.ratio) for _ in range(4000)],
    shape,
  )


@pytest.mark.hf
def test_erased_boxes_are_those_of_timm():
  import torch
  from timm.data.random_erasing import RandomErasing

  theirs = RandomErasing(0.25, mode='pixel', device='cpu')
  shape, boxes = (12, 9), []  # Small, so that boxes as long as it matter.
  random.seed(0)
  for op in (
    augment.RandomErasing(0.25, 'normal'),
    lambda _, rng: theirs(torch.zeros(3, *shape)).numpy().transpose(1, 2, 0),
  ):
    image, rng = np.zeros((*shape, 3), np.uint8), generator()
    found = [erased(op, image, rng) for _ in range(4000)]
    found = [box for box in found if box]
    boxes.append([(y, x, y2 - y, x2 - x) for y, x, y2, x2 in found])
    share = len(found) / 4000
    assert abs(share - 0.25) < 6 * (0.25 * 0.75 / 4000) ** 0.5
  assert_alike(*boxes, shape)
  assert all(h < 12 and w < 9 for each in boxes for _, _, h, w in each)
