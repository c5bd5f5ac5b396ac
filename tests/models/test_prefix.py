"""Guards: registers, distillation tokens and norms after pooling, in NumPy.

And that all else knows them: positions, layers, attention maps, weights.
"""

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.interop import tiny
from tests.models import naive
from vit_jax import config as config_lib
from vit_jax import interop
from vit_jax.inspection import attention_maps, capture
from vit_jax.interop import families, fitting, inference
from vit_jax.losses import masked_patch
from vit_jax.models import encoder, layers, model_options, position

SIZE, GRID = (8, 12), (2, 3)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (2, *SIZE, 3), np.uint8)
IMAGES = np.float32(PIXELS / 127.5 - 1)
DISTILLED = {'distillation_token': True, 'registers': 2}
MEAN = {'pooling': 'gap_patches', 'final_norm': 'pooled'}
KINDS = [
  {'registers': 3},
  {'registers': 2, 'pooling': 'gap'},
  DISTILLED,
  MEAN | {'registers': 1},
]
STATISTICS = {'image_mean': (0.4, 0.5, 0.7), 'image_std': (0.2, 0.3, 2.0)}
# As in CLIP, DeiT III, and DINOv2 with a head.
LATER = [
  KINDS[1]
  | dict(embedding_norm=True, patch_bias=False, gelu='quick', **STATISTICS),
  DISTILLED | {'class_position': False, 'gelu': 'exact'},
  {'pooling': 'token_gap', 'registers': 3, 'key_bias': False},
]


def _params(model, size=SIZE):
  return jax.tree.map(lambda a: 0.3 * a, tiny.params(model, size))


@pytest.mark.parametrize('options', [*KINDS[2:], *LATER], ids=str)
def test_the_model_is_that_of_numpy(options):
  model = tiny.vit(**options)
  params = _params(model)
  first, second, _, _, inputs = naive.vit(
    model, naive.float64(params), np.float64(IMAGES)
  )
  two = model.distillation_token
  run = jax.jit(model.apply, static_argnames='train')
  cases = {True: first, False: (first + second) / 2} if two else {False: first}
  for train, expected in cases.items():
    logits, out = run({'params': params}, IMAGES, train=train)
    np.testing.assert_allclose(out['embedded'], inputs[0], atol=1e-5)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    assert ('distilled' in out) == two
  if two:
    np.testing.assert_allclose(out['distilled'], second, atol=1e-4)
  # The features of a layer are pooled like the model's.
  found = layers.represent(model, params, PIXELS, 'block_0')
  expected = naive.pooled(model, inputs[1], 6)
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_initial_registers_differ_and_other_tokens_are_zero():
  model = tiny.vit(**DISTILLED)
  params = jax.jit(model.init)(jax.random.key(0), IMAGES)['params']
  assert not params['cls'].any()
  assert not params['dist'].any()
  assert params['registers'].std() == pytest.approx(1e-6, rel=0.4)


class _Rows(nn.Module):
  options: model_options.Options

  @nn.compact
  def __call__(self, x, tokens):
    return encoder.position_table(self.options, x, GRID, tokens)


@pytest.mark.parametrize('kind', position.ADDED)
def test_registers_and_rows_after_the_tokens_have_no_position(kind):
  model = tiny.vit(registers=2, position_embedding=kind)
  x = np.zeros((3, 16, 16), np.float32)  # 9 tokens, and 7 rows for cuDNN.
  rows = _Rows(model_options.options_of(model))
  (found, *_), params = rows.init_with_output(jax.random.key(0), x, 9)
  params = params.get('params', {}).get('posembed_input', {})
  call = {'grid': GRID, 'num_prefix_tokens': 1, 'width': 16}
  table = position.Table(kind).apply({'params': params}, **call)[0]
  np.testing.assert_array_equal(found[3:9], table[1:])
  np.testing.assert_array_equal(found[0], table[0])
  assert not found[1:3].any()
  assert not found[9:].any()
  assert np.abs(table[1:]).max(axis=1).all()


# Attention maps --------------------------------------------------------------


@pytest.mark.parametrize('options', KINDS[:3], ids=str)
def test_attention_maps_are_of_patches_alone(options):
  model = tiny.vit(**options)
  weights = capture.attention_weights(model, _params(model), IMAGES)
  prefix = capture.prefix_tokens(model)
  assert prefix == weights.shape[-1] - 6
  token = model.pooling == 'token'
  found = attention_maps.rollout(weights, prefix, token)
  mixed = np.asarray(weights, np.float64).mean(axis=2)
  mixed = (mixed + np.eye(prefix + 6)) / 2
  product = mixed[1] @ mixed[0]
  rows = product[:, :1] if token else product[:, prefix:]
  np.testing.assert_allclose(found, rows.mean(1)[:, prefix:], atol=1e-5)


# Weights ---------------------------------------------------------------------


def _fit(source, target, size=SIZE, new_head=True):
  """Fits random weights of one model to those of another."""
  params = tiny.flat(tiny.params(source, SIZE))
  weights = interop.Weights('RUN', params, source, SIZE)
  grid = position.stored_grid(target, size)
  fresh = tiny.params(target, size, seed=1)
  fitted, report = fitting.fit(weights, fresh, target, grid, new_head=new_head)
  return tiny.flat(fitted), report, params, tiny.flat(fresh)


