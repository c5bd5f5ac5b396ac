"""Guards: which image files are found, and how they are read."""

import cv2
import numpy as np
import pytest

from vit_jax import images
from vit_jax.data import ops


def _touch(folder, *names):
  for name in names:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'')


def test_images_are_found_in_folders_of_any_depth_each_once(tmp_path):
  _touch(tmp_path, 'b.JPG', 'a/c.png', 'a/d/e.webp', 'a/notes.txt', 'x.dat')
  _touch(tmp_path, '.hidden.png', 'a/.cache/f.png')
  found = images.find([tmp_path / 'x.dat', tmp_path, tmp_path / 'b.JPG'])
  names = ('x.dat', 'a/c.png', 'a/d/e.webp', 'b.JPG')
  assert found == [f'{tmp_path}/{name}' for name in names]


def test_missing_files_and_empty_folders_are_refused(tmp_path):
  for place in (tmp_path / 'none.png', tmp_path):
    with pytest.raises(ValueError, match=str(place)):
      images.find([place])


def test_images_are_read_in_order_and_bad_ones_are_told(tmp_path):
  for value in (10, 20):
    cv2.imwrite(str(tmp_path / f'{value}.png'), np.full((4, 4), value, 'uint8'))
  cv2.imwrite(str(tmp_path / '15.png'), np.zeros((4, 5), 'uint8'))
  preprocess = ops.parse('resize', image_size=(2, 3), channels=1, max_pixels=16)
  found = images.from_paths(images.find([tmp_path]))
  pixels, problems = found.read(preprocess)
  assert pixels.shape == (2, 2, 3, 1)
  assert pixels.dtype == np.uint8
  assert pixels[:, 0, 0, 0].tolist() == [10, 20]
  assert list(problems) == [1]
  assert 'max_pixels=16' in problems[1]
  with pytest.raises(ValueError, match=r'15\.png: .*max_pixels=16'):
    images.from_paths(found.items[1:2]).read(preprocess)


@pytest.mark.parametrize('words, value', [([], None), (['a.png'], 'digits')])
def test_images_are_either_files_or_named_by_a_flag(words, value):
  with pytest.raises(ValueError, match='--data'):
    images.check_one(words, data=value)
