"""Guards: which parameters fit a model, what is resized, new, or refused."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from tests.interop import tiny
from tests.interop.tiny import params_of_4_pixels as _params
from tests.interop.tiny import unstacked as _flat
from tests.tiny_run import assert_same_but
from vit_jax import interop
from vit_jax.interop import arrays, families, fitting, layouts
from vit_jax.models import patches

POSITION = 'Transformer/posembed_input/pos_embedding'


def _fit(source, params, size=(8, 8), **options):
  flat = layouts.unstack(tiny.flat(source))
  weights = interop.Weights(origin='RUN', params=flat)
  grid = (size[0] // 4, size[1] // 4)
  options = {'new_head': True} | options
  return fitting.fit(weights, params, None, grid, **options)


def test_report_names_what_was_done():
  source = _params(1, size=(8, 8), classes=5, representation_size=8)
  _, report = _fit(source, _params(2, (12, 12)), size=(12, 12))
  assert str(report) == (
    f'37 arrays loaded; resized: {POSITION}; dropped: head/bias, head/kernel,'
    ' pre_logits/bias, pre_logits/kernel; new: head/bias, head/kernel'
  )


def test_only_a_flexible_model_takes_patches_of_another_size():
  source = tiny.params(tiny.vit())
  weights = interop.Weights(origin='RUN', params=tiny.flat(source))
  sizes = {'patch_size': 8, 'position_grid': 2}
  model = tiny.vit(**sizes, kernel_size=8)
  params = tiny.params(model, (16, 16))
  fitted, report = fitting.fit(weights, params, model, (2, 2), new_head=False)
  assert report.resized == ('embedding/kernel',)
  np.testing.assert_array_equal(
    fitted['embedding']['kernel'],
    patches.resize_kernel(source['embedding']['kernel'], (8, 8)),
  )
  with pytest.raises(ValueError, match='embedding/kernel is'):
    fitting.fit(weights, params, tiny.vit(**sizes), (2, 2), new_head=False)


@pytest.mark.parametrize('size', [8, 5, None])
def test_a_hidden_layer_stays_if_its_size_does(size):
  source = _params(1, representation_size=size)
  params = _params(2, representation_size=8)
  fitted, report = _fit(source, params)
  kept = (source if size == 8 else params)['pre_logits']
  np.testing.assert_array_equal(fitted['pre_logits']['kernel'], kept['kernel'])
  assert ('pre_logits/kernel' in report.new) == (size != 8)
  assert ('pre_logits/kernel' in report.dropped) == (size == 5)


@pytest.mark.parametrize(
  'old, new',
  [
    ((8, 16), (2, 4)),
    ((16, 16), (2, 8)),  # A square is the most likely grid.
    ((16, 16), (4, 4)),
  ],
)
def test_a_grid_that_is_not_known_is_a_square_where_it_can_be(old, new):
  source = _params(1, size=old)
  size = (4 * new[0], 4 * new[1])
  fitted, report = _fit(source, _params(2, size=size), size)
  same = _flat(fitted)[POSITION] == _flat(source)[POSITION]
  assert same.all() == (new != (2, 8))
  assert (POSITION in report.resized) == (new == (2, 8))


@pytest.mark.parametrize('scan', [True, False])
def test_scanned_and_unrolled_blocks_fit_each_other(scan):
  source, params = _params(1, scan=scan), _params(2, scan=not scan)
  loaded, _ = _fit(source, params)
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  assert_same_but(
    _flat(loaded), _flat(source), but={'head/kernel', 'head/bias'}
  )
  block = _flat(loaded)['Transformer/encoderblock_1/LayerNorm_0/scale']
  assert block.dtype == np.float32


def test_parameters_take_the_models_dtype():
  source = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _params(1))
  fitted, _ = _fit(source, _params(2))
  assert {x.dtype.name for x in jax.tree.leaves(fitted)} == {'float32'}


@pytest.mark.parametrize(
  'kernel, patch, grid',
  [
    ((4, 4), (4, 4), (2, 3)),
    ((4, 4), (10, 7), (2, 3)),
    ((10, 7), (10, 7), (2, 3)),
    ((4, 4), (4, 4), (5, 2)),
  ],
)
def test_a_model_for_all_patch_sizes_begins_as_a_plain_one(kernel, patch, grid):
  """With enlarged patches, it computes the same."""
  plain, size = tiny.vit(), (8, 12)
  source = tiny.params(plain, size)
  model = tiny.vit(kernel_size=kernel, position_grid=grid, patch_size=patch)
  weights = interop.Weights('RUN', tiny.flat(source), plain, size)
  high, wide = patch
  fitted, report = interop.fit_weights(weights, model, (2 * high, 3 * wide))
  resized = ('embedding/kernel',) * (kernel != (4, 4))
  assert report.resized == resized + (POSITION,) * (grid != (2, 3))
  if grid != (2, 3):
    assert tiny.flat(fitted)[POSITION].shape == (1, 11, 16)
    return
  images = np.random.default_rng(0).uniform(-1, 1, (2, 2, 3, 4, 4, 3))
  shown = []
  for shape in ((4, 4), patch):
    parts = [cv2.resize(x, shape[::-1]) for x in images.reshape(-1, 4, 4, 3)]
    parts = np.float32(parts).reshape(2, 2, 3, *shape, 3).swapaxes(2, 3)
    shown.append(parts.reshape(2, 2 * shape[0], 3 * shape[1], 3))
  expected, _ = plain.apply({'params': source}, shown[0])
  found, _ = model.apply({'params': fitted}, shown[1])
  np.testing.assert_allclose(found, expected, atol=1e-3 * (patch != (4, 4)))


@pytest.mark.parametrize(
  'options, message',
  [
    ({'patch_size': 8}, r'model\.kernel_size=\(4, 4\)'),
    ({'kernel_size': 8, 'width': 8}, r'embedding/kernel is \(4, 4, 3, 16\)'),
  ],
)
def test_other_patches_that_are_refused(options, message):
  plain, model = tiny.vit(), tiny.vit(**options)
  weights = interop.Weights('RUN', tiny.flat(tiny.params(plain)), plain, (8, 8))
  with pytest.raises(ValueError, match=message) as error:
    interop.fit_weights(weights, model, (8, 8))
  assert ('kernel_size' in str(error.value)) == ('kernel_size' not in options)


def test_new_arrays_may_be_shapes_only():
  structs = jax.eval_shape(lambda: _params(2, representation_size=8))
  fitted, report = _fit(_params(1), structs)
  assert set(report.new) == {
    *('head/bias', 'head/kernel', 'pre_logits/bias', 'pre_logits/kernel'),
  }
  assert not fitted['pre_logits']['kernel'].any()


def test_weights_that_are_not_finite():
  source = _params(1)
  source['cls'][0, 0, 3] = np.nan
  with pytest.raises(ValueError, match=r'RUN holds NaN .* 1 of 40 arrays: cls'):
    _fit(source, _params(2))
  # Arrays that are not used may hold NaN.
  source = _params(1)
  source['head']['bias'][0] = np.nan
  _fit(source, _params(2))


# Files -----------------------------------------------------------------------


def _file(path, model, size=(8, 8)):
  """Writes an .npz with the released names, without a `.json` beside it."""
  params = tiny.params(model, size)
  arrays.write_npz(path, families.to_released(tiny.flat(params)))
  return params


def test_another_number_of_classes_is_an_error_that_says_what_to_do(tmp_path):
  path = tmp_path / 'a.npz'
  params = _file(path, tiny.vit())
  model = tiny.vit(num_classes=3, head_bias=-2.0)
  with pytest.raises(ValueError, match='new_head=True'):
    interop.load_npz(path, model, 8)
  loaded = interop.load_npz(path, model, 8, new_head=True)
  np.testing.assert_array_equal(loaded['head']['kernel'], np.zeros((16, 3)))
  np.testing.assert_array_equal(loaded['head']['bias'], np.full(3, -2.0))
  tiny.assert_equal(loaded | {'head': {}}, params | {'head': {}})


def test_a_hidden_layer_that_the_file_lacks(tmp_path):
  path = tmp_path / 'a.npz'
  _file(path, tiny.vit())
  model = tiny.vit(representation_size=4)
  with pytest.raises(ValueError, match='new_head=True'):
    interop.load(path, model, 8)
  loaded, _ = interop.load(path, model, 8, new_head=True)
  assert 0.1 < loaded['pre_logits']['kernel'].std() < 0.5  # 16 ** -0.5


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


def test_other_position_embeddings_are_resized(tmp_path):
  path, at = tmp_path / 'a.npz', 'Transformer/posembed_input/x_embedding'
  model = tiny.vit(position_embedding='2d')
  x = tiny.flat(_file(path, model))[at]
  loaded, report = interop.load(path, model, (8, 12))
  expected = [x[0], (x[0] + x[1]) / 2, x[1]]
  np.testing.assert_allclose(tiny.flat(loaded)[at], expected, rtol=1e-6)
  assert report.resized == (at,)
  model = tiny.vit(position_site='every_layer')
  _file(path, model)
  _, report = interop.load(path, model, (12, 12))
  assert len(report.resized) == 2
  model = tiny.vit(position_embedding='relative_per_head')
  params = _file(path, model)
  loaded = interop.load_npz(path, model, (12, 12))
  name = (
    'Transformer/encoderblock_1/MultiHeadDotProductAttention_0'
    '/relative_embedding'
  )
  old, new = tiny.flat(params)[name], tiny.flat(loaded)[name]
  assert (old.shape, new.shape) == ((9, 2, 8), (19, 2, 8))
  np.testing.assert_array_equal(new[[0, 9, 18]], old[[0, 4, 8]])


BIAS = 'Transformer/encoderblock_1/MlpBlock_3/Dense_1/bias'
OUR_BIAS = 'Transformer/encoderblock_1/MlpBlock_0/Dense_1/bias'


@pytest.mark.parametrize(
  'changes, found',
  [
    ({BIAS: None}, {'missing (1)', OUR_BIAS}),
    (
      {'Transformer/extra': np.ones((2, 3))},
      {'extra (1)', 'Transformer/extra'},
    ),
    ({BIAS: np.ones(15)}, {'different (1)', f'{OUR_BIAS} is (15,)'}),
    ({BIAS: np.full(16, 1e300)}, {'NaN', OUR_BIAS}),
    (
      {'cls': None, 'more': np.ones(1), 'head/bias': np.ones(4)},
      {'missing (1)', 'extra (1)', 'different (1)', 'new_head=True'},
    ),
  ],
)
@pytest.mark.filterwarnings('ignore:overflow')
def test_changed_arrays_are_named_all_at_once(tmp_path, changes, found):
  path = tmp_path / 'a.npz'
  _file(path, tiny.vit())
  content = arrays.read_npz(path) | changes
  np.savez(path, **{k: v for k, v in content.items() if v is not None})
  with pytest.raises(ValueError, match=r'a\.npz') as error:
    interop.load_npz(path, tiny.vit(), 8)
  for part in found:
    assert part in str(error.value)


def test_paths_without_weights_are_errors(tmp_path):
  for name, message in (
    ('a.npz', r'There is no file .*a\.npz'),
    ('model.safetensors', 'There is no file'),
    ('a.pth', r'a\.pth .* pickle only, which is not read'),
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
  with pytest.raises(ValueError, match=r'a\.npz: .* give the image size'):
    interop.load_npz(tmp_path / 'a.npz', model)
