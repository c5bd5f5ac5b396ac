"""Guards the models by name: sizes, options, what is refused, a user's own.

Expected counts are the published ones, where there are any.
"""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.interop import inference
from vit_jax.models import layers, position, variants
from vit_jax.training import step as step_lib


def _count(model, size=224):
  images = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)['params']
  return sum(a.size for a in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
  'name, overrides, count',
  [
    ('ViT-Ti/16', {}, 5_717_416),
    ('ViT-B/16', {}, 86_567_656),
    ('ViT-H/14', {}, 632_045_800),
    ('ViT-B/16', {'pooling': 'gap'}, 86_566_120),
    ('R50+ViT-B/16', {}, 98_659_112),
    ('R26+S/32', {}, 36_431_912),
    ('R+Ti/16', {}, 6_337_704),
    # Those of timm's vit_giant_patch14_224, vit_gigantic_patch14_224 and
    # vit_so400m_patch14_siglip_224, with 1000 classes.
    ('ViT-g/14', {}, 1_012_611_432),
    ('ViT-G/14', {}, 1_844_440_680),
    ('ViT-So400m/14', {'pooling': 'map'}, 428_833_704),
    # Blocks; patches, class token, positions and last norm; head.
    (
      'ViT-M/16',
      {},
      12 * (12 * 512**2 + 13 * 512) + (769 + 1 + 197 + 2) * 512 + 513_000,
    ),
    # A ViT-B/16 with GAP, and with each block doubled.
    ('Axial-ViT-B/16', {}, 86_566_120 + 12 * 7_087_872),
  ],
)
def test_parameter_counts_at_224_px(name, overrides, count):
  # One block is traced instead of all.
  model = models.build(name, num_classes=1000, scan=True, **overrides)
  assert _count(model) == count


def _bit_count(model):
  """Returns a BiT's parameter count, without the head."""
  root = channels = int(64 * model.width_factor)
  count = 7 * 7 * 3 * root
  for stage, units in enumerate(model.blocks):
    f = root * 2**stage
    count += channels * 4 * f
    for _ in range(units):
      count += 2 * channels + channels * f + 9 * f * f + 4 * f + 4 * f * f
      channels = 4 * f
  return count + 2 * channels


def test_parameter_counts_of_bit():
  # A shallow model is traced, and its sum is that of the deep ones.
  small = models.build('BiT-R50x3', num_classes=5, blocks=(1, 2))
  assert _count(small, 32) == _bit_count(small) + (1536 + 1) * 5
  for name, count in {
    'BiT-R50x1': 23_500_352,
    'BiT-R50x2': 93_891_712,
    'BiT-R50x3': 211_174_080,
    'BiT-R101x1': 42_492_480,
    'BiT-R152x1': 58_136_128,
    'BiT-R152x2': 232_238_208,
    'BiT-R152x4': 928_340_224,
    'BiT-R200x3': 562_488_000,
  }.items():
    assert _bit_count(models.build(name, num_classes=5)) == count


def test_a_model_shows_its_attributes():
  shown = repr(models.build('ViT-B/16', num_classes=7, width=48))
  for text in ('num_classes = 7', 'width = 48', 'depth = 12', "remat = 'none'"):
    assert text in shown


def test_overrides_replace_the_variants_values():
  model = models.build(
    'ViT-B/16', num_classes=2, width=48, depth=None, patch_size=(8, 4)
  )
  assert (model.width, model.depth, model.patch_size) == (48, 12, (8, 4))
  for side in (2, (2,), [2, 2]):
    model = models.build('ViT-L/7', num_classes=2, patch_size=side)
    assert model.patch_size == (2, 2)
  rate = np.float32(0.5)  # NumPy's numbers are as good.
  model = models.build(
    'ViT-B/16', num_classes=2, representation_size=-1, dropout_rate=rate
  )
  assert (model.representation_size, model.dropout_rate) == (768, rate)


def test_a_command_line_gives_names_and_options():
  model = models.parse(
    'ViT-S/16:patch_size=(1200, 4),gelu=exact,norm_epsilon=1e-3,scan=True',
    num_classes=7,
    gelu='tanh',
    depth=3,
  )
  options = {'gelu': 'exact', 'norm_epsilon': 1e-3, 'scan': True, 'depth': 3}
  assert model == models.build(
    'ViT-S/16', num_classes=7, patch_size=(1200, 4), **options
  )
  for spec, message in (
    ('ViT-S/16:remat', r"^ViT-S/16:remat: expected KEY=VALUE, got 'remat'"),
    ('ViT-S/16:num_classes=3', 'num_classes is no option here'),
  ):
    with pytest.raises(ValueError, match=message):
      models.parse(spec, num_classes=7)


