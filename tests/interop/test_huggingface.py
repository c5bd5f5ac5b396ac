"""Guards reading and writing of Hugging Face folders, without transformers."""

import functools
import io
import json

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from tests.interop import tiny
from vit_jax import convert, interop
from vit_jax import loaded as subject
from vit_jax.interop import families


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


def test_a_model_without_head_needs_a_new_one(tmp_path):
  params = _folder(tmp_path, tiny.vit(gelu='exact'))
  tensors = {
    k.removeprefix('vit.'): v
    for k, v in _tensors(tmp_path).items()
    if 'classifier' not in k
  }
  pooler = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
  _rewrite(tmp_path, tensors)
  weights = interop.read(tmp_path)
  assert weights.model == tiny.vit(1, gelu='exact')
  tiny.assert_equal(
    tiny.unflat(weights.params),
    {k: v for k, v in params.items() if k != 'head'},
  )
  tensors |= {'pooler.dense.weight': pooler, 'pooler.dense.bias': pooler[0]}
  _rewrite(tmp_path, tensors)
  # The pooler becomes our hidden layer.
  weights = interop.read(tmp_path)
  assert weights.model == tiny.vit(1, representation_size=16, gelu='exact')
  with pytest.raises(ValueError, match='new_head=True'):
    interop.fit_weights(weights, weights.model, 8)
  model = weights.model.clone(num_classes=3)
  loaded = interop.load_huggingface(tmp_path, model, 8, new_head=True)
  np.testing.assert_array_equal(loaded['pre_logits']['kernel'], pooler.T)
  tiny.assert_equal(loaded['Transformer'], params['Transformer'])
  assert loaded['head']['kernel'].shape == (16, 3)
  _configure(tmp_path, pooler_act='relu')
  with pytest.raises(ValueError, match="pooler_act='relu'"):
    interop.read(tmp_path)
  # A model with a classifier does not use its pooler.
  tensors |= {'classifier.weight': pooler[:5], 'classifier.bias': pooler[0, :5]}
  tensors['embeddings.mask_token'] = pooler[None, :1]
  _rewrite(tmp_path, tensors)
  _, report = interop.load(tmp_path, tiny.vit(gelu='exact'), 8)
  assert report.dropped == (
    *('embeddings.mask_token', 'pooler.dense.bias', 'pooler.dense.weight'),
  )


def test_models_without_biases_of_queries_keys_and_values(tmp_path):
  model = tiny.vit(qkv_bias=False)
  params = _folder(tmp_path, model)
  assert interop.read(tmp_path).model == model
  tiny.assert_equal(interop.load_huggingface(tmp_path, model, 8), params)
  _configure(tmp_path, qkv_bias=True)
  with pytest.raises(ValueError, match=r'missing \(6\)'):
    interop.load(tmp_path, interop.read(tmp_path).model, 8)


@pytest.mark.parametrize(
  'rename',
  [
    lambda name: f'module._orig_mod.{name}',
    lambda name: name.replace('vit.', 'deit.'),
    lambda name: (
      name.replace('encoder.layer', 'layers')
      .replace('attention.attention.query', 'attention.q_proj')
      .replace('attention.output.dense', 'attention.o_proj')
      .replace('output.dense', 'mlp.fc2')
    ),
  ],
)
def test_other_names_of_the_same_arrays(tmp_path, rename):
  params = _folder(tmp_path)
  _rewrite(tmp_path, {rename(k): v for k, v in _tensors(tmp_path).items()})
  tiny.assert_equal(interop.load_huggingface(tmp_path, tiny.vit(), 8), params)


@pytest.mark.parametrize(
  'labels, names',
  [
    (dict(zip('01234', 'abcde', strict=True)), 'a,b,c,d,e'),
    ({'0': 'a', '1': 'b'}, ''),
    ({str(i): f'x{i}' for i in range(6)}, ''),
    ({str(i): f'LABEL_{i}' for i in range(5)}, ''),
    (None, ''),
  ],
)
def test_labels_become_class_names(tmp_path, labels, names):
  _folder(tmp_path)
  _configure(tmp_path, id2label=labels)
  assert ','.join(interop.read(tmp_path).class_names) == names


def test_arrays_and_models_that_are_refused(tmp_path):
  _folder(tmp_path)
  tensors = _tensors(tmp_path)
  for name, message in (
    ('mask', r'extra \(1\):\n    mask \(1,\)'),
    ('embeddings.distillation_token', 'distillation_token=True'),
  ):
    _rewrite(tmp_path, tensors | {f'vit.{name}': np.ones(1, 'f')})
    with pytest.raises(ValueError, match=message):
      interop.load(tmp_path, tiny.vit(), 8)
  _configure(tmp_path, model_type='swin')
  with pytest.raises(ValueError, match=r"of type 'swin'.* vit, deit, vit_mae"):
    interop.read(tmp_path)


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(num_attention_heads=0), 'heads'),
    (dict(patch_size='4'), 'patch_size'),
    (dict(image_size=2), 'below one patch'),
    (dict(image_size='8'), 'expected a side'),
    (dict(hidden_act='relu'), "hidden_act='relu' is unknown"),
    (dict(num_hidden_layers=10**9), 'depth'),
  ],
)
def test_values_of_the_config_that_are_refused(tmp_path, changes, message):
  _folder(tmp_path)
  _configure(tmp_path, **changes)
  with pytest.raises(ValueError, match=rf'config\.json describes .*{message}'):
    interop.read(tmp_path)


