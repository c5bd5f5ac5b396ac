"""Guards: the right model and images are loaded for inspection."""

import functools

import cv2
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import interop
from vit_jax import loaded as subject
from vit_jax.data import ops


def _npz(path, model, size=(8, 8), head=True, **described):
  """Writes a .npz file of arrays without a description, like released files."""
  params = tiny.params(model, size)
  interop.save_npz(path, params, model, image_size=size, **described)
  if not described:
    path.with_name(f'{path.name}.json').unlink(missing_ok=True)
  if not head:
    rest = {k: v for k, v in np.load(path).items() if 'head' not in k}
    np.savez(path, **rest)
  return params


@pytest.mark.parametrize('head', [True, False])
def test_a_file_of_arrays_alone_is_enough(tmp_path, head):
  params = _npz(tmp_path / 'a.npz', tiny.vit(), head=head)
  loaded = subject.load(f'{tmp_path}/a.npz')
  assert loaded.name.startswith('ViT-Ti/4 with width=')
  assert loaded.image_size == (8, 8)
  assert (loaded.preprocess.text, loaded.preprocess.channels) == ('resize', 3)
  assert loaded.has_head == head
  np.testing.assert_array_equal(
    loaded.params['Transformer']['posembed_input']['pos_embedding'],
    params['Transformer']['posembed_input']['pos_embedding'],
  )
  # Position embeddings are resized to another size.
  loaded = subject.load(f'{tmp_path}/a.npz', image_size=(12, 16))
  table = loaded.params['Transformer']['posembed_input']['pos_embedding']
  assert table.shape == (1, 1 + 3 * 4, 16)
  assert loaded.image_size == loaded.preprocess.image_size == (12, 16)


def test_what_lies_beside_the_weights_counts(tmp_path):
  operations = 'resize(10)|central_crop(8)'
  _npz(tmp_path / 'a.npz', tiny.vit(), preprocessing=operations)
  load = functools.partial(subject.load, f'{tmp_path}/a.npz')
  assert load().preprocess.text == operations
  assert load(preprocess='resize').preprocess.text == 'resize'
  # They may give images of another size.
  with pytest.raises(ValueError, match=r'a\.npz: .*12x12'):
    load(image_size=(12, 12))


def _touch(folder, *names):
  for name in names:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'')


def test_images_are_found_in_folders_of_any_depth_each_once(tmp_path):
  _touch(tmp_path, 'b.JPG', 'a/c.png', 'a/d/e.webp', 'a/notes.txt', 'x.dat')
  _touch(tmp_path, '.hidden.png', 'a/.cache/f.png')
  found = subject.find_images(
    [str(tmp_path / 'x.dat'), str(tmp_path), str(tmp_path / 'b.JPG')]
  )
  names = [str(path.relative_to(tmp_path)) for path in found]
  assert names == ['x.dat', 'a/c.png', 'a/d/e.webp', 'b.JPG']


def test_missing_files_and_empty_folders_are_refused(tmp_path):
  for place in (tmp_path / 'none.png', tmp_path):
    with pytest.raises(ValueError, match=str(place)):
      subject.find_images([str(place)])


def test_the_choice_is_random_and_follows_from_the_seed():
  paths = [str(i) for i in range(100)]
  chosen = subject.choose(paths, 5, seed=0)
  assert len(set(chosen)) == 5
  assert chosen == subject.choose(paths, 5, seed=0)
  # A choice of more images begins with the same ones.
  assert chosen == subject.choose(paths, 9, seed=0)[:5]
  assert chosen != subject.choose(paths, 5, seed=1)
  assert sorted(subject.choose(paths, 200, seed=0)) == sorted(paths)


def test_images_are_read_in_order_and_a_bad_one_is_named(tmp_path):
  for value in (10, 20):
    cv2.imwrite(str(tmp_path / f'{value}.png'), np.full((4, 4), value, 'uint8'))
  cv2.imwrite(str(tmp_path / '30.png'), np.zeros((4, 5), 'uint8'))
  preprocess = ops.parse('resize', image_size=(2, 3), channels=1, max_pixels=16)
  paths = subject.find_images([str(tmp_path)])
  images = subject.read_images(paths[:2], preprocess)
  assert images.shape == (2, 2, 3, 1)
  assert images.dtype == np.uint8
  assert images[:, 0, 0, 0].tolist() == [10, 20]
  with pytest.raises(ValueError, match=r'30\.png: .*max_pixels=16$'):
    subject.read_images(paths, preprocess)
  problems = {}
  kept = subject.read_images(paths, preprocess, problems)
  np.testing.assert_array_equal(kept, images)
  assert [path.name for path in problems] == ['30.png']
  with pytest.raises(ValueError, match=r'30\.png'):
    subject.read_images(paths[2:], preprocess, {})
