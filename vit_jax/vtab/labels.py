"""Turns a record of VTAB into its class and into the image that the model sees.

The label functions are those of github.com/google-research/task_adaptation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.ops import decoding

# Labels: functions of a record's features. ------------------------------------

# Edges of the depth of the closest object of a CLEVR scene, in renderer units.
CLEVR_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
# Edges of the distance to the closest vehicle in metres. A distance beyond the
# last edge means that there is no vehicle.
KITTI_EDGES = (-100.0, 8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0
# CLEVR scenes have 3 to 10 objects.
_FEWEST_OBJECTS = 3


def plain_label(record: Mapping[str, Any], key: str = 'label') -> int:
  """Returns a feature unchanged."""
  return int(record[key])


def grouped_label(
  record: Mapping[str, Any], key: str, values_per_class: float
) -> int:
  """Puts neighbouring values of a feature into one class."""
  return int(record[key] // values_per_class)


def bin_label(value: float, edges: tuple[float, ...]) -> int:
  """Returns the largest i with edges[i] < value; -1 if there is none."""
  return int(np.searchsorted(edges, value, side='left')) - 1


def count_label(record: Mapping[str, Any]) -> int:
  """Returns the number of objects of a CLEVR scene, minus three."""
  return len(record['objects']['size']) - _FEWEST_OBJECTS


def closest_object_label(record: Mapping[str, Any]) -> int:
  """Returns the distance class of the closest object of a CLEVR scene."""
  # Columns: x and y in pixels, and the depth.
  depths = _points(record['objects']['pixel_coords'])[:, 2]
  return bin_label(depths.min(), CLEVR_EDGES)


def closest_vehicle_label(record: Mapping[str, Any]) -> int:
  """Returns the distance class of a KITTI image's closest vehicle, if any."""
  # Types 0, 1 and 2 are car, van and truck.
  is_vehicle = np.asarray(record['objects']['type']) < 3
  # Columns: x, y and z in metres, in the camera's frame.
  z = _points(record['objects']['location'])[is_vehicle, 2]
  return bin_label(z.min(initial=_NO_VEHICLE), KITTI_EDGES)


def _points(values: Sequence[np.ndarray]) -> np.ndarray:
  """Stacks zero or more points: [points, 3]."""
  return np.reshape(np.asarray(values), (-1, 3))


# Images: functions of an encoded image. ---------------------------------------


def black_and_white(image: bytes) -> bytes | np.ndarray:
  """Turns the 0 and 1 of a mask into black and white, uint8 [h, w, 3]."""
  try:
    mask = decoding.decode(image, 1)
  except decoding.CorruptImageError:
    # The later decoding applies the policy for unreadable images.
    return image
  return np.tile(mask * np.uint8(255), (1, 1, 3))
