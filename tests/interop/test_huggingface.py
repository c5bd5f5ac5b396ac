"""Guards reading and writing of Hugging Face folders, without transformers."""

import json

import numpy as np
import pytest
import safetensors.numpy

from tests.interop import tiny
from vit_jax import interop


def _folder(path, model=None, size=(8, 8), **kwargs):
  model = model or tiny.vit()
  params = tiny.params(model, size)
  interop.save_huggingface(path, params, model, size, **kwargs)
  return params


def _tensors(folder):
  return safetensors.numpy.load_file(folder / 'model.safetensors')


def _rewrite(folder, tensors):
  tensors = {k: np.ascontiguousarray(v) for k, v in tensors.items()}
  safetensors.numpy.save_file(tensors, folder / 'model.safetensors')


def _configure(folder, **changes):
  path = folder / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize('size', [(8, 8), (8, 12)])
def test_round_trip_is_exact(tmp_path, size):
  params = _folder(tmp_path, size=size)
  loaded = interop.load_huggingface(tmp_path, tiny.vit(), size)
  tiny.assert_equal(loaded, params)
  scanned = tiny.vit(scan=True)
  loaded = interop.load_huggingface(tmp_path, scanned, size)
  interop.save_huggingface(tmp_path / 'b', loaded, scanned, size)
  for name in ('model.safetensors', 'config.json', 'preprocessor_config.json'):
    one, two = (tmp_path / name).read_bytes(), (tmp_path / 'b' / name)
    assert one == two.read_bytes()


def test_names_and_shapes_of_the_file(tmp_path):
  params = _folder(tmp_path)
  shapes = {k: v.shape for k, v in _tensors(tmp_path).items()}
  layer = {
    'attention.attention.key.bias': (16,),
    'attention.attention.key.weight': (16, 16),
    'attention.attention.query.bias': (16,),
    'attention.attention.query.weight': (16, 16),
    'attention.attention.value.bias': (16,),
    'attention.attention.value.weight': (16, 16),
    'attention.output.dense.bias': (16,),
    'attention.output.dense.weight': (16, 16),
    'intermediate.dense.bias': (24,),
    'intermediate.dense.weight': (24, 16),
    'layernorm_after.bias': (16,),
    'layernorm_after.weight': (16,),
    'layernorm_before.bias': (16,),
    'layernorm_before.weight': (16,),
    'output.dense.bias': (16,),
    'output.dense.weight': (16, 24),
  }
  assert shapes == {
    f'vit.encoder.layer.{i}.{k}': v for i in range(2) for k, v in layer.items()
  } | {
    'classifier.bias': (5,),
    'classifier.weight': (5, 16),
    'vit.embeddings.cls_token': (1, 1, 16),
    'vit.embeddings.patch_embeddings.projection.bias': (16,),
    'vit.embeddings.patch_embeddings.projection.weight': (16, 3, 4, 4),
    'vit.embeddings.position_embeddings': (1, 5, 16),
    'vit.layernorm.bias': (16,),
    'vit.layernorm.weight': (16,),
  }
  # Two slices: one row of the second head's queries, and one pixel's weights.
  query = params['Transformer']['encoderblock_1'][
    'MultiHeadDotProductAttention_0'
  ]['query']['kernel']
  stored = _tensors(tmp_path)
  np.testing.assert_array_equal(
    stored['vit.encoder.layer.1.attention.attention.query.weight'][8 + 2],
    query[:, 1, 2],
  )
  np.testing.assert_array_equal(
    stored['vit.embeddings.patch_embeddings.projection.weight'][:, 2, 0, 3],
    params['embedding']['kernel'][0, 3, 2],
  )


def test_a_model_without_head_needs_a_new_one(tmp_path):
  params = _folder(tmp_path)
  tensors = {
    k.removeprefix('vit.'): v
    for k, v in _tensors(tmp_path).items()
    if 'classifier' not in k
  }
  pooler = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
  tensors |= {'pooler.dense.weight': pooler, 'pooler.dense.bias': pooler[0]}
  _rewrite(tmp_path, tensors)
  with pytest.raises(
    ValueError, match='have no head: give the model a new one'
  ):
    interop.load_huggingface(tmp_path, tiny.vit(), 8)
  # The pooler becomes our hidden layer.
  model = tiny.vit(representation_size=16, num_classes=3)
  loaded = interop.load_huggingface(tmp_path, model, 8, new_head=True)
  np.testing.assert_array_equal(loaded['pre_logits']['kernel'], pooler.T)
  np.testing.assert_array_equal(loaded['pre_logits']['bias'], pooler[0])
  tiny.assert_equal(loaded['Transformer'], params['Transformer'])
  assert loaded['head']['kernel'].shape == (16, 3)
  assert interop.read(tmp_path).model is None
  # A model with a classifier does not use its pooler.
  tensors |= {'classifier.weight': pooler[:5], 'classifier.bias': pooler[0, :5]}
  _rewrite(tmp_path, tensors)
  _, report = interop.load(tmp_path, tiny.vit(), 8)
  assert report.notes == (
    'the pooler, which the classifier does not use, is left out',
  )


