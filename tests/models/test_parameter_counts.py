"""Guards the names, options and parameter counts of the models.

Expected counts are the published ones, where there are any.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import position


def _shapes(name, num_classes=1000, **overrides):
  model = models.build(name, num_classes=num_classes, **overrides)
  images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  return jax.tree.leaves(
    jax.eval_shape(model.init, jax.random.key(0), images)['params']
  )


@pytest.mark.parametrize(
  'name, overrides, count',
  [
    ('ViT-Ti/16', {}, 5_717_416),
    ('ViT-S/16', {}, 22_050_664),
    ('ViT-S/32', {}, 22_878_952),
    ('ViT-b/32', {}, 22_878_952),
    ('ViT-B/8', {}, 86_576_872),
    ('ViT-B/16', {}, 86_567_656),
    ('ViT-B/32', {}, 88_224_232),
    ('ViT-L/16', {}, 304_326_632),
    ('ViT-L/32', {}, 306_535_400),
    ('ViT-H/14', {}, 632_045_800),
    ('ViT-S/16', {'pooling': 'gap'}, 22_049_896),
    ('ViT-B/16', {'pooling': 'gap'}, 86_566_120),
    ('ViT-B/16', {'representation_size': 0}, 86_567_656),
    ('R50+ViT-B/16', {}, 98_659_112),
    ('R50+ViT-L/32', {}, 328_994_856),
    ('R26+S/32', {}, 36_431_912),
    ('R26+B/32', {}, 101_383_976),
    ('R+Ti/16', {}, 6_337_704),
    # Two hybrids have no published count. Theirs is the ViT's plus the
    # ResNet's, adjusted for the patch embedding's input or output size.
    ('R50+ViT-B/32', {}, 88_224_232 + 23_508_032 - 768 * (3072 - 2048)),
    (
      'R50+ViT-L/16',
      {},
      98_659_112 - 86_567_656 + 304_326_632 + 256 * (1024 - 768),
    ),
    # The first summand is the count without the head. It is published, except
    # for R50x3 and R101x3.
    ('BiT-R50x1', {}, 23_500_352 + 2048 * 1000 + 1000),
    ('BiT-R50x2', {}, 93_891_712 + 4096 * 1000 + 1000),
    ('BiT-R50x3', {}, 211_174_080 + 6144 * 1000 + 1000),
    ('BiT-R101x1', {}, 42_492_480 + 2048 * 1000 + 1000),
    ('BiT-R101x3', {}, 381_789_888 + 6144 * 1000 + 1000),
    ('BiT-R152x1', {}, 58_136_128 + 2048 * 1000 + 1000),
    ('BiT-R152x2', {}, 232_238_208 + 4096 * 1000 + 1000),
    ('BiT-R152x4', {}, 928_340_224 + 8192 * 1000 + 1000),
    ('BiT-R200x3', {}, 562_488_000 + 6144 * 1000 + 1000),
    # A ViT-B/16 with GAP, and with each block doubled.
    ('Axial-ViT-B/16', {}, 86_566_120 + 12 * 7_087_872),
  ],
)
def test_parameter_counts_at_224_px(name, overrides, count):
  assert sum(a.size for a in _shapes(name, **overrides)) == count


def test_parameter_counts_with_the_imagenet_21k_head():
  shapes = _shapes('ViT-B/16', num_classes=21_843, representation_size=768)
  assert sum(a.size for a in shapes) == 103_186_515
  assert len(shapes) == 202


# The counts above do not depend on the number of heads, so a separate test
# checks it.
@pytest.mark.parametrize(
  'size, heads',
  [('Ti', 3), ('S', 6), ('b', 6), ('B', 12), ('L', 16), ('H', 16)],
)
def test_heads(size, heads):
  assert models.build(f'ViT-{size}/16', num_classes=2).heads == heads


# Shallow members of the families, because the full models take too long.
@pytest.mark.parametrize(
  'name, overrides',
  [
    ('ViT-Ti/16', {'depth': 1}),
    ('R50+ViT-Ti/16', {'depth': 1, 'resnet_blocks': (1, 1, 1)}),
    ('R+Ti/16', {'depth': 1}),
    ('BiT-R50x1', {'blocks': (1, 1, 1, 1)}),
    ('Axial-ViT-Ti/32', {'depth': 1}),
    ('AxialResNet50', {'blocks': (1, 1, 1, 1)}),
  ],
)
def test_each_family_computes(name, overrides):
  model = models.build(name, num_classes=3, **overrides)
  images = np.random.default_rng(0).uniform(-1, 1, (1, 32, 96, 3))
  (logits, out), _ = jax.jit(model.init_with_output)(
    jax.random.key(0), images.astype(np.float32)
  )
  assert logits.tolist() == [[0, 0, 0]]  # The head is zero.
  for array in out.values():
    assert np.isfinite(array).all()
    assert np.std(array) > 1e-3


@pytest.mark.parametrize('name', models.names())
@pytest.mark.parametrize('image_size', [(224, 224), (96, 160)])
def test_every_listed_model_runs(name, image_size):
  model = models.build(name, num_classes=3)
  images = jax.ShapeDtypeStruct((2, *image_size, 3), jnp.float32)
  (logits, out), variables = jax.eval_shape(
    lambda x: model.init_with_output(jax.random.key(0), x), images
  )
  assert logits.shape == (2, 3)
  assert out['pre_logits'].shape == (
    2,
    variables['params']['head']['kernel'].shape[0],
  )
  grid = position.grid_of(model, image_size)
  if grid is not None:
    prefix = 'cls' in variables['params']
    assert out['encoded'].shape[1] == prefix + grid[0] * grid[1]


def test_overrides_replace_the_variants_values():
  model = models.build(
    'ViT-B/16', num_classes=2, width=48, depth=None, patch_size=(8, 4)
  )
  assert (model.width, model.depth, model.patch_size) == (48, 12, (8, 4))
  assert models.build('ViT-L/7', num_classes=2).patch_size == (7, 7)
  for side in (2, (2,), [2, 2]):
    model = models.build('ViT-L/7', num_classes=2, patch_size=side)
    assert model.patch_size == (2, 2)
  model = models.build('ViT-B/16', num_classes=2, representation_size=-1)
  assert model.representation_size == 768


def test_dtype_is_a_name_or_a_type():
  for dtype in ('bfloat16', jnp.bfloat16, jnp.dtype('bfloat16')):
    model = models.build('ViT-B/16', num_classes=2, dtype=dtype)
    assert jnp.dtype(model.dtype) == jnp.bfloat16


@pytest.mark.parametrize(
  'name',
  [
    *('ViT-M/16', 'ViT-X/16', 'ViT-B/0', 'ViT-B', 'vit', 'ViT-B/16 '),
    *('R50+ViT-B/8', 'BiT-R51x1', 'R50x0'),
  ],
)
def test_unknown_names_list_the_choices(name):
  with pytest.raises(ValueError, match='Unknown model') as error:
    models.build(name, num_classes=2)
  assert repr(name) in str(error.value)
  assert ', '.join(models.names()) in str(error.value)
  assert re.search('ViT-SIZE/PATCH.*Ti, S, b, B, L', str(error.value))


def test_other_names_of_the_same_model():
  for other, name in (
    ('R50x1', 'BiT-R50x1'),
    ('R50+B/16', 'R50+ViT-B/16'),
    ('R+ViT-Ti/16', 'R+Ti/16'),
  ):
    assert models.build(other, num_classes=2) == models.build(
      name, num_classes=2
    )


@pytest.mark.parametrize(
  'overrides, message',
  [
    ({'widht': 3}, 'no option widht; its options are attention, attention_'),
    ({'width': 30, 'heads': 4}, 'width 30 is not a multiple of heads 4'),
    ({'num_classes': 0}, 'num_classes is 0, expected at least 1'),
    ({'depth': 0}, 'depth is 0, expected at least 1'),
    ({'depth': 'x'}, "depth is 'x', expected at least 1"),
    ({'width': 2.5}, 'width is 2.5, expected at least 1'),
    ({'patch_size': ('4', 4)}, 'expected a side or'),
    ({'representation_size': -2}, 'representation_size is -2'),
    ({'patch_size': (4, 0)}, r'patch_size is \(4, 0\), expected a side or'),
    ({'patch_size': (4, 4, 4)}, r'patch_size is \(4, 4, 4\), .* at least 1'),
    ({'dropout_rate': 1.0}, r'dropout_rate is 1.0, expected 0 <= rate < 1'),
    ({'pooling': 'max'}, "pooling is 'max', expected one of token, gap, map"),
    (
      {'attention': 'axial'},
      'a class token has no place: set pooling to "gap"',
    ),
    ({'position_embedding': '3d'}, "is '3d', expected one of none, 1d, 2d"),
    (
      {'position_embedding': 'none', 'position_site': 'every_layer'},
      "position_embedding='none' adds none",
    ),
    (
      {'position_embedding': 'sincos2d', 'position_site': 'every_layer'},
      'use position_site="every_layer_shared"',
    ),
    (
      {'position_embedding': '2d', 'width': 3, 'heads': 1},
      'width is 3, expected an even one',
    ),
    (
      {'position_embedding': 'sincos2d', 'width': 4, 'heads': 1},
      'width is 4, expected a multiple of 4, at least 8',
    ),
    ({'resnet_blocks': (3, 0)}, r'resnet_blocks is \(3, 0\), expected the num'),
    ({'resnet_width': 0}, r'resnet_width is 0: .*expected an even'),
    ({'qk_norm': 'x'}, "qk_norm is 'x', expected one of False, True"),
    ({'norm_epsilon': 0.0}, 'norm_epsilon is 0.0, expected 0 < eps'),
    ({'norm_epsilon': float('inf')}, 'norm_epsilon is inf'),
    ({'norm_epsilon': 'x'}, "norm_epsilon is 'x', expected 0 < eps"),
    ({'dropout_rate': 'x'}, "dropout_rate is 'x', expected 0 <= rate"),
    ({'head_bias': 'x'}, "head_bias is 'x', expected a number"),
    ({'resnet_blocks': 3}, 'resnet_blocks is 3, expected the number'),
    ({'patch_size': 'ab'}, "patch_size is 'ab', expected a side or"),
    ({'gelu': 'erf'}, "gelu is 'erf', expected one of tanh, exact"),
    ({'remat': 'some'}, "remat is 'some', expected one of none, full, dots"),
    ({'dtype': jnp.float16}, "dtype is 'float16', expected one of"),
    ({'dtype': 'fp8'}, "dtype is 'fp8', expected one of float32, bfloat16"),
  ],
)
def test_bad_options_are_named(overrides, message):
  with pytest.raises(ValueError, match=message):
    models.build('ViT-B/16', **{'num_classes': 2, **overrides})


@pytest.mark.parametrize(
  'overrides, message',
  [
    ({'width': 3}, 'no option width; its options are blocks, dtype, head_bias'),
    ({'blocks': ()}, 'blocks is empty, expected at least one stage'),
    ({'blocks': (3, -1)}, r'blocks is \(3, -1\), expected the number of units'),
    ({'width_factor': 0}, r'width_factor is 0: .*multiple of 1/32'),
    ({'width_factor': 0.3}, r'0.3 gives 19.2 channels in the root, expected'),
    ({'width_factor': 1 / 64}, r'gives 1 channels in the root'),
    ({'remat': 'some'}, "remat is 'some', expected one of none, full, dots"),
  ],
)
def test_bad_options_of_a_resnet_are_named(overrides, message):
  with pytest.raises(ValueError, match=message):
    models.build('BiT-R50x1', **{'num_classes': 2, **overrides})
