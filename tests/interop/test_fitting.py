"""Guards: which parameters fit a new model, and which are resized or new."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from tests.interop.tiny import params_of_4_pixels as _params
from tests.interop.tiny import unstacked as _flat
from vit_jax.interop import fitting

POSITION = 'Transformer/posembed_input/pos_embedding'


def _fit(source, params, **kwargs):
  defaults = dict(old_grid=None, new_grid=(2, 2), new_head=True, name='RUN')
  return fitting.fit(source, params, **(defaults | kwargs))


def _assert_same_but(flat, source, *, but):
  """Asserts that `flat` equals `source`, apart from the names in `but`."""
  assert but <= flat.keys()
  for name in flat.keys() - but:
    np.testing.assert_array_equal(flat[name], source[name], err_msg=name)


def test_report_names_what_was_done():
  source = _params(1, size=(8, 8), classes=5, representation_size=8)
  _, report = _fit(source, _params(2, (12, 12)), new_grid=(3, 3))
  assert str(report) == (
    f'37 arrays loaded; resized: {POSITION}; dropped: head/bias, head/kernel,'
    ' pre_logits/bias, pre_logits/kernel; new: head/bias, head/kernel'
  )


@pytest.mark.parametrize('size', [8, 5, None])
def test_a_hidden_layer_stays_if_its_size_does(size):
  source = _params(1, representation_size=size)
  params = _params(2, representation_size=8)
  fitted, report = _fit(source, params)
  kept = (source if size == 8 else params)['pre_logits']
  np.testing.assert_array_equal(fitted['pre_logits']['kernel'], kept['kernel'])
  assert ('pre_logits/kernel' in report.new) == (size != 8)
  assert ('pre_logits/kernel' in report.dropped) == (size == 5)
  np.testing.assert_array_equal(
    fitted['head']['kernel'], params['head']['kernel']
  )


@pytest.mark.parametrize(
  'old, new, note',
  [
    ((8, 16), (2, 4), ' 8 position embeddings: 2x4 is assumed'),
    # A square is the most likely grid.
    ((16, 16), (2, 8), ' 16 position embeddings: 4x4 is assumed'),
    ((16, 16), (4, 4), ''),
  ],
)
def test_a_grid_that_is_not_known_is_a_square_where_it_can_be(old, new, note):
  source = _params(1, size=old)
  params = _params(2, size=(4 * new[0], 4 * new[1]))
  fitted, report = _fit(source, params, new_grid=new)
  same = _flat(fitted)[POSITION] == _flat(source)[POSITION]
  assert same.all() == (new != (2, 8))
  assert (POSITION in report.resized) == (new == (2, 8))
  assert ' '.join(report.notes).endswith(note)
  assert len(report.notes) == bool(note)


def test_without_a_class_token_all_tokens_are_patches():
  source = _params(1, size=(8, 8), pooling='gap')
  fitted, _ = _fit(
    source, _params(2, size=(16, 16), pooling='gap'), new_grid=(4, 4)
  )
  expected = ndimage.zoom(
    _flat(source)[POSITION].reshape(2, 2, 8), (2, 2, 1), order=1
  )
  np.testing.assert_allclose(
    _flat(fitted)[POSITION].reshape(4, 4, 8), expected, atol=1e-6
  )


@pytest.mark.parametrize('scan', [True, False])
def test_scanned_and_unrolled_blocks_fit_each_other(scan):
  source, params = _params(1, scan=scan), _params(2, scan=not scan)
  loaded, _ = _fit(source, params)
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  _assert_same_but(
    _flat(loaded), _flat(source), but={'head/kernel', 'head/bias'}
  )
  block = _flat(loaded)['Transformer/encoderblock_1/LayerNorm_0/scale']
  assert block.dtype == np.float32


def test_a_foreign_model_is_listed_in_full():
  source = _params(1, size=(8, 12), width=12, depth=1)
  source['stem'] = {'kernel': np.ones((7, 7))}
  params = _params(2, depth=2)
  with pytest.raises(ValueError, match='Check the name of the m') as error:
    _fit(source, params)
  ours, theirs = _flat(params), _flat(source)
  listed, group = {}, ''
  for line in str(error.value).splitlines():
    if line.startswith('    '):
      listed[group].add(line.split()[0])
    elif line.startswith('  '):
      group = line.partition(' (')[0].strip()
      listed[group] = set()
  block = 'Transformer/encoderblock_1'
  assert listed['missing'] == {k for k in ours if k.startswith(block)}
  assert len(listed['missing']) == 16
  assert listed['extra'] == {'stem/kernel'}
  assert listed['different'] == {
    k
    for k in (ours.keys() & theirs.keys()) - {'head/bias', 'head/kernel'}
    if ours[k].shape != theirs[k].shape
  }
  assert POSITION in listed['different']
  assert '6 patch tokens' in str(error.value)  # Why it was not resized.


def test_parameters_take_the_models_dtype():
  source = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _params(1))
  fitted, _ = _fit(source, _params(2))
  assert {x.dtype.name for x in jax.tree.leaves(fitted)} == {'float32'}
  with pytest.raises(ValueError, match=r'old_grid 3x3 has 9 tokens'):
    _fit(source, source, old_grid=(3, 3))


def test_weights_that_are_not_finite():
  source = _params(1)
  source['cls'][0, 0, 3] = np.nan
  with pytest.raises(ValueError, match=r'RUN holds NaN .* 1 of 40 arrays: cls'):
    _fit(source, _params(2))
  # Arrays that are not used may hold NaN.
  source = _params(1)
  source['head']['bias'][0] = np.nan
  _fit(source, _params(2))
