"""Names, sizes and options of the models, against the published counts."""

import jax
import jax.numpy as jnp
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
  ],
)
def test_parameter_counts_at_224_px(name, overrides, count):
  assert sum(a.size for a in _shapes(name, **overrides)) == count


def test_parameter_counts_with_the_imagenet_21k_head():
  shapes = _shapes('ViT-B/16', num_classes=21_843, representation_size=768)
  assert sum(a.size for a in shapes) == 103_186_515
  assert len(shapes) == 202


# The counts above do not depend on the number of heads.
@pytest.mark.parametrize(
  'size, heads',
  [('Ti', 3), ('S', 6), ('b', 6), ('B', 12), ('L', 16), ('H', 16)],
)
def test_heads(size, heads):
  assert models.build(f'ViT-{size}/16', num_classes=2).heads == heads


def test_every_listed_name_builds():
  assert 'ViT-B/16' in models.names()
  for name in models.names():
    models.build(name, num_classes=2)


def test_overrides_replace_the_variants_values():
  model = models.build(
    'ViT-B/16', num_classes=2, width=48, depth=None, patch_size=(8, 4)
  )
  assert (model.width, model.depth, model.patch_size) == (48, 12, (8, 4))
  assert models.build('ViT-L/7', num_classes=2).patch_size == (7, 7)


def test_dtype_is_a_name_or_a_type():
  for dtype in ('bfloat16', jnp.bfloat16, jnp.dtype('bfloat16')):
    model = models.build('ViT-B/16', num_classes=2, dtype=dtype)
    assert jnp.dtype(model.dtype) == jnp.bfloat16


@pytest.mark.parametrize('name', ['ViT-M/16', 'ViT-B/0', 'ViT-B', 'vit'])
def test_unknown_names_list_the_choices(name):
  with pytest.raises(
    ValueError,
    match=f"Unknown model '{name}'. .*ViT-H/14.*ViT-SIZE/PATCH.*Ti, S, b, B, L",
  ):
    models.build(name, num_classes=2)


@pytest.mark.parametrize(
  'name',
  [
    'R50x1',
    'BiT-R50x1',
    'R50+ViT-B/32',
    'R+Ti/16',
    'R26+S/32',
    'Axial-ViT-B/16',
    'AxialResNet50',
  ],
)
def test_absent_families_say_so(name):
  with pytest.raises(ValueError, match=r'not available yet.*Available: ViT-Ti'):
    models.build(name, num_classes=2)


@pytest.mark.parametrize(
  'overrides, message',
  [
    ({'widht': 3}, 'no option widht; its options are depth, dropout_rate, dty'),
    ({'width': 30, 'heads': 4}, 'width 30 is not a multiple of heads 4'),
    ({'num_classes': 0}, 'num_classes is 0, expected at least 1'),
    ({'depth': 0}, 'depth is 0, expected at least 1'),
    ({'representation_size': -1}, 'representation_size is -1'),
    ({'patch_size': (4, 0)}, r'patch_size is \(4, 0\), expected a side or'),
    ({'patch_size': (4,)}, r'patch_size is \(4,\), .* each at least 1'),
    ({'dropout_rate': 1.0}, r'dropout_rate is 1.0, expected 0 <= rate < 1'),
    ({'pooling': 'map'}, "pooling is 'map', expected one of token, gap"),
    ({'remat': 'some'}, "remat is 'some', expected one of none, full, dots"),
    ({'dtype': jnp.float16}, "dtype is 'float16', expected one of"),
    ({'dtype': 'fp8'}, "dtype is 'fp8', expected one of float32, bfloat16"),
  ],
)
def test_bad_options_are_named(overrides, message):
  with pytest.raises(ValueError, match=message):
    models.build('ViT-B/16', **{'num_classes': 2, **overrides})
