"""Guards `interop.load`: what is kept, resized, left out or refused."""

import numpy as np
import pytest
from scipy import ndimage

from tests.interop import tiny
from vit_jax import interop, models
from vit_jax.interop import arrays, released

POSITION = 'Transformer/posembed_input/pos_embedding'


def _file(path, model, size=(8, 8), **kwargs):
  """Writes an .npz that names parameters as the released checkpoints do.

  It has no `.json` beside it.
  """
  params = tiny.params(model, size, **kwargs)
  arrays.write_npz(path, released.to_released(tiny.flat(params)))
  return params


def _changed(path, **changes):
  """Replaces some arrays of the file; a value of None removes that array."""
  content = arrays.read_npz(path) | changes
  np.savez(path, **{k: v for k, v in content.items() if v is not None})


# Heads -----------------------------------------------------------------------


def test_another_number_of_classes_is_an_error_that_says_what_to_do(tmp_path):
  path = tmp_path / 'a.npz'
  params = _file(path, tiny.vit())
  model = tiny.vit(num_classes=3, head_bias=-2.0)
  with pytest.raises(ValueError, match='for 5 classes, the model has 3') as e:
    interop.load_npz(path, model, 8)
  assert 'To leave the head out, set new_head=True.' in str(e.value)
  loaded = interop.load_npz(path, model, 8, new_head=True)
  np.testing.assert_array_equal(loaded['head']['kernel'], np.zeros((16, 3)))
  np.testing.assert_array_equal(loaded['head']['bias'], np.full(3, -2.0))
  tiny.assert_equal(loaded | {'head': {}}, params | {'head': {}})


def test_hidden_layer_before_the_head(tmp_path):
  path, without, layer = tmp_path / 'a.npz', tiny.vit(), 'pre_logits'
  params = _file(path, tiny.vit(representation_size=8))
  with pytest.raises(ValueError, match='representation_size=8, or leave it'):
    interop.load(path, without, 8)
  loaded, report = interop.load(path, without, 8, new_head=True)
  assert layer not in loaded
  assert report.dropped == (
    'head/bias',
    'head/kernel',
    'pre_logits/bias',
    'pre_logits/kernel',
  )
  # A hidden layer of the same size is kept, although the head is new.
  same = tiny.vit(num_classes=3, representation_size=8)
  loaded, report = interop.load(path, same, 8, new_head=True)
  tiny.assert_equal(loaded['pre_logits'], params['pre_logits'])
  assert report.new == report.dropped == ('head/bias', 'head/kernel')
  # If the sizes differ, the hidden layer is newly initialized.
  other = tiny.vit(representation_size=4)
  loaded, report = interop.load(path, other, 8, new_head=True)
  assert loaded['pre_logits']['kernel'].shape == (16, 4)
  assert 0.1 < loaded['pre_logits']['kernel'].std() < 0.5  # 16 ** -0.5
  assert len(report.new) == 4
  # Without a hidden layer in the file, loading fails, unless new_head=True:
  # then the layer is newly initialized.
  _file(path, without)
  with pytest.raises(ValueError, match='leave representation_size unset'):
    interop.load(path, other, 8)
  loaded, report = interop.load(path, other, 8, new_head=True)
  assert loaded['pre_logits']['kernel'].shape == (16, 4)
  assert report.dropped == ('head/bias', 'head/kernel')


@pytest.mark.parametrize(
  ('width', 'narrow'), [(0.25, '16'), (0.5, '32'), (1, '')]
)
@pytest.mark.parametrize('name', ['BiT-R50x1', 'R50+ViT-B/16'])
def test_norms_that_have_other_groups_in_foreign_files(
  tmp_path, name, width, narrow
):
  if name.startswith('BiT'):
    model = models.build(name, num_classes=5, blocks=(1,), width_factor=width)
  else:
    options = tiny.SIZES | dict(resnet_blocks=(1,), resnet_width=width)
    model = models.build(name, num_classes=5, **options)
  path = tmp_path / 'a.npz'
  interop.save_npz(path, tiny.params(model, (64, 64)), model, image_size=64)
  # The file beside it says that the weights are ours.
  assert not interop.load(path, model, 64)[1].notes
  (tmp_path / 'a.npz.json').unlink()
  notes = interop.load(path, model, 64)[1].notes
  assert len(notes) == bool(narrow)
  if narrow:
    assert f'norms of {narrow} channels' in notes[0]
    assert "32 in the authors' code" in notes[0]