@pytest.mark.parametrize(
  'options',
  [
    dict(representation_size=8),
    dict(pooling='gap', position_embedding='2d'),
    dict(attention='axial', pooling='map'),
    dict(position_site='every_layer'),
    dict(resnet_blocks=(1,), patch_size=1),
    dict(parallel=True, qk_norm=True),
    dict(norm='rms', mlp='swiglu', layer_scale=1e-4, rotary='axial'),
  ],
)
def test_models_that_cannot_be_written(tmp_path, options):
  model, size = tiny.vit(**options), (32, 32)
  params = tiny.params(model, size)
  save = functools.partial(interop.save_huggingface, tmp_path / 'x')
  with pytest.raises(ValueError, match='layout vit cannot express') as error:
    save(params, model, size, layout='vit')
  for name in options.keys() - {'patch_size'}:
    assert f'{name}=' in str(error.value)
  with pytest.raises(ValueError, match=r'No layout .*npz') as error:
    save(params, model, size)
  assert any(f'{name}=' in str(error.value) for name in options)
  with pytest.raises(ValueError, match='No layout'):
    save(tiny.params(tiny.bit(), size), tiny.bit(), size)
  with pytest.raises(
    ValueError, match="'swin' is unknown; known are vit, deit"
  ):
    save(params, model, size, layout='swin')
  assert not (tmp_path / 'x').exists()


@pytest.mark.parametrize(
  'layout, options, named',
  [
    ('dinov2', dict(layer_scale=1.0, pooling='token_gap'), 'mlp_dim=24'),
    ('timm', dict(registers=2), 'class_position=True'),
    ('timm', dict(distillation_token=True, registers=2), 'registers=2'),
    (
      'timm',
      dict(distillation_token=True, class_position=False),
      'class_position=False',
    ),
    ('timm', dict(embedding_norm=True, norm_epsilon=1e-5), 'patch_bias=True'),
    ('timm', dict(embedding_norm=True, patch_bias=False), 'norm_epsilon=1e-06'),
    (
      'timm_dinov3',
      dict(rotary='dinov3', position_embedding='none', layer_scale=1.0)
      | dict(norm_epsilon=1e-5, gelu='exact'),
      'key_bias=True',
    ),
  ],
)
def test_options_that_a_layout_has_but_not_together(layout, options, named):
  with pytest.raises(ValueError, match=f'it has {named}'):
    families.check(layout, tiny.vit(**options), has_head=True)


# Images ----------------------------------------------------------------------


def _preprocess(folder, **content):
  (folder / 'preprocessor_config.json').write_text(json.dumps(content))


@pytest.mark.parametrize(
  'mean, std',
  [([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), ([0.1], 2), (0, 1)],
)
@pytest.mark.parametrize(
  'target', [{}, dict(image_mean=(0.3, 0.5, 0.6), image_std=(0.4, 0.6, 1.0))]
)
def test_weights_of_another_normalization_compute_the_same(
  tmp_path, mean, std, target
):
  params = _folder(tmp_path)
  _preprocess(tmp_path, image_mean=mean, image_std=std)
  weights, model = interop.read(tmp_path), tiny.vit(**target)
  given = {
    key: tuple(np.broadcast_to(np.float64(values), 3).tolist())
    for key, values in (('image_mean', mean), ('image_std', std))
  }
  assert weights.model == tiny.vit(**given)
  # Their own model gets their own bits, another one another embedding.
  same, report = interop.load(tmp_path, weights.model, 8)
  tiny.assert_equal(same, params)
  assert not report.notes
  loaded, report = interop.load(tmp_path, model, 8)
  assert len(report.notes) == 1
  images = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 3)).astype('f')
  (logits, _), (expected, _) = (
    m.apply({'params': p}, images)
    for m, p in ((model, loaded), (weights.model, same))
  )
  np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
  tiny.assert_equal(loaded | {'embedding': {}}, params | {'embedding': {}})
  # Without a bias, only scales could change.
  bare = model.clone(patch_bias=False)
  arrays = {k: v for k, v in weights.params.items() if k != 'embedding/bias'}
  old = weights.model.clone(patch_bias=False)
  # The embedding of a hybrid reads no images.
  sizes = dict(resnet_blocks=(1,), patch_size=1)
  hybrid = tiny.vit(**sizes, image_mean=(0.1,), image_std=(0.2,))
  of_hybrid = tiny.flat(tiny.params(hybrid, (32, 32), 1))
  for found, source, other, size in (
    (arrays, old, bare, 8),
    (of_hybrid, hybrid, tiny.vit(**sizes), 32),
  ):
    weights = interop.Weights('', found, source, (size, size))
    with pytest.raises(ValueError, match=r'take over: set model\.image_mean='):
      interop.fit_weights(weights, other, size)


