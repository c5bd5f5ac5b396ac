"""Guards: stochastic depth is as defined, on all code paths."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from tests.training import test_step
from vit_jax import models, sharding
from vit_jax.models import axial_resnet, bit, dropout, resnet
from vit_jax.models.dropout import depth_rates
from vit_jax.training import gradients

DEPTH, LAST = 3, 0.6
RATES = (0.0, 0.3, 0.6)
SIZE = (8, 12)
# Ways to compute a model.
OPTIONS = [
  {},
  {'scan': True},
  {'remat': 'full'},
  {'remat': 'dots', 'scan': True},
  {'position_site': 'every_layer_shared', 'scan': True},
  {'parallel': True},
  {'parallel': True, 'scan': True},
  {'attention_implementation': 'lanes'},
  {'attention_implementation': 'cudnn'},
  {'pooling': 'gap', 'attention': 'axial'},
  {'resnet_blocks': (1,), 'patch_size': 1, 'resnet_width': 0.25},
]


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
  """Replaces cuDNN's kernel, which needs a GPU."""
  plain = jax.nn.dot_product_attention

  def kernel(query, key, value, *, implementation, **options):
    del implementation
    return plain(query, key, value, implementation='xla', **options)

  monkeypatch.setattr(jax.nn, 'dot_product_attention', kernel)


def _model(**options):
  options = {'depth': DEPTH, 'stochastic_depth': LAST} | options
  return tiny.vit(**options)


def _images(rows, model, seed=0):
  height, width = SIZE
  if getattr(model, 'resnet_blocks', None) is not None:
    height, width = 4 * height, 4 * width
  shape = (rows, height, width, 3)
  return np.random.default_rng(seed).uniform(-1, 1, shape).astype('f')


def _train(model, params, images, key=0, **options):
  @jax.jit
  def apply(params, images, key):
    return model.apply(
      {'params': params}, images, train=True, rngs={'dropout': key}, **options
    )

  return apply(params, images, jax.random.key(key))


def _known(model):
  """Parameters with which `_factors` can read what each branch was times.

  Each branch adds 1 to a channel of its own. Channels 0 and 1 are 0 and 1.
  """
  params = tiny.params(model, _images(1, model).shape[1:3])
  params = jax.tree.map(np.zeros_like, params)
  params['Transformer']['posembed_input']['pos_embedding'][..., 1] = 1
  norm = params['Transformer']['encoder_norm']
  norm['scale'] += 1
  stack = params['Transformer'].get('encoderblock')
  channel = 2
  for i in range(model.depth):
    blocks = [stack or params['Transformer'][f'encoderblock_{i}']]
    if model.attention == 'axial':
      blocks = [blocks[0]['row'], blocks[0]['column']]
    for block in blocks:
      for bias in (
        block['MultiHeadDotProductAttention_0']['out']['bias'],
        block['MlpBlock_0']['Dense_1']['bias'],
      ):
        bias[(i, channel) if stack else channel] = 1
        channel += 1
  return params


def _factors(model, rows, key=0):
  """Returns what the branches were multiplied by: [branches, rows]."""
  branches = 2 * model.depth * (2 if model.attention == 'axial' else 1)
  images = _images(rows, model)
  _, out = _train(model, _known(model), images, key)
  normed = np.float64(out['encoded'])  # (x - mean) / deviation
  # Every token has the same factors.
  np.testing.assert_allclose(normed, normed[:, :1].repeat(normed.shape[1], 1))
  normed = normed[:, 0].T
  found = (normed - normed[0]) / (normed[1] - normed[0])
  if model.position_site == 'every_layer_shared':
    found *= model.depth  # Channel 1 has it once for each layer.
  np.testing.assert_allclose(found[2 + branches :], 0, atol=1e-4)
  return found[2 : 2 + branches]