@pytest.mark.parametrize('name', ['ViT-X/16', 'ViT-B/0', 'R50+ViT-B/8'])
def test_unknown_names_list_the_choices(name):
  with pytest.raises(ValueError, match='Unknown model') as error:
    models.build(name, num_classes=2)
  assert repr(name) in str(error.value)
  assert ', '.join(models.names()) in str(error.value)
  assert re.search('ViT-SIZE/PATCH.*Ti, S, b, B, L', str(error.value))


@pytest.mark.parametrize(
  'overrides, named',
  [
    ({'widht': 3}, 'widht; its options are attention'),
    ({'width': 30, 'heads': 4}, 'width 30 .* heads 4'),
    ({'num_classes': 0}, r'num_classes is 0.* \[1, '),
    ({'depth': 'x'}, r"depth is 'x'.* \[1, 1000\]"),
    # A file may claim any size.
    ({'depth': 10**9}, 'depth is 1000000000, '),
    ({'width': 2**30}, 'width is 1073741824, '),
    ({'resnet_blocks': (10**9,)}, r'resnet_blocks is .* \[1, 1000\]'),
    ({'resnet_blocks': (1,) * 17}, 'resnet_blocks is .* 16 '),
    # Other types.
    ({'resnet_blocks': ''}, "resnet_blocks is '', expected"),
    ({'resnet_blocks': {}}, 'resnet_blocks is {}, expected'),
    ({'patch_size': '44'}, "patch_size is '44', expected"),
    ({'depth': True}, 'depth is True, expected'),
    ({'width': 3.5}, 'width is 3.5, expected a whole number'),
    ({'dropout_rate': False}, 'dropout_rate is False, expected'),
    ({'name': 'BiT-R50x1', 'width_factor': True}, 'width_factor is True'),
    ({'head_bias': True}, 'head_bias is True, expected a finite'),
    ({'head_bias': 'x'}, "head_bias is 'x', expected a finite"),
    ({'norm_epsilon': 0}, r'norm_epsilon is 0, .* \(0, 1\)'),
    ({'position_stddev': -1}, 'position_stddev is -1, '),
    ({'patch_size': (4, 0)}, r'patch_size is \(4, 0\).* a side or'),
    ({'dropout_rate': 1.0}, r'dropout_rate is 1.0.* \[0, 1\)'),
    ({'stochastic_depth': -0.1}, 'stochastic_depth is -0.1'),
    ({'pooling': 'max'}, "pooling is 'max'.*'token', 'gap', 'map'"),
    ({'qk_norm': 'x'}, "qk_norm is 'x'.*False, True"),
    ({'dtype': 'float16'}, "dtype is 'float16'.* bfloat16"),
    (
      {'name': 'BiT-R50x1', 'remat': 'some'},
      "remat is 'some'.*'dots'",
    ),
    ({'attention': 'axial'}, 'class token .* pooling to "gap"'),
    (
      {'norm_position': 'post', 'parallel': True},
      r'parallel=True .*"post".*choose one',
    ),
    (
      {'position_embedding': 'none', 'position_site': 'every_layer'},
      'position_site=\'every_layer\' .* "stem"',
    ),
    (
      {'position_embedding': 'sincos2d', 'position_site': 'every_layer'},
      'fixed.* position_site="every_layer_shared"',
    ),
    (
      {'position_embedding': '2d', 'width': 15, 'heads': 1},
      'width is 15, expected an even',
    ),
    (
      {'position_embedding': 'sincos2d', 'width': 18, 'heads': 1},
      'width is 18, expected a multiple of 4',
    ),
    (
      {'position_embedding': 'sincos2d', 'width': 4, 'heads': 1},
      'width is 4, expected .* at least 8',
    ),
    ({'norm': 'batch'}, "norm is 'batch'.*'layer', 'rms'"),
    ({'rotary_base': 0.5}, r'rotary_base is 0.5.* \[1, '),
    (
      {'rotary': 'axial', 'position_embedding': 'relative'},
      "'axial' .*'relative' .* position_embedding=\"1d\"",
    ),
    ({'rotary': 'mixed', 'width': 36, 'heads': 6}, '36 / heads 6 .*of 4'),
    ({'rotary_base': 100}, 'rotary_base=100 .*without rotary'),
    (
      {'rotary': 'mixed', 'rotary_registers': 100},
      "rotary_registers=100 .*'mixed'.* unset",
    ),
    *(
      (
        {'rotary': 'axial', 'rotary_registers': 100, 'registers': count},
        f'registers={count} to 1, 4',
      )
      for count in (0, 3)
    ),
    ({'resnet_blocks': (3, 0)}, r'resnet_blocks is \(3, 0\)'),
    ({'name': 'BiT-R50x1', 'blocks': ()}, r'blocks is \(\), expected'),
    (
      {'name': 'BiT-R50x1', 'width_factor': 1 / 64},
      'width_factor is 0.0156.* of 1/32',
    ),
    ({'name': 'AxialResNet50', 'heads': 0}, r'heads is 0.* \[1, '),
  ],
)
def test_bad_options_are_named(overrides, named):
  with pytest.raises(ValueError, match=named):
    models.build(**{'name': 'ViT-B/16', 'num_classes': 2} | overrides)


