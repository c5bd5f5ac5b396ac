"""Guards `shapes`: each factor can be measured in the picture, and is pure."""

import colorsys
import pickle

import cv2
import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import shapes

SCENES = 1000


@pytest.fixture(scope='module')
def scenes():
  """Returns images [n, 64, 64, 3], ink masks [n, 64, 64], and factor -> [n]."""
  rendered = [shapes.render('train', i) for i in range(SCENES)]
  images = np.stack([image for image, _ in rendered])
  # Shapes are saturated, backgrounds nearly grey.
  masks = np.ptp(images.astype(int), axis=-1) > 100
  labels = {
    factor: np.array([labels[factor] for _, labels in rendered])
    for factor in shapes.FACTORS
  }
  return images, masks, labels


def _boxes(mask):
  """Returns boxes (x, y, width, height) of the connected pieces of a mask."""
  _, _, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
  return stats[1:, :4]


def test_info():
  source = data.open_source('shapes:colour')
  assert source.info.splits == {
    'train': 50_000,
    'validation': 5_000,
    'test': 5_000,
  }
  assert source.info.class_names[:2] == ('red', 'yellow')
  assert data.open_source('shapes').info.class_names == (
    *('triangle', 'half-disc'),
    *('L', 'T', 'U'),
  )
  record = source.read('test', 4_999)
  assert record.image.shape == (64, 64, 3)
  assert record.image.dtype == np.uint8
  assert record.name == 'test/4999'


def test_every_factor_labels_the_same_scene():
  image, labels = shapes.render('validation', 7)
  assert list(labels) == list(shapes.FACTORS)
  for factor in shapes.FACTORS:
    record = data.open_source(f'shapes:{factor}').read('validation', 7)
    np.testing.assert_array_equal(record.image, image)
    assert record.label == labels[factor]


def test_the_count_label_is_the_number_of_pieces(scenes):
  _, masks, labels = scenes
  pieces = [len(_boxes(mask)) for mask in masks]
  np.testing.assert_array_equal(pieces, labels['count'] + 1)


def test_nothing_touches_the_border(scenes):
  _, masks, _ = scenes
  inner = masks[:, 1:-1, 1:-1].sum(axis=(1, 2))
  np.testing.assert_array_equal(masks.sum(axis=(1, 2)), inner)


def test_colour_is_the_mean_hue(scenes):
  images, masks, labels = scenes
  hues = [
    colorsys.rgb_to_hsv(*image[mask].mean(axis=0) / 255)[0] * 360
    for image, mask in zip(images, masks, strict=True)
  ]
  nearest = np.rint(np.array(hues) / 60).astype(int) % 6
  np.testing.assert_array_equal(nearest, labels['colour'])


def test_position_is_the_cell_of_the_groups_centre(scenes):
  _, masks, labels = scenes
  cells = []
  for mask in masks:
    y, x = np.nonzero(mask)
    column = (x.min() + x.max() + 1) / 2 // (64 / 3)
    row = (y.min() + y.max() + 1) / 2 // (64 / 3)
    cells.append(int(row * 3 + column))
  np.testing.assert_array_equal(cells, labels['position'])


def test_size_follows_from_the_area(scenes):
  images, _, labels = scenes
  # The covered share of each pixel; 1 where the colour is purest.
  ink = np.clip(np.ptp(images.astype(float), axis=-1) - 30, 0, None)
  ink /= ink.max(axis=(1, 2), keepdims=True)
  # Areas of triangle, half-disc, L, T and U with a longer side of 1.
  units = np.array([0.4, np.pi / 8, 0.45, 0.45, 0.59])[labels['shape']]
  areas = ink.sum(axis=(1, 2)) / (labels['count'] + 1)
  sides = np.sqrt(areas / units)
  np.testing.assert_array_equal(np.digitize(sides, [9, 12.5]), labels['size'])
  for size, pixels in enumerate([7, 10.5, 14.5]):
    mean = sides[labels['size'] == size].mean()
    np.testing.assert_allclose(mean, pixels, rtol=0.05)


