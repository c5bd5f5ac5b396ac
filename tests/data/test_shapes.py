"""Guards `shapes`: each factor can be measured in the picture, and is pure."""

import cv2
import numpy as np
import pytest

from vit_jax.data.sources import shapes

SCENES = 600


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


def test_the_count_label_is_the_number_of_pieces(scenes):
  _, masks, labels = scenes
  pieces = [len(_boxes(mask)) for mask in masks]
  np.testing.assert_array_equal(pieces, labels['count'] + 1)


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
    assert np.mean(labels[factor][nearest] == labels[factor]) > 0.99


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


def test_kept_scenes_are_read_again_and_damaged_ones_are_not(
  tmp_path, monkeypatch
):
  plain = shapes.Shapes('count')
  kept = shapes.Shapes('count', data_dir=str(tmp_path))
  first = [kept.read('test', i) for i in range(3)]
  [path] = (tmp_path / 'shapes').iterdir()
  content = bytearray(path.read_bytes())
  content[shapes._RECORD + 5] ^= 1  # In the second scene.
  path.write_bytes(content)
  drawn = []
  render = shapes.render
  monkeypatch.setattr(
    shapes, 'render', lambda *place: drawn.append(place) or render(*place)
  )
  for i, record in enumerate(first):
    again = kept.read('test', i)
    expected = plain.read('test', i) if i != 1 else record
    np.testing.assert_array_equal(again.image, record.image)
    np.testing.assert_array_equal(again.image, expected.image)
    assert again.label == record.label == expected.label
  assert drawn == [('test', 0), ('test', 1), ('test', 2)]


@pytest.mark.parametrize('place', ['gs://bucket/scenes', '{}/file'])
def test_a_folder_that_cannot_be_used_costs_one_warning(
  tmp_path, monkeypatch, place
):
  (tmp_path / 'file').write_bytes(b'')  # A user who is root can write anywhere.
  place = place.format(tmp_path)
  lines = []
  monkeypatch.setattr(
    shapes.logging, 'warning', lambda text, *args: lines.append(text % args)
  )
  source = shapes.Shapes(data_dir=place)
  for split, index in (('train', 0), ('train', 1), ('test', 0)):
    image, _ = shapes.render(split, index)
    np.testing.assert_array_equal(source.read(split, index).image, image)
  [line] = lines
  assert place in line
  assert "Set data.data_dir to a writable local folder, or to ''." in line