def test_scanned_models_take_unrolled_files(tmp_path):
  params = _file(tmp_path / 'a.npz', tiny.vit())
  loaded = interop.load_npz(tmp_path / 'a.npz', tiny.vit(scan=True), 8)
  tiny.assert_equal(released.unstack(tiny.flat(loaded)), params)


# Position embeddings ---------------------------------------------------------


@pytest.mark.parametrize('size', [(16, 16), (12, 20), 8])
def test_position_embedding_is_resized_as_scipy_does(tmp_path, size):
  params = _file(tmp_path / 'a.npz', tiny.vit(), (16, 16))
  loaded, report = interop.load(tmp_path / 'a.npz', tiny.vit(), size)
  rows, columns = (s // 4 for s in (size if size != 8 else (8, 8)))
  old, new = tiny.flat(params)[POSITION], tiny.flat(loaded)[POSITION]
  expected = ndimage.zoom(
    old[0, 1:].reshape(4, 4, 16), (rows / 4, columns / 4, 1), order=1
  )
  np.testing.assert_allclose(
    new[0, 1:].reshape(rows, columns, 16), expected, atol=1e-6
  )
  np.testing.assert_array_equal(new[0, 0], old[0, 0])
  assert report.resized == (() if size == (16, 16) else (POSITION,))


def test_a_rectangular_grid_is_read_from_the_json_file(tmp_path):
  model, path = tiny.vit(), tmp_path / 'a.npz'
  params = tiny.params(model, (8, 16))
  interop.save_npz(path, params, model, image_size=(8, 16))
  loaded = interop.load_npz(path, model, (16, 8))  # Same number of patches.
  expected = ndimage.zoom(
    tiny.flat(params)[POSITION][0, 1:].reshape(2, 4, 16), (2, 0.5, 1), order=1
  )
  np.testing.assert_allclose(
    tiny.flat(loaded)[POSITION][0, 1:].reshape(4, 2, 16), expected, atol=1e-6
  )
  (tmp_path / 'a.npz.json').unlink()
  with pytest.raises(ValueError, match=r'8 patch tokens .* are not a square'):
    interop.load_npz(path, model, (16, 16))
  # The file's 8 position embeddings also fit the model's 4x2 grid, so that
  # grid is assumed.
  _, report = interop.load(path, model, (16, 8))
  assert report.notes == (
    'the file does not state the grid of its 8 position embeddings: 4x2 is'
    ' assumed',
  )


def test_2d_position_embeddings_are_resized(tmp_path):
  model = tiny.vit(position_embedding='2d')
  params = _file(tmp_path / 'a.npz', model, (8, 8))
  loaded, report = interop.load(tmp_path / 'a.npz', model, (8, 12))
  at = 'Transformer/posembed_input/'
  x = tiny.flat(params)[at + 'x_embedding']
  np.testing.assert_allclose(
    tiny.flat(loaded)[at + 'x_embedding'],
    [x[0], (x[0] + x[1]) / 2, x[1]],
    rtol=1e-6,
  )
  assert report.resized == (at + 'x_embedding',)


def test_per_layer_and_relative_position_embeddings_are_resized(tmp_path):
  model = tiny.vit(position_site='every_layer')
  _file(tmp_path / 'a.npz', model, (8, 8))
  _, report = interop.load(tmp_path / 'a.npz', model, (12, 12))
  block = 'Transformer/encoderblock_{}/'
  assert report.resized == tuple(
    block.format(i) + 'posembed_input/pos_embedding' for i in range(2)
  )
  model = tiny.vit(position_embedding='relative_per_head')
  params = _file(tmp_path / 'a.npz', model, (8, 8))
  loaded = interop.load_npz(tmp_path / 'a.npz', model, (12, 12))
  name = (block + 'MultiHeadDotProductAttention_0/relative_embedding').format(1)
  old, new = tiny.flat(params)[name], tiny.flat(loaded)[name]
  assert (old.shape, new.shape) == ((9, 2, 8), (19, 2, 8))
  np.testing.assert_array_equal(new[[0, 9, 18]], old[[0, 4, 8]])


# Errors ----------------------------------------------------------------------

BIAS = 'Transformer/encoderblock_1/MlpBlock_3/Dense_1/bias'
OUR_BIAS = 'Transformer/encoderblock_1/MlpBlock_0/Dense_1/bias'


@pytest.mark.parametrize(
  'changes, message',
  [
    ({BIAS: None}, f'\n  missing (1):\n    {OUR_BIAS} (16,)\n'),
    (
      {'Transformer/extra': np.ones((2, 3))},
      '\n  extra (1):\n    Transformer/extra (2, 3)\n',
    ),
    (
      {BIAS: np.ones(15)},
      f'\n  different (1):\n    {OUR_BIAS} is (15,), expected (16,)\n',
    ),
    (
      {BIAS: np.full(16, np.nan), 'cls': np.full((1, 1, 16), np.inf)},
      f'NaN or infinite values in 2 of 40 arrays: {OUR_BIAS}, cls.',
    ),
    (
      {BIAS: np.full(16, 1e300)},
      f'NaN or infinite values in 1 of 40 arrays: {OUR_BIAS}.',
    ),
    ({BIAS: np.array([None])}, f'\n  {BIAS} is a pickled object, which could'),
  ],
)
@pytest.mark.filterwarnings('ignore:overflow')
def test_a_changed_array_is_named(tmp_path, changes, message):
  path = tmp_path / 'a.npz'
  _file(path, tiny.vit())
  _changed(path, **changes)
  with pytest.raises(ValueError, match=r'a\.npz') as error:
    interop.load_npz(path, tiny.vit(), 8)
  assert message in str(error.value)


@pytest.mark.parametrize('theirs, ours', [('pre', 'post'), ('post', 'pre')])
def test_norms_in_other_places_are_named(tmp_path, theirs, ours):
  path = tmp_path / 'a.npz'
  model = tiny.vit(norm_position=theirs)
  interop.save_npz(path, tiny.params(model), model, image_size=8)
  with pytest.raises(
    ValueError,
    match=f"are for norm_position='{theirs}', but the model has n.*'{ours}'",
  ):
    interop.load_npz(path, tiny.vit(norm_position=ours), 8)
  tiny.assert_equal(interop.load_npz(path, model, 8), tiny.params(model))
  for other in (model.clone(width=20), tiny.bit()):
    with pytest.raises(ValueError, match='do not fit') as error:
      interop.load_npz(path, other, 8)
    assert 'norm_position' not in str(error.value)


def test_all_mismatches_are_listed_at_once(tmp_path):
  path = tmp_path / 'a.npz'
  _file(path, tiny.vit(), (8, 16))
  _changed(path, cls=None, more=np.ones(1))
  with pytest.raises(ValueError, match='do not fit') as error:
    interop.load_npz(path, tiny.vit(num_classes=4), 8)
  for part in ('missing (1)', 'extra (1)', 'different (3)', 'head is for 5'):
    assert part in str(error.value)


def test_paths_without_weights_are_errors(tmp_path):
  for name, message in (
    ('a.npz', r'There is no file .*a\.npz'),
    ('model.safetensors', 'There is no file'),
    ('a.pth', 'is a pickle, which is not read'),
    ('nothing', 'No checkpoint at .*nothing: the path does not exist'),
  ):
    with pytest.raises(ValueError, match=message):
      interop.load(tmp_path / name, tiny.vit(), 8)
  with pytest.raises(ValueError, match=r'end with \.npz: use interop\.load'):
    interop.load_npz(tmp_path, tiny.vit(), 8)


def test_the_image_size_follows_from_the_file(tmp_path):
  model = tiny.vit()
  for size, sidecar in (((8, 8), None), ((8, 12), (8, 12))):
    params = tiny.params(model, size)
    interop.save_npz(tmp_path / 'a.npz', params, model, image_size=sidecar)
    tiny.assert_equal(interop.load_npz(tmp_path / 'a.npz', model), params)
  interop.save_npz(tmp_path / 'a.npz', params, model)
  with pytest.raises(ValueError, match=r'a\.npz does not show .* image_size'):
    interop.load_npz(tmp_path / 'a.npz', model)
