"""Guards: released files' names and shapes map to ours and back, one to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import models
from vit_jax.interop import released
from vit_jax.interop.parameter_shapes import placeholder

CLASSES = 21843


def _released_shapes(name, **overrides):
  """Maps a full-size model's released names to shapes; allocates no array."""
  model = models.build(name, num_classes=CLASSES, **overrides)
  images = jnp.zeros((1, 224, 224, 3))
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), images))
  outline = {
    k: placeholder(v.shape) for k, v in tiny.flat(shapes['params']).items()
  }
  arrays = released.to_released(outline)
  back = released.from_released(arrays)
  assert {k: v.shape for k, v in back.items()} == {
    k: v.shape for k, v in outline.items()
  }
  return {k: v.shape for k, v in arrays.items()}


def _count(shapes):
  return len(shapes), sum(int(np.prod(s)) for s in shapes.values())


BLOCK = {
  'LayerNorm_0/bias': (768,),
  'LayerNorm_0/scale': (768,),
  'LayerNorm_2/bias': (768,),
  'LayerNorm_2/scale': (768,),
  'MlpBlock_3/Dense_0/bias': (3072,),
  'MlpBlock_3/Dense_0/kernel': (768, 3072),
  'MlpBlock_3/Dense_1/bias': (768,),
  'MlpBlock_3/Dense_1/kernel': (3072, 768),
  'MultiHeadDotProductAttention_1/key/bias': (12, 64),
  'MultiHeadDotProductAttention_1/key/kernel': (768, 12, 64),
  'MultiHeadDotProductAttention_1/out/bias': (768,),
  'MultiHeadDotProductAttention_1/out/kernel': (12, 64, 768),
  'MultiHeadDotProductAttention_1/query/bias': (12, 64),
  'MultiHeadDotProductAttention_1/query/kernel': (768, 12, 64),
  'MultiHeadDotProductAttention_1/value/bias': (12, 64),
  'MultiHeadDotProductAttention_1/value/kernel': (768, 12, 64),
}
TRANSFORMER = {
  'Transformer/encoder_norm/bias': (768,),
  'Transformer/encoder_norm/scale': (768,),
  'Transformer/posembed_input/pos_embedding': (1, 197, 768),
  'cls': (1, 1, 768),
  'embedding/bias': (768,),
  'embedding/kernel': (16, 16, 3, 768),
  'head/bias': (21843,),
  'head/kernel': (768, 21843),
  'pre_logits/bias': (768,),
  'pre_logits/kernel': (768, 768),
} | {
  f'Transformer/encoderblock_{i}/{name}': shape
  for i in range(12)
  for name, shape in BLOCK.items()
}


def test_names_and_shapes_of_the_vit_file():
  shapes = _released_shapes('ViT-B/16', representation_size=768)
  assert shapes == TRANSFORMER
  assert _count(shapes) == (202, 103_186_515)


def test_names_and_shapes_of_the_hybrid_file():
  shapes = _released_shapes('R50+ViT-B/16', representation_size=768)
  assert _count(shapes) == (358, 115_277_971)
  resnet = {k: v for k, v in shapes.items() if k not in TRANSFORMER}
  assert shapes == (
    TRANSFORMER | {'embedding/kernel': (1, 1, 1024, 768)} | resnet
  )
  assert resnet['conv_root/kernel'] == (7, 7, 3, 64)
  assert resnet['gn_root/scale'] == (64,)
  assert resnet['block1/unit1/conv_proj/kernel'] == (1, 1, 64, 256)
  assert resnet['block1/unit1/gn_proj/bias'] == (256,)
  assert resnet['block2/unit4/conv2/kernel'] == (3, 3, 128, 128)
  assert resnet['block3/unit1/conv1/kernel'] == (1, 1, 512, 256)
  assert resnet['block3/unit9/conv3/kernel'] == (1, 1, 256, 1024)
  assert resnet['block3/unit9/gn3/scale'] == (1024,)


def _bit_shapes():
  """Returns BiT-M-R50x1's name -> shape, stated independently of the code."""
  shapes = {
    'resnet/root_block/standardized_conv2d/kernel': (7, 7, 3, 64),
    'resnet/group_norm/gamma': (2048,),
    'resnet/group_norm/beta': (2048,),
    'resnet/head/conv2d/kernel': (1, 1, 2048, 21843),
    'resnet/head/conv2d/bias': (21843,),
  }
  c_in = 64
  for block, (units, f) in enumerate(
    zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True), 1
  ):
    for unit in range(1, units + 1):
      at = f'resnet/block{block}/unit0{unit}/'
      conv = 'standardized_conv2d/kernel'
      if unit == 1:
        shapes[f'{at}a/proj/{conv}'] = (1, 1, c_in, 4 * f)
      shapes |= {
        f'{at}a/{conv}': (1, 1, c_in, f),
        f'{at}b/{conv}': (3, 3, f, f),
        f'{at}c/{conv}': (1, 1, f, 4 * f),
      }
      for part, features in (('a', c_in), ('b', f), ('c', f)):
        for leaf in ('gamma', 'beta'):
          shapes[f'{at}{part}/group_norm/{leaf}'] = (features,)
      c_in = 4 * f
  return shapes


