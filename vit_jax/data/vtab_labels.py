"""What VTAB's tasks make of a record: its class, and what the model sees of it.

Label functions are those of github.com/google-research/task_adaptation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data import decode

# Labels: functions of a record's features. ------------------------------------

# Depth of the closest object in a CLEVR scene, as the renderer has it.
CLEVR_EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
# Metres to the closest vehicle; there is none beyond the last.
KITTI_EDGES = (-100.0, 8.0, 20.0, 999.0)
_NO_VEHICLE = 1000.0
# CLEVR scenes have 3 to 10 objects.
_FEWEST_OBJECTS = 3


def plain_label(record: Mapping[str, Any], key: str = 'label') -> int:
  """The label is a feature as it is."""
  return int(record[key])


def grouped_label(
  record: Mapping[str, Any], key: str, values_per_class: float
) -> int:
  """Neighbouring values of a feature are one class."""
  return int(record[key] // values_per_class)


def bin_label(value: float, edges: tuple[float, ...]) -> int:
  """Returns the largest i with edges[i] < value; -1 if there is none."""
  return int(np.searchsorted(edges, value, side='left')) - 1


def count_label(record: Mapping[str, Any]) -> int:
  """How many objects a CLEVR scene has, from three on."""
  return len(record['objects']['size']) - _FEWEST_OBJECTS


def closest_object_label(record: Mapping[str, Any]) -> int:
  """How far the closest object of a CLEVR scene is."""
  # x and y in pixels, and the depth.
  depths = _points(record['objects']['pixel_coords'])[:, 2]
  return bin_label(depths.min(), CLEVR_EDGES)


def closest_vehicle_label(record: Mapping[str, Any]) -> int:
  """How far the closest car, van or truck of a KITTI image is, if any."""
  is_vehicle = np.asarray(record['objects']['type']) < 3
  # x, y and z in metres, as seen from the camera.
  z = _points(record['objects']['location'])[is_vehicle, 2]
  return bin_label(z.min(initial=_NO_VEHICLE), KITTI_EDGES)


def _points(values: Sequence[np.ndarray]) -> np.ndarray:
  """Stacks points, of which there may be none: [points, 3]."""
  return np.reshape(np.asarray(values), (-1, 3))


# Images: an encoded one to what the task sees. --------------------------------


def black_and_white(image: bytes) -> bytes | np.ndarray:
  """Turns the 0 and 1 of a mask into black and white, uint8 [h, w, 3]."""
  try:
    mask = decode.decode(image, 1)
  except decode.CorruptImageError:
    # Whoever decodes images is told what to do with such ones.
    return image
  return np.tile(mask * np.uint8(255), (1, 1, 3))
