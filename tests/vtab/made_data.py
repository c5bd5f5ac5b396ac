"""Writes small data sets with the features that VTAB's tasks read."""

import io

import cv2
import numpy as np
import tensorflow_datasets as tfds

SIZE = 8


def points(*depths):
  """Returns points at (100, 50), float32 [3] each."""
  return [np.float32([100, 50, depth]) for depth in depths]


# Features of two alternating records that are not just the record's number.
SPECIAL = {
  'clevr': [
    {'objects': [{'pixel_coords': p} for p in points(9, 8.2, 12)]},
    {'objects': [{'pixel_coords': p} for p in points(*range(20, 12, -1))]},
  ],
  'kitti': [
    {
      'objects': [
        {'type': kind, 'location': p}
        for kind, p in zip([3, 2], points(3, 19), strict=True)
      ]
    },
    {'objects': []},
  ],
  'dsprites': [
    {'label_x_position': 31, 'label_orientation': 37},
    {'label_x_position': 1, 'label_orientation': 5},
  ],
  'smallnorb': [
    {'label_azimuth': 17, 'label_elevation': 3},
    {'label_azimuth': 2, 'label_elevation': 8},
  ],
}
LABELS = {
  'clevr_count': [0, 5],
  'clevr_dist': [1, 5],
  'kitti_dist': [1, 3],
  'dsprites_location': [15, 0],
  'dsprites_orientation': [14, 2],
  'smallnorb_azimuth': [17, 2],
  'smallnorb_elevation': [3, 8],
}


def _png(pixels):
  return cv2.imencode('.png', pixels)[1].tobytes()


def _value(feature, i):
  """Returns a value of a feature, which is `i` if possible."""
  if isinstance(feature, tfds.features.Sequence):
    return [_value(feature.feature, i)] * 2
  if isinstance(feature, tfds.features.FeaturesDict):
    return {key: _value(feature[key], i) for key in feature}
  if isinstance(feature, tfds.features.Image):
    shape = [side or SIZE for side in feature.shape]
    return io.BytesIO(_png(np.full(shape, i, np.uint8)))
  if isinstance(feature, tfds.features.Text):
    return 'text'
  if isinstance(feature, tfds.features.BBoxFeature):
    return tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
  return np.full(feature.shape, i, feature.np_dtype)


def _example(features, i, special):
  example = _value(features, i)
  for key, value in special.items():
    if isinstance(value, list):
      other = _value(features[key].feature, i)
      value = [other | part for part in value]
    example[key] = value
  return example


def write(name, data_dir):
  """Writes `SIZE` records of each split with TFDS's features of a data set."""
  builder = tfds.builder(name, data_dir=data_dir)
  special = SPECIAL.get(builder.name, [{}, {}])

  def examples():
    for i in range(SIZE):
      yield i, _example(builder.info.features, i % 2, special[i % 2])

  builder.info.as_proto.disable_shuffling = True
  # Without a path, TFDS does not look for checksums of downloads.
  type(builder).code_path = None
  builder._split_generators = lambda dl_manager: {
    split: examples() for split in ('train', 'validation', 'test')
  }
  builder.download_and_prepare(file_format='array_record')
