"""Guards the names, options and parameter counts of the models.

Expected counts are the published ones, where there are any.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models


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
    ('ViT-S/32', {}, 22_878_952),
    ('ViT-B/16', {}, 86_567_656),
    ('ViT-L/16', {}, 304_326_632),
    ('ViT-H/14', {}, 632_045_800),
    ('ViT-B/16', {'pooling': 'gap'}, 86_566_120),
    ('R50+ViT-B/16', {}, 98_659_112),
    ('R50+ViT-L/32', {}, 328_994_856),
    ('R26+S/32', {}, 36_431_912),
    ('R+Ti/16', {}, 6_337_704),
    # It has no published count. It is the ViT's plus the ResNet's, adjusted for
    # the patch embedding's output size.
    (
      'R50+ViT-L/16',
      {},
      98_659_112 - 86_567_656 + 304_326_632 + 256 * (1024 - 768),
    ),
    # The first summand is the published count without the head.
    ('BiT-R50x1', {}, 23_500_352 + 2048 * 1000 + 1000),
    ('BiT-R101x1', {}, 42_492_480 + 2048 * 1000 + 1000),
    ('BiT-R152x4', {}, 928_340_224 + 8192 * 1000 + 1000),
    ('BiT-R200x3', {}, 562_488_000 + 6144 * 1000 + 1000),
    # A ViT-B/16 with GAP, and with each block doubled.
    ('Axial-ViT-B/16', {}, 86_566_120 + 12 * 7_087_872),
  ],
)
def test_parameter_counts_at_224_px(name, overrides, count):
  assert sum(a.size for a in _shapes(name, **overrides)) == count


# Shallow members of the families, because the full models take too long.
@pytest.mark.gate
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


@pytest.mark.parametrize(
  'name, overrides, named',
  [
    ('ViT-B/16', {'widht': 3}, 'widht; its options are attention'),
    ('ViT-B/16', {'width': 30, 'heads': 4}, 'width 30 .* heads 4'),
    ('ViT-B/16', {'num_classes': 0}, 'num_classes is 0.* at least 1'),
    ('ViT-B/16', {'depth': 'x'}, "depth is 'x'.* at least 1"),
    ('ViT-B/16', {'width': 10**9}, 'width is 10.* at most '),
    ('ViT-B/16', {'representation_size': -2}, 'representation_size is -2'),
    ('ViT-B/16', {'patch_size': (4, 0)}, r'patch_size is \(4, 0\).* a side or'),
    ('ViT-B/16', {'patch_size': 'ab'}, "patch_size is 'ab'.* a side or"),
    ('ViT-B/16', {'dropout_rate': 1.0}, 'dropout_rate is 1.0.* rate < 1'),
    ('ViT-B/16', {'stochastic_depth': -0.1}, 'stochastic_depth is -0.1'),
    ('ViT-B/16', {'norm_epsilon': float('inf')}, 'norm_epsilon is inf'),
    ('ViT-B/16', {'head_bias': 10**400}, 'head_bias is 10*, expected a number'),
    ('ViT-B/16', {'head_bias': True}, 'head_bias is True, expected a number'),
    ('ViT-B/16', {'dropout_rate': False}, 'dropout_rate is False'),
    ('ViT-B/16', {'head_bias': 'x'}, "head_bias is 'x'.* a number"),
    ('ViT-B/16', {'pooling': 'max'}, "pooling is 'max'.* token, gap, map"),
    ('ViT-B/16', {'qk_norm': 'x'}, "qk_norm is 'x'.* False, True"),
    ('ViT-B/16', {'dtype': jnp.float16}, "dtype is 'float16'.* bfloat16"),
    ('ViT-B/16', {'attention': 'axial'}, 'class token .* pooling to "gap"'),
    (
      'ViT-B/16',
      {'position_embedding': 'none', 'position_site': 'every_layer'},
      'position_site=\'every_layer\' .* "stem"',
    ),
    (
      'ViT-B/16',
      {'position_embedding': 'sincos2d', 'position_site': 'every_layer'},
      'position_site="every_layer_shared"',
    ),
    (
      'ViT-B/16',
      {'position_embedding': '2d', 'width': 3, 'heads': 1},
      'width is 3.* even',
    ),
    ('R50+ViT-B/16', {'resnet_blocks': (3, 0)}, r'resnet_blocks is \(3, 0\)'),
    ('BiT-R50x1', {'blocks': ()}, r'blocks is \(\), expected'),
    ('BiT-R50x1', {'width_factor': 0.3}, 'width_factor is 0.3.* of 1/32'),
    ('BiT-R50x1', {'width_factor': 1 / 64}, 'width_factor is 0.0156.* of 1/32'),
    ('AxialResNet50', {'heads': 0}, 'heads is 0.* at least 1'),
  ],
)
def test_bad_options_are_named(name, overrides, named):
  with pytest.raises(ValueError, match=named):
    models.build(name, **{'num_classes': 2, **overrides})
