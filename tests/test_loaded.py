"""Guards: the right model is loaded, with its size and preprocessing."""

import functools

import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import interop
from vit_jax import loaded as loaded_lib


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
  loaded = loaded_lib.load(f'{tmp_path}/a.npz')
  assert loaded.name.startswith('ViT-Ti/4 with width=')
  assert loaded.image_size == (8, 8)
  assert (loaded.preprocess.text, loaded.preprocess.channels) == ('resize', 3)
  assert loaded.has_head == head
  np.testing.assert_array_equal(
    loaded.params['Transformer']['posembed_input']['pos_embedding'],
    params['Transformer']['posembed_input']['pos_embedding'],
  )
  # Position embeddings are resized to another size.
  loaded = loaded_lib.load(f'{tmp_path}/a.npz', image_size=(12, 16))
  table = loaded.params['Transformer']['posembed_input']['pos_embedding']
  assert table.shape == (1, 1 + 3 * 4, 16)
  assert loaded.image_size == loaded.preprocess.image_size == (12, 16)


def test_what_lies_beside_the_weights_counts(tmp_path):
  operations = 'resize(10)|central_crop(8)'
  _npz(tmp_path / 'a.npz', tiny.vit(), preprocessing=operations)
  load = functools.partial(loaded_lib.load, f'{tmp_path}/a.npz')
  assert load().preprocess.text == operations
  assert load(preprocess='resize').preprocess.text == 'resize'
  # They may give images of another size.
  with pytest.raises(ValueError, match=r'a\.npz: .*12x12'):
    load(image_size=(12, 12))