def test_both_heads_are_new_and_prefix_rows_stay_as_they_are():
  model = tiny.vit(**DISTILLED)
  fitted, report, old, fresh = _fit(model, model, size=(16, 16))
  heads = {
    f'{h}/{x}' for h in ('head', 'head_dist') for x in ('kernel', 'bias')
  }
  assert set(report.new) == heads
  for name in heads:
    np.testing.assert_array_equal(fitted[name], fresh[name])
  for name in ('cls', 'dist', 'registers'):
    np.testing.assert_array_equal(fitted[name], old[name])
  table = 'Transformer/posembed_input/pos_embedding'
  assert report.resized == (table,)
  np.testing.assert_array_equal(fitted[table][:, :2], old[table][:, :2])
  rows = position.resize(
    old[table][:, 2:], old_grid=GRID, new_grid=(4, 4), num_prefix_tokens=0
  )
  np.testing.assert_array_equal(fitted[table][:, 2:], rows)


@pytest.mark.parametrize('back', [False, True])
def test_a_norm_that_moves_behind_pooling_is_new(back):
  kinds = [tiny.vit(), tiny.vit(**MEAN)]
  fitted, report, old, fresh = _fit(*(kinds[::-1] if back else kinds))
  norm = 'Transformer/encoder_norm' if back else 'fc_norm'
  assert set(report.new) == {
    f'{layer}/{leaf}'
    for layer, leaves in (
      ('head', ('kernel', 'bias')),
      (norm, ('scale', 'bias')),
    )
    for leaf in leaves
  }
  np.testing.assert_array_equal(fitted[f'{norm}/scale'], fresh[f'{norm}/scale'])
  np.testing.assert_array_equal(fitted['cls'], old['cls'])
  # The same place: it is loaded.
  fitted, report, old, _ = _fit(kinds[1], kinds[1])
  np.testing.assert_array_equal(fitted['fc_norm/scale'], old['fc_norm/scale'])
  with pytest.raises(ValueError, match=r'(?s)fc_norm.*new_head=True'):
    _fit(*kinds, new_head=False)


@pytest.mark.parametrize(
  'source, target, named',
  [
    ({}, {'registers': 2}, 'registers'),
    ({'registers': 2}, {}, 'registers'),
    ({'registers': 2}, {'registers': 4}, 'registers'),
    ({}, {'distillation_token': True}, 'dist'),
    ({'distillation_token': True}, {}, 'dist'),
    ({}, {'norm_position': 'post'}, 'encoder_norm'),
    (MEAN, {'norm_position': 'post', 'pooling': 'gap_patches'}, 'fc_norm'),
  ],
)
def test_tokens_and_norms_that_only_one_model_has_are_named(
  source, target, named
):
  with pytest.raises(ValueError, match=rf'do not fit(.|\n)*\b{named}\b'):
    _fit(tiny.vit(**source), tiny.vit(**target))


@pytest.mark.parametrize('options', [*KINDS[:3], MEAN], ids=str)
def test_arrays_show_their_tokens_and_norm(options):
  model = tiny.vit(**options)
  arrays = tiny.flat(tiny.params(model, (12, 12)))
  found, size = inference.infer_model(arrays)
  assert (found, size) == (model, (12, 12))


# What does not go together ---------------------------------------------------


@pytest.mark.parametrize(
  'options, named',
  [
    ({'attention': 'axial', 'pooling': 'gap', 'registers': 1}, 'registers'),
    ({'position_embedding': 'relative', 'registers': 1}, "'relative'"),
    (DISTILLED | {'pooling': 'gap'}, "not 'gap'"),
    (DISTILLED | {'representation_size': 8}, 'representation_size=8'),
    (DISTILLED | {'final_norm': 'pooled'}, 'final_norm="pooled"'),
    ({'final_norm': 'pooled', 'norm_position': 'post'}, 'norm_position="post"'),
    ({'image_mean': (0.5,) * 3}, 'image_std=None belong together'),
    (MEAN | {'pooling': 'token_gap'}, 'twice as wide'),
    ({'position_grid': 2, 'position_embedding': 'none'}, r'\(2, 2\)'),
  ],
)
def test_options_that_do_not_go_together(options, named):
  with pytest.raises(ValueError, match=named):
    tiny.vit(**options)


def test_a_mean_is_for_images_of_as_many_channels():
  model = tiny.vit(**STATISTICS)
  with pytest.raises(ValueError, match='images of 1 channels'):
    model.init(jax.random.key(0), IMAGES[..., :1])


@pytest.mark.parametrize('options', [MEAN, {'distillation_token': True}])
def test_masked_patch_prediction_trains_no_such_layer(options):
  config = config_lib.default()
  config.loss = config_lib.masked_patch()
  (name,) = options.keys() - {'pooling'}
  with pytest.raises(ValueError, match=f'model.{name}=.*not trained'):
    masked_patch.build(config, tiny.vit(**options))


@pytest.mark.parametrize('options', KINDS, ids=str)
def test_the_first_layout_of_others_does_not_hold_them(options):
  with pytest.raises(ValueError, match=next(iter(options))):
    families.check('vit', tiny.vit(**options), has_head=True)
