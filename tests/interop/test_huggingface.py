"""Guards reading and writing of Hugging Face folders, without transformers."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tests.interop import tiny
from vit_jax import interop

NAMES = ('ant', 'bee', 'cat', 'dog', 'eel')


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


def test_contents_of_the_json_files_in_the_folder(tmp_path):
  model = tiny.vit(gelu='exact', norm_epsilon=1e-5)
  _folder(tmp_path, model, (8, 12), class_names=NAMES, preprocessing='resize')
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config == {
    'architectures': ['ViTForImageClassification'],
    'model_type': 'vit',
    'hidden_size': 16,
    'num_hidden_layers': 2,
    'num_attention_heads': 2,
    'intermediate_size': 24,
    'hidden_act': 'gelu',
    'layer_norm_eps': 1e-5,
    'hidden_dropout_prob': 0.0,
    'attention_probs_dropout_prob': 0.0,
    'qkv_bias': True,
    'image_size': [8, 12],
    'patch_size': 4,
    'num_channels': 3,
    'id2label': {'0': 'ant', '1': 'bee', '2': 'cat', '3': 'dog', '4': 'eel'},
    'label2id': {'ant': 0, 'bee': 1, 'cat': 2, 'dog': 3, 'eel': 4},
    'torch_dtype': 'float32',
  }
  preprocessor = json.loads((tmp_path / 'preprocessor_config.json').read_text())
  assert preprocessor == {
    'image_processor_type': 'ViTImageProcessor',
    'do_resize': True,
    'size': {'height': 8, 'width': 12},
    'resample': 2,
    'do_rescale': True,
    'rescale_factor': 1 / 255,
    'do_normalize': True,
    'image_mean': [0.5, 0.5, 0.5],
    'image_std': [0.5, 0.5, 0.5],
    'vit_jax_preprocessing': 'resize',
  }
  weights = interop.read(tmp_path)
  assert weights.model == model
  assert (weights.image_size, weights.grid) == ((8, 12), (2, 3))
  assert weights.class_names == NAMES


def test_names_of_newer_versions_and_no_prefix(tmp_path):
  params = _folder(tmp_path)
  renamed = {}
  for name, array in _tensors(tmp_path).items():
    for old, new in (
      ('vit.', ''),
      ('encoder.layer.', 'layers.'),
      ('attention.attention.query', 'attention.q_proj'),
      ('attention.attention.key', 'attention.k_proj'),
      ('attention.attention.value', 'attention.v_proj'),
      ('attention.output.dense', 'attention.o_proj'),
      ('intermediate.dense', 'mlp.fc1'),
      ('output.dense', 'mlp.fc2'),
    ):
      name = name.replace(old, new)
    renamed[name] = array
  assert 'layers.1.mlp.fc2.weight' in renamed
  _rewrite(tmp_path, renamed)
  tiny.assert_equal(interop.load_huggingface(tmp_path, tiny.vit(), 8), params)


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


def test_differences_in_gelu_and_epsilon_are_noted(tmp_path):
  _folder(tmp_path, tiny.vit(gelu='exact', norm_epsilon=1e-12))
  _, report = interop.load(tmp_path, tiny.vit(), 8)
  assert len(report.notes) == 2
  for part in (
    "set gelu='exact' to compute the same",
    'set norm_epsilon=1e-12 to compute the same',
  ):
    assert part in str(report)
  _configure(tmp_path, hidden_act='relu')
  with pytest.raises(ValueError, match=r"'relu', which .* Known are gelu, ge"):
    interop.read(tmp_path)
  # Keys that a config.json leaves out get the defaults of transformers.
  config = json.loads((tmp_path / 'config.json').read_text())
  for key in ('hidden_act', 'layer_norm_eps'):
    del config[key]
  (tmp_path / 'config.json').write_text(json.dumps(config))
  assert interop.read(tmp_path).settings == {
    'gelu': 'exact',
    'norm_epsilon': 1e-12,
  }


EMBEDDING = 'vit.embeddings.patch_embeddings.projection.weight'
LAYER = 'encoder.layer.0.'


@pytest.mark.parametrize(
  'name',
  [
    'classifier.bias',
    'vit.embeddings.cls_token',
    EMBEDDING,
    f'vit.{LAYER}attention.attention.query.bias',
    f'vit.{LAYER}attention.attention.query.weight',
    f'vit.{LAYER}attention.output.dense.weight',
  ],
)
def test_arrays_without_axes_are_named(tmp_path, name):
  _folder(tmp_path)
  tensors = _tensors(tmp_path) | {name: np.array(1, np.float32)}
  safetensors.numpy.save_file(tensors, tmp_path / 'model.safetensors')
  _configure(tmp_path, qkv_bias=False)
  with pytest.raises(ValueError, match=r'wrong shape \([12]\):') as error:
    interop.load(tmp_path, tiny.vit(), 8)
  assert ' is (), expected (' in str(error.value)


@pytest.mark.parametrize(
  'other, name',
  [
    (f'{LAYER}layernorm_before.bias', f'{LAYER}layernorm_before.bias'),
    ('embedding/kernel', 'embedding/kernel'),
  ],
)
def test_two_names_of_one_array(tmp_path, other, name):
  _folder(tmp_path)
  _rewrite(tmp_path, _tensors(tmp_path) | {other: np.ones(16, 'f')})
  with pytest.raises(ValueError, match=rf' are both {name}: the file mixes'):
    interop.read(tmp_path)


def test_a_mask_token_is_left_out(tmp_path):
  params, name = _folder(tmp_path), 'vit.embeddings.mask_token'
  token = {name: np.ones((1, 1, 16), 'f')}
  _rewrite(tmp_path, _tensors(tmp_path) | token)
  loaded, report = interop.load(tmp_path, tiny.vit(), 8)
  tiny.assert_equal(loaded, params)
  assert report.dropped == (name,)
  assert report.notes == (
    'the mask token, for masked images only, is left out',
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


def test_bfloat16(tmp_path):
  params = _folder(tmp_path)
  header, data, at = {}, b'', 0
  for name, array in _tensors(tmp_path).items():
    stored = array.astype(ml_dtypes.bfloat16).tobytes()
    header[name] = {
      'dtype': 'BF16',
      'shape': array.shape,
      'data_offsets': [at, at + len(stored)],
    }
    data, at = data + stored, at + len(stored)
  head = json.dumps(header).encode()
  (tmp_path / 'model.safetensors').write_bytes(
    len(head).to_bytes(8, 'little') + head + data
  )
  loaded = interop.load_huggingface(tmp_path, tiny.vit(), 8)
  expected = {
    k: v.astype(ml_dtypes.bfloat16).astype(np.float32)
    for k, v in tiny.flat(params).items()
  }
  tiny.assert_equal(loaded, expected)


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


@pytest.mark.parametrize(
  'prefix', ['module.', 'module.model.', '_orig_mod.', 'module._orig_mod.']
)
def test_prefixes_of_wrappers_are_stripped(tmp_path, prefix):
  params = _folder(tmp_path)
  _rewrite(tmp_path, {prefix + k: v for k, v in _tensors(tmp_path).items()})
  loaded = interop.load_huggingface(tmp_path, tiny.vit(), 8)
  tiny.assert_equal(loaded, params)


@pytest.mark.parametrize(
  'suffix, name, layout',
  [
    ('', 'blocks.0.attn.proj.bias', 'timm'),
    ('', 'module.blocks.0.attn.qkv.weight', 'timm'),
    ('.npz', 'visual.trunk.blocks.3.attn.qkv.weight', 'timm'),
    ('', 'encoder.layers.encoder_layer_0.mlp.0.bias', 'torchvision'),
    ('.npz', 'visual.transformer.resblocks.0.ln_1.bias', 'OpenAI'),
    ('', 'vision_model.encoder.layers.0.mlp.fc1.bias', 'CLIP'),
    ('.npz', 'vit.encoder.layer.0.output.dense.bias', 'Hugging Face'),
    ('', 'mixer.0.mlp.fc1.bias', 'not known'),
  ],
)
def test_another_layout_is_named_with_the_names_in_the_file(
  tmp_path, suffix, name, layout
):
  arrays, path = {name: np.zeros(16, np.float32)}, tmp_path / f'a{suffix}'
  if suffix:
    np.savez(path, **arrays)
  else:
    _folder(path)
    _rewrite(path, arrays)
  with pytest.raises(ValueError, match=f'called {re.escape(name)}.*{layout}'):
    interop.load(path, tiny.vit(), 8)


def test_an_unknown_array_is_named_as_in_the_file(tmp_path):
  _folder(tmp_path)
  unknown = 'vit.layers.0.mlp.fc3.bias'
  _rewrite(tmp_path, _tensors(tmp_path) | {unknown: np.zeros(16)})
  with pytest.raises(ValueError, match=rf'\n +{re.escape(unknown)} \(16,\)'):
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


def test_other_things_that_cannot_be_written(tmp_path):
  with pytest.raises(ValueError, match='it is not a Vision Transformer'):
    interop.save_huggingface(tmp_path, {}, tiny.bit(), 8)
  with pytest.raises(ValueError, match='2 class names for 5 classes'):
    _folder(tmp_path, class_names=['a', 'b'])