def test_names_and_shapes_of_the_bit_file():
  shapes = _released_shapes('BiT-R50x1')
  assert shapes == _bit_shapes()
  assert _count(shapes) == (153, 68_256_659)


# Variants of files that loaders must accept ----------------------------------


def _flat_params(model=None, size=(8, 8)):
  model = model or tiny.vit(representation_size=8)
  return tiny.flat(tiny.params(model, size))


MODELS = {
  'vit': dict(representation_size=8),
  'gap': dict(pooling='gap'),
  'map': dict(pooling='map'),
  'hybrid': dict(resnet_blocks=(1, 2), patch_size=1),
  'axial': dict(attention='axial', pooling='gap'),
  '2d': dict(position_embedding='2d'),
  'relative': dict(position_embedding='relative_per_head'),
  'every layer': dict(position_site='every_layer'),
}


@pytest.mark.parametrize('name', MODELS)
def test_round_trip_of_every_kind_of_model(name):
  size = (32, 32) if name == 'hybrid' else (8, 8)
  params = _flat_params(tiny.vit(**MODELS[name]), size)
  file = released.to_released(params)
  assert not any('MlpBlock_0' in k for k in file if 'encoderblock' in k)
  tiny.assert_equal(released.from_released(file), params)
  tiny.assert_equal(released.to_released(released.from_released(file)), file)


@pytest.mark.parametrize(
  'prefix', ['params/', 'opt/target/', 'params/img/', 'img/']
)
def test_prefixes_are_stripped_and_optimizers_left_out(prefix):
  params = _flat_params()
  file = {prefix + k: v for k, v in released.to_released(params).items()}
  others = (
    'chrono/accum_train_time',
    'extra/step',
    'opt/state/step',
    'params/t',
  )
  file |= dict.fromkeys(others, np.ones(3))
  if prefix == 'params/':
    del file['params/t']
    others = others[:3]
  tiny.assert_equal(released.from_released(file), params)
  assert released.parameters(file)[1] == others
  # Without a prefix, nothing is left out, so callers see every array.
  assert released.parameters(params | {'extra/step': 1})[1] == ()
  file['head/bias'] = np.ones(5)
  with pytest.raises(ValueError, match=r'head/bias are both head/bias: the f'):
    released.from_released(file)


def test_stacked_blocks_are_split():
  params = _flat_params()
  stacked = released.stack(params)
  name = 'Transformer/encoderblock/MlpBlock_0/Dense_0/kernel'
  assert stacked[name].shape == (2, 16, 24)
  np.testing.assert_array_equal(
    stacked[name][1], params[name.replace('block/', 'block_1/')]
  )
  block = 'Transformer/encoderblock_0/LayerNorm_0/bias'
  assert block not in stacked
  for both in (stacked | {block: params[block]}, {block: 1} | stacked):
    with pytest.raises(ValueError, match=rf'^{block} is there twice, al'):
      released.from_released(both)
  # An axis that is too long to be a depth is not split.
  deep = {name: np.zeros((10**6, 1))}
  assert released.unstack(deep).keys() == deep.keys()
  tiny.assert_equal(released.from_released(stacked), params)
  tiny.assert_equal(released.to_released(stacked), released.to_released(params))


def test_old_paths_of_the_position_embedding_are_converted():
  params = _flat_params()
  table = params[released.POSITION]  # [1, 5, 16]
  others = {k: v for k, v in params.items() if k != released.POSITION}
  old = others | {'Transformer/pos_embedding': table}
  tiny.assert_equal(released.from_released(old), params)
  # A table without a row for the class token gets a row of zeros.
  top = others | {'pos_embedding': table[:, 1:]}
  loaded = released.from_released(top)[released.POSITION]
  np.testing.assert_array_equal(loaded[:, 0], np.zeros((1, 16)))
  np.testing.assert_array_equal(loaded[:, 1:], table[:, 1:])
  # A model without a class token gets no row of zeros.
  del top['cls']
  loaded = released.from_released(top)[released.POSITION]
  np.testing.assert_array_equal(loaded, table[:, 1:])
  with pytest.raises(ValueError, match='both the position embedding'):
    released.from_released(params | {'pos_embedding': table})


def test_numbered_layers_of_bit():
  params = _flat_params(tiny.bit(), (32, 32))
  file = released.to_released(params)
  assert file['resnet/head/conv2d/kernel'].shape == (1, 1, 512, 5)
  numbered = {
    k.replace('conv2d/', f'conv2d_{i}/') if 'standard' in k else k: v
    for i, (k, v) in enumerate(file.items())
  }
  assert numbered.keys() != file.keys()
  tiny.assert_equal(released.from_released(numbered), params)
  numbered['resnet/block1/unit01/d/group_norm/gamma'] = np.ones(3)
  assert 'resnet/block1/unit01/d/group_norm/gamma' in released.from_released(
    numbered
  )
