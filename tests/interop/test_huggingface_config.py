"""Guards the JSON of Hugging Face folders: its meaning, and refused values."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.interop import tiny
from vit_jax import config as config_lib
from vit_jax import interop
from vit_jax import loaded as subject
from vit_jax.config import inputs


def _folder(path):
  params = tiny.params(tiny.vit())
  interop.save_huggingface(path, params, tiny.vit(), 8)
  return params


def _preprocess(folder, **content):
  (folder / 'preprocessor_config.json').write_text(json.dumps(content))


@pytest.mark.parametrize(
  'preprocessor, mean, std',
  [
    (
      dict(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225]),
      [0.485, 0.456, 0.406],
      [0.229, 0.224, 0.225],
    ),
    (dict(image_mean=0.1, image_std=2), 0.1, 2),
    (dict(image_mean=[0.1], image_std=[2]), 0.1, 2),
    (dict(image_mean=0, image_std=None), 0, 0.5),
    (dict(do_normalize=False, image_mean=0.3), 0, 1),
  ],
)
def test_other_normalizations_are_folded_into_the_embedding(
  tmp_path, preprocessor, mean, std
):
  params = _folder(tmp_path)
  _preprocess(tmp_path, **preprocessor)
  loaded, report = interop.load(tmp_path, tiny.vit(), 8)
  assert 'made part of their embedding' in report.notes[0]
  patch = np.random.default_rng(0).uniform(0, 1, (4, 4, 3))  # In [0, 1].

  def embed(tree, inputs):
    embedding = tree['embedding']
    return np.tensordot(inputs, embedding['kernel'], 3) + embedding['bias']

  np.testing.assert_allclose(
    embed(loaded, 2 * patch - 1),
    embed(params, (patch - mean) / std),
    rtol=1e-4,
    atol=1e-4,
  )
  tiny.assert_equal(loaded | {'embedding': {}}, params | {'embedding': {}})


def test_our_own_normalization_changes_no_bit(tmp_path):
  params = _folder(tmp_path)
  for same in (
    dict(image_mean=0.5, image_std=0.5, rescale_factor=0.00392156862745098),
    dict(image_mean=None, image_std=[0.5], do_rescale=None),
  ):
    _preprocess(tmp_path, **same)
    loaded, report = interop.load(tmp_path, tiny.vit(), 8)
    tiny.assert_equal(loaded, params)
    assert not report.notes


# The whole file of facebook/deit-base-patch16-224, at a 28th of its sizes.
DEIT = dict(
  crop_size=8,
  do_center_crop=True,
  do_normalize=True,
  do_resize=True,
  feature_extractor_type='DeiTFeatureExtractor',
  image_mean=[0.485, 0.456, 0.406],
  image_std=[0.229, 0.224, 0.225],
  resample=3,
  size=9,
)
BICUBIC = "method='pillow_bicubic'"


@pytest.mark.parametrize(
  'preprocessor, operations',
  [
    (DEIT, f'resize(9, {BICUBIC})|central_crop'),
    (
      DEIT | {'size': {'shortest_edge': 9}},
      f'resize_small(9, {BICUBIC})|central_crop',
    ),
    (
      dict(feature_extractor_type='ViTFeatureExtractor', size=8),
      "resize(method='pillow_bilinear')",
    ),
    (dict(size=[8, 8], resample=0), "resize(method='pillow_nearest')"),
    (
      dict(size={'height': 9, 'width': 12, 'longest_edge': None}, resample=1),
      "resize((9, 12), method='pillow_lanczos')",
    ),
    ({}, "resize(224, method='pillow_bilinear')"),
    (
      dict(size=9, default_to_square=False, do_center_crop=True, crop_size=8),
      "resize_small(9, method='pillow_bilinear')|central_crop",
    ),
    (
      dict(image_processor_type='CLIPImageProcessor', size=8, crop_size=[8, 6]),
      f'resize_small({BICUBIC})|central_crop((8, 6))',
    ),
    (
      dict(image_processor_type='BitImageProcessorFast', do_pad=False),
      f'resize_small(224, {BICUBIC})|central_crop(224)',
    ),
    (
      dict(image_processor_type='SiglipImageProcessor', _name='x', device=None),
      f'resize(224, {BICUBIC})',
    ),
    (
      dict(image_processor_type='DeiTImageProcessor', vit_jax_preprocessing=''),
      '',
    ),
  ],
)
def test_every_field_of_the_file_is_followed(
  tmp_path, preprocessor, operations
):
  _folder(tmp_path)
  _preprocess(tmp_path, **preprocessor)
  weights = interop.read(tmp_path)
  assert weights.preprocessing == operations
  # Pillow decodes accurately.
  assert weights.decoding == ({'jpeg_dct': 'accurate'} if operations else {})


@pytest.mark.parametrize(
  'sizes', [dict(size=9), dict(size={'shortest_edge': 9})]
)
def test_photographs_are_prepared_as_pillow_does(tmp_path, sizes):
  _folder(tmp_path)
  _preprocess(tmp_path, **DEIT | sizes)
  weights = interop.read(tmp_path)
  prepare = subject.prepared(weights, weights.preprocessing, (8, 8))
  config = config_lib.default()
  config.image_size, config.data.dataset = (8, 8), 'folder:photographs'
  config.data.update(weights.decoding)
  evaluated = inputs.parse_preprocess(config, weights.preprocessing)
  rng = np.random.default_rng(0)
  for height, width in ((40, 61), (61, 40), (9, 9), (23, 11), (5, 7)):
    coarse = rng.integers(0, 256, (5, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(file, 'JPEG')
    image = Image.open(file)
    small = [9, 9]
    if sizes != dict(size=9):
      small = [9 * n // min(image.size) for n in image.size]
    left, top = ((n - 8) // 2 for n in small)
    expected = image.resize(small, Image.Resampling.BICUBIC).crop(
      (left, top, left + 8, top + 8)
    )
    found = prepare(file.getvalue(), rng)
    assert np.abs(np.int16(found) - np.asarray(expected, np.int16)).max() <= 1
    np.testing.assert_array_equal(evaluated(file.getvalue(), rng), found)


@pytest.mark.parametrize(
  'preprocessor, message',
  [
    (dict(image_processor_type='ConvNextImageProcessor'), "'ConvNext.*Siglip"),
    (dict(do_resize=False), 'do_resize=False'),
    (dict(size={'shortest_edge': 9}), 'size=.*shortest_edge.*do_center_crop'),
    (dict(resample=6), 'resample is 6'),
    (DEIT | dict(crop_size={'shortest_edge': 8}), 'crop_size=.* no height'),
    (dict(auto_map={'AutoImageProcessor': 'x.Y'}), 'auto_map='),
    (dict(do_rescale=False), r'do_rescale=False .* the range of the images'),
    (dict(image_mean=[0.4, 0.5]), r'mean \[0\.4, 0\.5\] .* for 3 channels'),
    (dict(vit_jax_preprocessing=[1]), r'refused: .*preprocessing is \[1\]'),
  ],
)
def test_preprocessing_that_is_refused(tmp_path, preprocessor, message):
  _folder(tmp_path)
  _preprocess(tmp_path, **preprocessor)
  with pytest.raises(ValueError, match=rf'preprocessor_config.* {message}'):
    interop.read(tmp_path)


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(num_attention_heads=0), 'num_attention_heads is 0, expected a whole'),
    (dict(patch_size='4'), "patch_size is '4', expected a side"),
    (dict(id2label={'0': {}}), 'id2label is .*, expected an object of texts'),
    (dict(qkv_bias='false'), "qkv_bias is 'false', expected true or false"),
    (dict(model_type=['vit']), r"model_type is \['vit'\], expected text"),
  ],
)
def test_values_of_the_config_that_are_refused(tmp_path, changes, message):
  _folder(tmp_path)
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with pytest.raises(ValueError, match=rf'config\.json is refused.*{message}'):
    interop.read(tmp_path)
