"""Small files in the released layout, and photographs in folders."""

import cv2
import numpy as np

from tests.interop import tiny
from vit_jax.interop import arrays, families

FINE_TUNED = 'imagenet21k+imagenet2012/'


def write_weights(path, model, size, **replaced):
  """Writes a file of a model with random numbers.

  Args:
    path: of the file.
    model: see `models.build`.
    size: (height, width) of its images in pixels.
    **replaced: arrays of the head to replace, `kernel` or `bias`.
  """
  params = tiny.params(model, size)
  params['head'] |= replaced
  path.parent.mkdir(parents=True, exist_ok=True)
  arrays.write_npz(path, families.to_released(tiny.flat(params)))


def write_photographs(folder, counts):
  """Writes `FOLDER/CLASS/N.png` of 12x10 px; counts: class -> number."""
  rng = np.random.default_rng(0)
  for name, count in counts.items():
    (folder / name).mkdir(parents=True)
    for index in range(count):
      image = rng.integers(0, 256, (10, 12, 3), np.uint8)
      cv2.imwrite(str(folder / name / f'{index}.png'), image)
  return f'classes:{folder}'