def test_shape_and_orientation_can_be_recognized_by_nearest_neighbour(scenes):
  images, masks, labels = scenes
  crops = []
  for image, mask in zip(images, masks, strict=True):
    x, y, width, height = _boxes(mask)[0]
    side = max(width, height)
    saturation = np.ptp(image.astype(np.float32), axis=-1) / 255
    saturation = np.pad(saturation, side)
    # Crop a square around the piece's centre, with some margin.
    cx, cy = x + (width - 1) / 2 + side, y + (height - 1) / 2 + side
    scale = 16 / (side * 1.3)
    warp = np.array(
      [[scale, 0, 7.5 - scale * cx], [0, scale, 7.5 - scale * cy]]
    )
    crops.append(cv2.warpAffine(saturation, warp, (16, 16)).ravel())
  crops = np.array(crops)
  norms = np.square(crops).sum(axis=1)
  distance = norms[:, None] + norms - 2 * crops @ crops.T
  np.fill_diagonal(distance, np.inf)
  nearest = distance.argmin(axis=1)
  for factor in ('shape', 'orientation'):
    assert np.mean(labels[factor][nearest] == labels[factor]) > 0.995


def test_factors_are_uniform_and_independent(scenes):
  _, _, labels = scenes
  for factor, classes in shapes.FACTORS.items():
    share = np.bincount(labels[factor], minlength=len(classes)) / SCENES
    np.testing.assert_allclose(share, 1 / len(classes), atol=0.05)
  names = list(shapes.FACTORS)
  correlation = np.corrcoef([labels[name] for name in names])
  np.testing.assert_allclose(correlation, np.eye(len(names)), atol=0.11)


def test_turns_are_clockwise(scenes):
  """A triangle's centroid lies a sixth of its height behind its middle."""
  _, masks, labels = scenes
  for orientation, step in enumerate([(0, -1), (1, 0), (0, 1), (-1, 0)]):
    chosen = (
      (labels['shape'] == 0)
      & (labels['count'] == 0)
      & (labels['size'] == 2)
      & (labels['orientation'] == orientation)
    )
    assert chosen.sum() > 1
    for mask in masks[chosen]:
      y, x = np.nonzero(mask)
      centre = (x.min() + x.max()) / 2, (y.min() + y.max()) / 2
      heavy = np.array([x.mean() - centre[0], y.mean() - centre[1]])
      assert heavy @ step < -1


def test_scenes_are_pure_and_differ_between_splits_and_indices():
  first = shapes.render('train', 0)[0]
  np.testing.assert_array_equal(first, shapes.render('train', 0)[0])
  others = [('train', 1), ('validation', 0), ('test', 0)]
  for split, index in others:
    assert np.any(shapes.render(split, index)[0] != first)
  labels = [
    [tuple(shapes.render(split, i)[1].values()) for i in range(20)]
    for split in ('train', 'validation', 'test')
  ]
  assert labels[0] != labels[1] != labels[2] != labels[0]


def test_unknown_factor():
  with pytest.raises(ValueError, match=r"unknown factor 'color'.*colour, size"):
    data.open_source('shapes:color')


def test_pickles():
  source = pickle.loads(pickle.dumps(data.open_source('shapes:count')))
  assert source.read('train', 5).label == shapes.render('train', 5)[1]['count']


def test_several_factors_are_combined_into_one_class():
  scenes = [shapes.render('train', i)[1] for i in range(50)]
  source = data.open_source('shapes:shape+orientation')
  assert source.info.num_classes == 20
  assert source.info.class_names[:2] == ('triangle up', 'triangle right')
  assert [source.read('train', i).label for i in range(50)] == [
    4 * labels['shape'] + labels['orientation'] for labels in scenes
  ]


def test_all_gives_one_label_per_factor():
  source = data.open_source('shapes:all')
  assert source.info.multi_label
  assert source.info.num_classes == 5 + 6 + 3 + 9 + 4 + 4
  names = source.info.class_names
  assert len(set(names)) == 31
  _, labels = shapes.render('test', 7)
  assert [names[i] for i in source.read('test', 7).label] == [
    f'{factor} {shapes.FACTORS[factor][label]}'
    for factor, label in labels.items()
  ]


def test_a_repeated_factor_is_an_error():
  with pytest.raises(ValueError, match=r'shapes:size\+size: a factor repeats'):
    data.open_source('shapes:size+size')