def _rates(model):
  repeats = 4 if model.attention == 'axial' else 2
  return np.repeat(RATES, repeats)


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_each_branch_is_left_out_at_its_rate_or_scaled(options):
  model, rows = _model(width=32, **options), 3000
  factors = _factors(model, rows)
  rates = _rates(model)
  left_out = np.abs(factors) < 1e-3
  expected = np.where(left_out, 0, 1 / (1 - rates[:, None]))
  np.testing.assert_allclose(factors, expected, rtol=1e-3, atol=1e-3)
  # Six standard deviations.
  deviations = np.sqrt(rates * (1 - rates) / rows)
  assert (np.abs(left_out.mean(1) - rates) <= 6 * deviations).all()
  assert not left_out[rates == 0].any()
  # So the mean is 1, which evaluations use.
  np.testing.assert_allclose(factors.mean(1), 1, atol=0.2)
  drawn = left_out[rates > 0]
  correlation = np.corrcoef(drawn) - np.eye(len(drawn))
  if model.parallel:  # Attention and MLP are one branch.
    np.testing.assert_array_equal(drawn[::2], drawn[1::2])
    correlation = np.corrcoef(drawn[::2]) - np.eye(len(drawn) // 2)
  assert np.abs(correlation).max() < 6 / rows**0.5
  # Rows are independent, too.
  assert abs(np.corrcoef(drawn[-1, 1:], drawn[-1, :-1])[0, 1]) < 6 / rows**0.5


def test_steps_have_other_masks():
  model = _model()
  first, again, second = (_factors(model, 64, key) for key in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert (np.abs(first - second) > 0.1).any()


def _numpy_block(x, params, factors, parallel):
  """Returns a block's output, float64; factors are [2, B]."""

  def norm(x, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * params[name]['scale'] + params[name]['bias']

  mha, mlp = params['MultiHeadDotProductAttention_0'], params['MlpBlock_0']
  y = norm(x, 'LayerNorm_0')
  query, key, value = (
    np.einsum('bld,dhk->blhk', y, mha[name]['kernel']) + mha[name]['bias']
    for name in ('query', 'key', 'value')
  )
  scores = np.einsum('bqhk,bthk->bhqt', query, key) / query.shape[-1] ** 0.5
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('bhqt,bthk->bqhk', weights, value)
  attended = np.einsum('bqhk,hkd->bqd', mixed, mha['out']['kernel'])
  x = x + factors[0, :, None, None] * (attended + mha['out']['bias'])
  if not parallel:
    y = norm(x, 'LayerNorm_1')
  hidden = y @ mlp['Dense_0']['kernel'] + mlp['Dense_0']['bias']
  hidden = np.float64(jax.nn.gelu(hidden))
  out = hidden @ mlp['Dense_1']['kernel'] + mlp['Dense_1']['bias']
  return x + factors[1, :, None, None] * out


@pytest.mark.parametrize(
  'options',
  [
    *({}, {'scan': True}, {'remat': 'dots'}, {'parallel': True}),
    *({'attention_implementation': name} for name in ('lanes', 'cudnn')),
  ],
  ids=str,
)
def test_the_encoder_is_that_of_numpy(options):
  model, rows = _model(**options), 6
  # Masks depend on the key only, so that known parameters show them.
  factors = _factors(model, rows).reshape(DEPTH, 2, rows)
  assert len(np.unique(factors.round(2))) > 3
  images = _images(rows, model)
  params = jax.tree.map(lambda a: 0.3 * a, tiny.params(model, SIZE))
  _, out = _train(model, params, images)
  if model.scan:
    params = models.unstack_blocks(params)
  blocks = jax.tree.map(np.float64, params['Transformer'])
  x = np.float64(out['embedded'])
  for i in range(DEPTH):
    x = _numpy_block(x, blocks[f'encoderblock_{i}'], factors[i], model.parallel)
  norm = blocks['encoder_norm']
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  np.testing.assert_allclose(
    out['encoded'], x * norm['scale'] + norm['bias'], rtol=1e-3, atol=1e-4
  )


def test_a_branch_left_out_has_no_gradient():
  model = _model(num_classes=2)
  params = tiny.params(model, SIZE)
  images = _images(1, model)
  # A key with which the only image leaves out one branch of the last block.
  key = next(
    key
    for key in range(50)
    if (_factors(model, 1, key)[4:, 0] > 0.1).tolist() == [False, True]
  )

  def loss(params):
    logits, _ = _train(model, params, images, key)
    return jnp.sum(logits**2)

  norms = jax.tree.map(
    lambda g: float(jnp.abs(g).max()), jax.grad(loss)(params)
  )
  last = norms['Transformer'][f'encoderblock_{DEPTH - 1}']
  left_out = tiny.flat(last.pop('MultiHeadDotProductAttention_0'))
  assert set(left_out.values()) == {0}
  assert set(last.pop('LayerNorm_0').values()) == {0}
  assert last['MlpBlock_0']['Dense_1']['kernel'] > 0
  assert norms['Transformer']['encoderblock_0']['LayerNorm_0']['scale'] > 0


@pytest.mark.parametrize(
  'name, options',
  [
    ('ViT-B/4', tiny.SIZES),
    ('ViT-B/4', tiny.SIZES | {'scan': True}),
    ('BiT-R50x1', tiny.BIT),
    ('AxialResNet50', {'blocks': (1, 1), 'width_factor': 0.5}),
  ],
)
def test_evaluations_and_a_rate_of_0_change_nothing(name, options):
  plain = models.build(name, num_classes=3, **options)
  model = models.build(name, num_classes=3, stochastic_depth=0.5, **options)
  none = models.build(name, num_classes=3, stochastic_depth=0.0, **options)
  images = _images(2, model)

  def init(model):
    return jax.make_jaxpr(model.init)(jax.random.key(0), images)

  assert str(init(model)) == str(init(none)) == str(init(plain))
  params = tiny.params(plain, SIZE)

  def program(model, train):
    return str(
      jax.make_jaxpr(
        lambda p: model.apply({'params': p}, images, train=train)[0]
      )(params)
    )

  evaluated = program(plain, False)
  assert program(model, False) == program(none, False) == evaluated
  # No random key is needed.
  assert program(none, True) == program(plain, True) == evaluated
  logits, _ = _train(model, params, images, key=1)
  assert (np.abs(logits - _train(plain, params, images)[0]).max(1) > 0).any()


def test_rates_grow_linearly_from_0():
  assert depth_rates(0.0, 3) == [None, None, None]
  assert depth_rates(0.5, 1) == [None]
  first, *others = depth_rates(0.1, 5)
  assert first is None
  np.testing.assert_allclose(others, [0.025, 0.05, 0.075, 0.1])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_values_and_dtype_of_a_branch(dtype):
  class Twice(nn.Module):
    @nn.compact
    def __call__(self, y):
      first = dropout.stochastic_depth(self, 0.25, len(y))
      second = dropout.stochastic_depth(self, 0.25, len(y))
      return first(y), first(y + 1), second(y)

  y = jnp.full((5000, 2, 3), 3, dtype)
  ones, twos, others = Twice().apply({}, y, rngs={'dropout': jax.random.key(0)})
  assert (ones.shape, ones.dtype) == (y.shape, dtype)
  kept = np.asarray(ones[:, 0, 0] > 0)
  np.testing.assert_allclose(
    np.float32(ones), np.where(kept, 4, 0)[:, None, None] + np.zeros(y.shape)
  )
  np.testing.assert_array_equal(twos > 0, ones > 0)
  assert abs(kept.mean() - 0.75) < 6 * (0.75 * 0.25 / 5000) ** 0.5
  assert (np.asarray(others[:, 0, 0] > 0) != kept).any()


# ResNets.


@pytest.mark.parametrize('projects', [False, True])
@pytest.mark.parametrize(
  'unit',
  [bit.PreActivationUnit, resnet.PostActivationUnit, axial_resnet.AxialUnit],
)
def test_units_leave_their_branch_out(unit, projects):
  module = unit(features=32, strides=2 if projects else 1)
  rows, rate = 32, 0.4
  # So far above 0 that the ReLU after a sum changes nothing.
  x = 50 + _noise((rows, 4, 6, 128))
  params = jax.jit(module.init)(jax.random.key(0), x)['params']
  params = jax.tree.map(lambda a: a + 0.1 * _noise(a.shape, 1), params)
  if 'gn_proj' in params:
    params['gn_proj']['bias'] += 50
  whole = np.asarray(module.apply({'params': params}, x))
  found = np.array(
    [
      module.apply(
        {'params': params}, x, rate, rngs={'dropout': jax.random.key(key)}
      )
      for key in range(8)
    ]
  )
  # A row has two results. The evaluation lies between them, at a share of 0.6.
  seen = 0
  for row in range(rows):
    results = np.unique(found[:, row].reshape(8, -1), axis=0)
    if len(results) == 1:  # The same in all trials.
      continue
    seen += 1
    expected = whole[row].ravel()
    assert np.abs(results[0] - results[1]).max() > 0.1
    skipped, _ = next(
      pair
      for pair in (results, results[::-1])
      if np.allclose(rate * pair[0] + (1 - rate) * pair[1], expected, atol=1e-3)
    )
    if not projects:
      np.testing.assert_allclose(skipped, x[row].ravel(), rtol=1e-5)
  assert seen > rows // 2


def _noise(shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype('f')


@pytest.mark.parametrize(
  'name, unit',
  [
    ('BiT-R50x1', bit.PreActivationUnit),
    ('AxialResNet50', axial_resnet.AxialUnit),
  ],
)
def test_rates_of_a_resnets_units(name, unit):
  model = models.build(
    name, num_classes=2, blocks=(1, 2, 2), width_factor=0.5
  ).clone(stochastic_depth=0.4)
  images = _images(2, model)
  found = []

  def note(call, args, kwargs, context):
    if isinstance(context.module, unit):
      found.append(args[1])
    return call(*args, **kwargs)

  for train in (False, True):
    variables = model.init(jax.random.key(0), images)
    with nn.intercept_methods(note):
      rngs = {'dropout': jax.random.key(0)}
      model.apply(variables, images, train=train, rngs=rngs)
  assert found[:6] == [None] * 6
  np.testing.assert_allclose(found[6:], [0.1, 0.2, 0.3, 0.4])


def test_a_hybrids_resnet_has_none():
  model = _model(**OPTIONS[-1])
  images = _images(4, model)
  params = tiny.params(model, images.shape[1:3])
  _, train = _train(model, params, images)
  _, plain = model.apply({'params': params}, images)
  np.testing.assert_allclose(
    train['features'], plain['features'], rtol=1e-4, atol=1e-5
  )
  assert np.abs(train['encoded'] - plain['encoded']).max() > 0.1


@pytest.mark.parametrize('remat', ['none', 'full'])
def test_remat_of_a_resnet_has_the_same_masks(remat):
  model = models.build('BiT-R50x1', num_classes=2, **tiny.BIT)
  model = model.clone(stochastic_depth=0.5, remat=remat)
  params, images = tiny.params(model, SIZE), _images(8, model)
  expected, _ = _train(model.clone(remat='none'), params, images)
  np.testing.assert_allclose(
    _train(model, params, images)[0], expected, rtol=1e-4, atol=1e-4
  )


# Training, and refusals.


@pytest.mark.parametrize(
  'options',
  [
    pytest.param({}, marks=pytest.mark.slow),
    *({'scan': True}, {'dropout_rate': 0.1}),
  ],
  ids=str,
)
def test_masks_do_not_depend_on_the_mesh(options):
  model = test_step._model(stochastic_depth=0.5, **options)
  one, _ = test_step._run(1, 3, model=model, accumulation_steps=2)
  eight, _ = test_step._run(8, 3, model=model, accumulation_steps=2)
  plain, _ = test_step._run(1, 3, model=model.clone(stochastic_depth=0.0))
  for a, b, other in zip(one, eight, plain, strict=True):
    np.testing.assert_allclose(b['loss'], a['loss'], rtol=1e-5)
    np.testing.assert_allclose(b['grad_norm'], a['grad_norm'], rtol=1e-4)
    assert abs(a['loss'] - other['loss']) > 1e-4


def test_partitions():
  def is_manual(rng, **options):
    layout = sharding.Layout(sharding.make_mesh(8))
    key = jax.random.key(0, impl=rng)
    model = test_step._model(**options)
    return layout.is_manual(gradients.has_global_masks(model, key))

  assert is_manual('threefry2x32')
  assert not is_manual('threefry2x32', stochastic_depth=0.1)
  assert is_manual('rbg', stochastic_depth=0.1)
  model = test_step._model(stochastic_depth=0.5)
  (metrics,), _ = test_step._run(8, 1, model=model, rng='rbg')
  assert np.isfinite(metrics['loss'])


@pytest.mark.parametrize('name', ['ViT-B/16', 'BiT-R50x1', 'AxialResNet50'])
@pytest.mark.parametrize('rate', [-0.1, 1.0, '0.1'])
def test_impossible_rates_are_refused(name, rate):
  with pytest.raises(ValueError, match=f'stochastic_depth is {rate!r}, expe'):
    models.build(name, num_classes=2, stochastic_depth=rate)
  assert 'stochastic_depth' in models.options(name)