def test_missing_qkv_biases_become_zeros_if_the_config_says_so(tmp_path):
  _folder(tmp_path)
  tensors = {
    k: v
    for k, v in _tensors(tmp_path).items()
    if not ('attention.attention' in k and k.endswith('bias'))
  }
  _rewrite(tmp_path, tensors)
  with pytest.raises(ValueError, match=r'missing \(6\)'):
    interop.load(tmp_path, tiny.vit(), 8)
  _configure(tmp_path, qkv_bias=False)
  loaded = tiny.flat(interop.load_huggingface(tmp_path, tiny.vit(), 8))
  name = 'Transformer/encoderblock_1/MultiHeadDotProductAttention_0/key/bias'
  np.testing.assert_array_equal(loaded[name], np.zeros((2, 8)))


def _shard(folder, names=('model-1.safetensors', 'model-2.safetensors')):
  tensors, weight_map = _tensors(folder), {}
  for i, name in enumerate(names):
    part = {k: v for j, (k, v) in enumerate(tensors.items()) if j % 2 == i}
    safetensors.numpy.save_file(part, folder / name)
    weight_map |= dict.fromkeys(part, name)
  (folder / 'model.safetensors').unlink()
  index = folder / 'model.safetensors.index.json'
  index.write_text(json.dumps({'weight_map': weight_map}))
  return index, weight_map


def test_sharded_folders(tmp_path):
  params = _folder(tmp_path)
  index, weight_map = _shard(tmp_path)
  tiny.assert_equal(interop.load_huggingface(tmp_path, tiny.vit(), 8), params)
  index.write_text(json.dumps({'weight_map': weight_map | {'x': 'y.bin'}}))
  with pytest.raises(ValueError, match=r"names 'y.bin', expected a \.safeten"):
    interop.read(tmp_path)
  secret = {'x': '../model-1.safetensors'}
  index.write_text(json.dumps({'weight_map': weight_map | secret}))
  with pytest.raises(ValueError, match=r"names '\.\./model-1.* same folder"):
    interop.read(tmp_path)
  other = {'x': 'model-1.safetensors'}
  index.write_text(json.dumps({'weight_map': weight_map | other}))
  with pytest.raises(ValueError, match=r'lacks arrays that .* lists: x\.'):
    interop.read(tmp_path)
  for wrong in ([1], None, {'x': 5}):
    index.write_text(json.dumps({'weight_map': wrong}))
    with pytest.raises(ValueError, match=r'weight_map is .* object of texts'):
      interop.read(tmp_path)


def test_pickled_weights_are_refused(tmp_path):
  _folder(tmp_path)
  (tmp_path / 'model.safetensors').rename(tmp_path / 'pytorch_model.bin')
  with pytest.raises(ValueError, match='only as a pickle') as error:
    interop.load(tmp_path, tiny.vit(), 8)
  assert 'save_pretrained(NEW_FOLDER) writes model.safeten' in str(error.value)
  (tmp_path / 'pytorch_model.bin').unlink()
  with pytest.raises(ValueError, match=r'no weights: there is no model\.safe'):
    interop.load_huggingface(tmp_path, tiny.vit(), 8)


def test_models_that_are_refused(tmp_path):
  _folder(tmp_path)
  tensors = _tensors(tmp_path)
  token = {'vit.embeddings.distillation_token': np.ones((1, 1, 16), 'f')}
  _rewrite(tmp_path, tensors | token)
  with pytest.raises(ValueError, match='a DeiT with a distillation token'):
    interop.load(tmp_path, tiny.vit(), 8)
  _rewrite(tmp_path, tensors | {'vit.mask': np.ones(1, 'f')})
  with pytest.raises(ValueError, match=r'extra \(1\):\n    vit\.mask \(1,\)'):
    interop.load(tmp_path, tiny.vit(), 8)
  _configure(tmp_path, model_type='swin')
  with pytest.raises(ValueError, match="of type 'swin', expected 'vit'"):
    interop.load(tmp_path, tiny.vit(), 8)


@pytest.mark.parametrize(
  'options, reasons',
  [
    (dict(representation_size=8), ['hidden layer before the head']),
    (dict(pooling='gap', position_embedding='2d'), ["'gap'", "'2d'"]),
    (dict(pooling='map', attention='axial'), ["'map'", "'axial'"]),
    (dict(position_site='every_layer'), ["'every_layer'"]),
    (dict(resnet_blocks=(1,), patch_size=1), ['hybrid']),
  ],
)
def test_models_that_cannot_be_written(tmp_path, options, reasons):
  model = tiny.vit(**options)
  with pytest.raises(ValueError, match="Hugging Face's ViT cannot") as error:
    interop.save_huggingface(tmp_path / 'x', {}, model, 8)
  assert len(str(error.value).split('; ')) == len(reasons)
  for reason in reasons:
    assert reason in str(error.value)
  assert not (tmp_path / 'x').exists()