# A model of the user's, as docs/extend.md says -------------------------------


class Own(nn.Module):
  num_classes: int
  features: int = 4
  dtype: str = 'float32'
  remat: str = 'none'
  head_bias: float = 0.0
  fault: str = ''

  @nn.compact
  def __call__(self, images, *, train):
    x = nn.Dense(self.features)(images).mean((1, 2))
    if self.fault == 'batch_stats':
      x = nn.BatchNorm(use_running_average=not train)(x)
    name = 'classes' if self.fault == 'head' else 'head'
    logits = nn.Dense(self.num_classes, name=name)(x)
    return logits if self.fault == 'logits, out' else (logits, {})


@pytest.fixture
def added(monkeypatch):
  own = variants.Family(
    *('Own-N', r'Own-(\d+)', Own, lambda n: {'features': int(n)}, ('Own-4',))
  )
  monkeypatch.setattr(variants, 'FAMILIES', (*variants.FAMILIES, own))


@pytest.mark.parametrize(
  'name, overrides',
  [('ViT-B/16', {}), ('BiT-R50x1', {}), ('Own-4', {'features': 8})],
)
def test_a_model_is_described_without_those_of_other_families(
  added, name, overrides
):
  model = models.build(name, num_classes=2, **overrides)
  assert inference.describe(model) == (name, overrides)


def test_a_vits_description_starts_with_its_sizes():
  overrides = {'gelu': 'exact', 'depth': 2, 'width': 24}
  model = models.build('ViT-B/16', num_classes=2, **overrides)
  _, described = inference.describe(model)
  assert list(described) == ['width', 'depth', 'gelu']


def test_what_a_model_lacks_is_not_asked_of_it(added):
  model = models.build('Own-8', num_classes=2)
  assert layers.names(model) == ['pre_logits', 'logits']
  assert position.grid_of(model, (8, 8)) is None
  params = step_lib.init_params(model, jax.random.key(0), (8, 8, 1))
  images = jax.numpy.zeros((2, 8, 8, 1), 'uint8')
  assert layers.represent(model, params, images, 'logits').shape == (2, 2)
  with pytest.raises(ValueError, match='expected pre_logits'):
    layers.represent(model, params, images)


@pytest.mark.parametrize('fault', ['batch_stats', 'head', 'logits, out'])
def test_a_module_that_cannot_be_trained_is_refused(fault):
  with pytest.raises(ValueError, match=fault):
    step_lib.init_params(Own(2, fault=fault), jax.random.key(0), (8, 8, 1))


@pytest.mark.gate
@pytest.mark.parametrize(
  'name, sizes',
  [
    ('BiT-R50x1', {'blocks': (1, 1), 'width_factor': 0.25}),
    ('AxialResNet50', {'blocks': (1, 1)}),
    ('ViT-Ti/16', {'depth': 1, 'width': 16, 'heads': 2, 'mlp_dim': 24}),
  ],
)
def test_derivatives_of_forward_mode_are_those_of_reverse_mode(name, sizes):
  model = models.build(name, num_classes=2, **sizes)
  draw = np.random.default_rng(1).uniform
  images, direction = (jnp.float32(draw(-1, 1, (2, 32, 32, 3))) for _ in 'ab')

  @jax.jit
  def derivatives(images, direction):
    params = model.init(jax.random.key(0), images)['params']

    def loss(images):
      return (model.apply({'params': params}, images)[1]['encoded'] ** 3).sum()

    _, forward = jax.jvp(loss, (images,), (direction,))
    return forward, jnp.vdot(jax.grad(loss)(images), direction)

  forward, backward = derivatives(images, direction)
  np.testing.assert_allclose(forward, backward, rtol=1e-4)
