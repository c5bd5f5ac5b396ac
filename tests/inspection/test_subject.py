"""Guards: the right model and images are loaded for inspection."""

import functools

import cv2
import numpy as np
import pytest
from etils import epath

from tests.interop import tiny
from vit_jax import config as config_lib
from vit_jax import interop
from vit_jax.data import ops
from vit_jax.inspection import subject


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


def _config(**overrides):
  config = config_lib.default()
  config.model.name = 'ViT-B/4'
  config.model.update(tiny.SIZES | overrides)
  config.image_size = (8, 8)
  config.evals.test = config_lib.evaluation(
    'test', preprocess='resize_small(9)|central_crop'
  )
  return config.to_dict()


@pytest.mark.parametrize('head', [True, False])
def test_a_file_of_arrays_alone_is_enough(tmp_path, head):
  params = _npz(tmp_path / 'a.npz', tiny.vit(), head=head)
  loaded = subject.load(str(tmp_path / 'a.npz'))
  assert loaded.name.startswith('ViT-Ti/4 with width=')
  assert loaded.image_size == (8, 8)
  assert loaded.preprocess.text == 'resize'
  assert loaded.preprocess.channels == 3
  np.testing.assert_array_equal(
    loaded.params['Transformer']['posembed_input']['pos_embedding'],
    params['Transformer']['posembed_input']['pos_embedding'],
  )


def test_what_lies_beside_the_weights_counts(tmp_path):
  _npz(tmp_path / 'a.npz', tiny.vit(), preprocessing='resize(9)|central_crop')
  loaded = subject.load(str(tmp_path / 'a.npz'))
  assert loaded.preprocess.text == 'resize(9)|central_crop'
  loaded = subject.load(str(tmp_path / 'a.npz'), preprocess='resize')
  assert loaded.preprocess.text == 'resize'


def test_a_config_says_what_arrays_do_not(tmp_path):
  _npz(tmp_path / 'a.npz', tiny.vit(position_embedding='sincos2d'))
  with pytest.raises(ValueError, match='Name the model'):
    subject.load(str(tmp_path / 'a.npz'))
  loaded = subject.load(
    str(tmp_path / 'a.npz'), config=_config(position_embedding='sincos2d')
  )
  assert loaded.model.position_embedding == 'sincos2d'
  assert loaded.preprocess.text == 'resize_small(9)|central_crop'


def test_another_image_size_resizes_position_embeddings(tmp_path):
  _npz(tmp_path / 'a.npz', tiny.vit())
  loaded = subject.load(str(tmp_path / 'a.npz'), image_size=(12, 16))
  table = loaded.params['Transformer']['posembed_input']['pos_embedding']
  assert table.shape == (1, 1 + 3 * 4, 16)
  assert loaded.image_size == loaded.preprocess.image_size == (12, 16)


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
  with pytest.raises(ValueError, match=r'no file .*none\.png'):
    subject.find_images([str(tmp_path / 'none.png')])
  with pytest.raises(ValueError, match=r'holds no images; .*\.jpg'):
    subject.find_images([str(tmp_path)])


def test_the_choice_is_random_and_follows_from_the_seed():
  paths = [str(i) for i in range(100)]
  chosen = subject.choose(paths, 5, seed=0)
  assert len(set(chosen)) == 5
  assert chosen == subject.choose(paths, 5, seed=0)
  # A choice of more images begins with the same ones.
  assert chosen == subject.choose(paths, 9, seed=0)[:5]
  assert chosen != subject.choose(paths, 5, seed=1)
  assert sorted(subject.choose(paths, 200, seed=0)) == sorted(paths)


def test_what_is_too_large_is_refused_unless_allowed(tmp_path):
  path = str(tmp_path / 'a.npz')
  _npz(epath.Path(path), tiny.vit())
  cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((8, 9, 3), np.uint8))
  few, enough = (subject.load(path, max_pixels=n).preprocess for n in (71, 72))
  with pytest.raises(
    ValueError, match=r'a\.png: 8 x 9 pixels .*max_pixels=71$'
  ):
    subject.read_images([epath.Path(tmp_path / 'a.png')], few)
  subject.read_images([epath.Path(tmp_path / 'a.png')], enough)


def test_images_are_read_in_order_and_a_bad_one_is_named(tmp_path):
  for value in (10, 20):
    cv2.imwrite(str(tmp_path / f'{value}.png'), np.full((4, 4), value, 'uint8'))
  preprocess = ops.parse('resize', image_size=(2, 3), channels=1)
  paths = subject.find_images([str(tmp_path)])
  images = subject.read_images(paths, preprocess)
  assert images.shape == (2, 2, 3, 1)
  assert images.dtype == np.uint8
  assert images[:, 0, 0, 0].tolist() == [10, 20]
  _touch(tmp_path, '30.png')
  paths = subject.find_images([str(tmp_path)])
  with pytest.raises(ValueError, match=r'30\.png: cannot decode 0 bytes'):
    subject.read_images(paths, preprocess)
  problems = {}
  kept = subject.read_images(paths, preprocess, problems)
  np.testing.assert_array_equal(kept, images)
  assert [path.name for path in problems] == ['30.png']
  with pytest.raises(ValueError, match=r'None of the 1 images .*30\.png: can'):
    subject.read_images(paths[2:], preprocess, {})


def test_operations_that_give_another_size_are_refused(tmp_path):
  _npz(tmp_path / 'a.npz', tiny.vit())
  load = functools.partial(subject.load, str(tmp_path / 'a.npz'))
  assert load(preprocess='resize(10)|central_crop(8)').image_size == (8, 8)
  with pytest.raises(ValueError, match=r'a\.npz: .* 8x8 .*but 12x12 is exp'):
    load(preprocess='resize(10)|central_crop(8)', image_size=(12, 12))
