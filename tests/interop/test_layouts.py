"""Guards: names and shapes of other files map to ours and back, one to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import models
from vit_jax.interop import families, fitting, layouts

CLASSES = 21843


def _outline(model, size=(224, 224)):
  """Returns zeros that take no memory by our names."""
  images = jnp.zeros((1, *size, 3))
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), images))
  return fitting.without_structs(shapes['params'])


def _shapes(arrays):
  return {k: v.shape for k, v in arrays.items()}


def _released_shapes(name, **overrides):
  """Maps a full-size model's released names to shapes; allocates no array."""
  outline = _outline(models.build(name, num_classes=CLASSES, **overrides))
  file = families.to_released(outline)
  assert _shapes(families.from_released(file)) == _shapes(outline)
  return _shapes(file)


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


@pytest.mark.gate
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


def test_slices_of_arrays_of_transformers():
  params = tiny.flat(tiny.params(tiny.vit()))
  tensors = families.OTHERS['vit'].write(params)
  # Two slices: one row of the second head's queries, and one pixel's weights.
  attention = 'Transformer/encoderblock_1/MultiHeadDotProductAttention_0'
  np.testing.assert_array_equal(
    tensors['vit.encoder.layer.1.attention.attention.query.weight'][8 + 2],
    params[f'{attention}/query/kernel'][:, 1, 2],
  )
  np.testing.assert_array_equal(
    tensors['vit.embeddings.patch_embeddings.projection.weight'][:, 2, 0, 3],
    params['embedding/kernel'][0, 3, 2],
  )


def test_names_and_shapes_that_no_rule_expects_stay():
  family = families.OTHERS['vit']
  assert not family.knows(['layer1.weight', 'head/kernel'])
  # They are for an error that lists them.
  query = 'vit.encoder.layer.0.attention.attention.query.weight'
  odd = {query: np.ones((5, 3)), 'more': np.ones(2)}
  read = family.read(odd, heads=2)
  assert read.pop('more').shape == (2,)
  assert [x.shape for x in read.values()] == [(5, 3)]


MODELS = {
  'vit': (tiny.vit(representation_size=8), (8, 8)),
  'hybrid': (tiny.vit(resnet_blocks=(1,), patch_size=1), (8, 8)),
  'bit': (tiny.bit(), (32, 32)),
}


def _flat_params(name='vit'):
  return tiny.flat(tiny.params(*MODELS[name]))


# Variants of files that loaders must accept ----------------------------------


@pytest.mark.parametrize(
  'prefix', ['params/', 'opt/target/', 'params/img/', 'img/']
)
def test_prefixes_are_stripped_and_optimizers_left_out(prefix):
  params = _flat_params()
  file = {prefix + k: v for k, v in families.to_released(params).items()}
  others = ('chrono/accum_train_time', 'extra/step', 'opt/state/step')
  file |= dict.fromkeys(others, np.ones(3))
  tiny.assert_equal(families.from_released(file), params)
  assert families.parameters(file)[1] == others
  # Without a prefix, nothing is left out, so callers see every array.
  assert families.parameters(params | {'extra/step': 1})[1] == ()


def test_two_names_of_the_same_array_are_refused():
  params = _flat_params()
  with pytest.raises(ValueError, match='mixes two naming schemes'):
    families.from_released(params | families.to_released(params))


def test_stacked_blocks_are_split():
  params = _flat_params()
  stacked = layouts.stack(params)
  name = 'Transformer/encoderblock/MlpBlock_0/Dense_0/kernel'
  assert stacked[name].shape == (2, 16, 24)
  assert 'Transformer/encoderblock_0/LayerNorm_0/bias' not in stacked
  tiny.assert_equal(families.from_released(stacked), params)
  tiny.assert_equal(families.to_released(stacked), families.to_released(params))


def test_old_paths_of_the_position_embedding_are_converted():
  params = _flat_params()
  table = params[families.POSITION]  # [1, 5, 16]
  others = {k: v for k, v in params.items() if k != families.POSITION}
  old = others | {'Transformer/pos_embedding': table}
  tiny.assert_equal(families.from_released(old), params)
  # A table without a row for the class token gets a row of zeros.
  top = others | {'pos_embedding': table[:, 1:]}
  loaded = families.from_released(top)[families.POSITION]
  np.testing.assert_array_equal(loaded[:, 0], np.zeros((1, 16)))
  np.testing.assert_array_equal(loaded[:, 1:], table[:, 1:])
  # A model without a class token gets no row of zeros.
  del top['cls']
  loaded = families.from_released(top)[families.POSITION]
  np.testing.assert_array_equal(loaded, table[:, 1:])


def test_old_shapes_and_numbered_layers_of_resnets():
  hybrid = _flat_params('hybrid')
  old = {
    k: v[None, None, None] if k.split('/')[-2][:2] == 'gn' else v
    for k, v in hybrid.items()
    if '/' in k
  }
  tiny.assert_equal(
    families.from_released(old | {'cls': hybrid['cls']}), hybrid
  )
  params = _flat_params('bit')
  numbered = {
    k.replace('conv2d/', f'conv2d_{i}/') if 'standard' in k else k: v
    for i, (k, v) in enumerate(families.to_released(params).items())
  }
  tiny.assert_equal(families.from_released(numbered), params)