def test_the_processor_is_found_in_either_file(tmp_path):
  _folder(tmp_path)
  (tmp_path / 'preprocessor_config.json').unlink()
  assert not interop.read(tmp_path).described
  processor = dict(image_processor_type='DeiTImageProcessor', crop_size=8)
  nested = tmp_path / 'processor_config.json'
  nested.write_text(json.dumps(dict(image_processor=processor, tokenizer={})))
  found = interop.read(tmp_path)
  # transformers prefers the nested one.
  _preprocess(tmp_path, resample=0)
  assert interop.read(tmp_path).described == found.described
  nested.write_text(json.dumps(dict(processor_class='CLIPProcessor')))
  assert 'nearest' in interop.read(tmp_path).preprocessing
  _preprocess(tmp_path, **processor)
  assert interop.read(tmp_path).described == found.described
  assert found.decoding == {'jpeg_dct': 'accurate'}


def test_photographs_are_prepared_as_pillow_does(tmp_path):
  _folder(tmp_path)
  deit = dict(image_processor_type='DeiTImageProcessor', size=9, crop_size=8)
  _preprocess(tmp_path, **deit)
  weights = interop.read(tmp_path)
  prepare = subject.prepared(weights, weights.preprocessing, (8, 8))
  rng = np.random.default_rng(0)
  for height, width in ((40, 61), (61, 40), (9, 9), (23, 11), (5, 7)):
    coarse = rng.integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(file, 'JPEG')
    image = Image.open(file)
    small = image.resize((9, 9), Image.Resampling.BICUBIC)
    expected = small.crop((0, 0, 8, 8))
    found = prepare(file.getvalue(), rng)
    assert np.abs(np.int16(found) - np.asarray(expected, np.int16)).max() <= 1


def test_a_refused_processor_is_named(tmp_path):
  _folder(tmp_path)
  _preprocess(tmp_path, size='8')
  with pytest.raises(
    ValueError, match=r'preprocessor_config.* expected a side'
  ):
    interop.read(tmp_path)


def test_a_processor_may_crop_other_images_than_positions_are_for(tmp_path):
  # As in DINOv2's folders: positions for 518 px, images of 224 px.
  model = tiny.vit(layer_scale=1.0, mlp_dim=32, pooling='token_gap')
  _folder(tmp_path / 'a', model, (16, 16))
  content = dict(size={'shortest_edge': 10}, crop_size=8)
  content['image_processor_type'] = 'BitImageProcessor'
  path = tmp_path / 'a/preprocessor_config.json'
  path.write_text(json.dumps(content))
  for step in ('a', 'b', 'c.npz', 'd'):
    if step != 'a':
      convert.convert(str(tmp_path / 'a'), str(tmp_path / step))
    weights = interop.read(tmp_path / step)
    assert (weights.image_size, weights.prepared_size) == ((16, 16), (8, 8))
    of = subject.load(str(tmp_path / step))
    image = np.zeros((30, 40, 3), np.uint8)
    assert of.preprocess(image, None).shape == (*of.image_size, 3) == (8, 8, 3)
    assert of.grid == (2, 2)
  tiny.assert_equal(_tensors(tmp_path / 'b'), _tensors(tmp_path / 'a'))
  # Other operations, or another size, are for the model's own images.
  convert.convert(
    *(str(tmp_path / 'a'), str(tmp_path / 'r.npz')), preprocess='resize'
  )
  assert interop.read(tmp_path / 'r.npz').prepared_size is None
  of = subject.load(
    str(tmp_path / 'a'), image_size=(16, 16), preprocess='resize'
  )
  assert (of.image_size, of.prepared_size) == ((16, 16), None)
  # timm has one size for both.
  _folder(tmp_path / 'e', size=(16, 16))
  (tmp_path / 'e/preprocessor_config.json').write_text('{"size": 8}')
  convert.convert(str(tmp_path / 'e'), str(tmp_path / 'f'), layout='timm')
  weights = interop.read(tmp_path / 'f')
  assert (weights.image_size, weights.prepared_size) == ((8, 8), None)


def test_a_trained_head_of_clip_is_no_projection(tmp_path):
  model = tiny.vit(embedding_norm=True, patch_bias=False, norm_epsilon=1e-5)
  params = tiny.params(model)
  interop.save_huggingface(tmp_path / 'a', params, model, 8)
  assert interop.read(tmp_path / 'a').layout == 'timm'
  params['head']['bias'] *= 0
  interop.save_huggingface(tmp_path / 'b', params, model, 8)
  weights = interop.read(tmp_path / 'b')
  assert weights.layout == 'clip_vision_model'
  assert weights.class_names[0] == 'dimension 0'
