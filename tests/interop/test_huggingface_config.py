"""Guards the JSON of Hugging Face folders: its meaning, and refused values."""

import json

import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import interop


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


@pytest.mark.parametrize(
  'preprocessor, message',
  [
    (dict(do_rescale=False), r'do_rescale=False .* the range of the images'),
    (dict(rescale_factor=1 / 127.5), r'rescale_factor=0\.0078.* Expected true'),
    (dict(image_mean=[0.4, 0.5]), r'mean \[0\.4, 0\.5\] .* for 3 channels'),
    (dict(image_std=[0.5, 0, 0.5]), 'image_std is .*, expected a number above'),
    (dict(image_mean=[[0.5]]), 'image_mean is .*, expected a number or a list'),
    (dict(do_normalize='no'), "do_normalize is 'no', expected true or false"),
    (dict(vit_jax_preprocessing=[1]), r'refused: .*preprocessing is \[1\]'),
  ],
)
def test_preprocessing_that_is_refused(tmp_path, preprocessor, message):
  _folder(tmp_path)
  _preprocess(tmp_path, **preprocessor)
  with pytest.raises(ValueError, match=rf'preprocessor_config.* {message}'):
    interop.read(tmp_path)


@pytest.mark.parametrize(
  'labels, names',
  [
    (dict(enumerate('abcde')), tuple('abcde')),
    # With gaps, as transformers takes them: by their numbers.
    ({0: 'a', 1: 'b', 2: 'c', 3: 'd', 5: 'f'}, (*'abcd', 'class 4')),
    ({0: 'a', 2: 'c', 4: 'e'}, ('a', 'class 1', 'c', 'class 3', 'e')),
    (
      {0: '', 1: 'b', 2: ' ', 3: 'd', 4: 'e'},
      ('class 0', 'b', 'class 2', *'de'),
    ),
    # About other classes than those of the head.
    (dict(enumerate('ab')), ()),
    (dict(enumerate('abcdefg')), ()),
    ({i: f'LABEL_{i}' for i in range(5)}, ()),
  ],
)
def test_names_of_the_classes(tmp_path, labels, names):
  _folder(tmp_path)
  path = tmp_path / 'config.json'
  content = json.loads(path.read_text()) | {'id2label': labels}
  path.write_text(json.dumps(content))
  assert interop.read(tmp_path).class_names == names


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(num_attention_heads=0), 'num_attention_heads is 0, expected a whole'),
    (dict(num_attention_heads='2'), "heads is '2', expected a whole number"),
    (dict(patch_size='4'), "patch_size is '4', expected a side"),
    (dict(image_size=[8, 8, 8]), r'image_size is \[8, 8, 8\], expected a side'),
    (dict(layer_norm_eps='1e-6'), "eps is '1e-6', expected a number above 0"),
    (dict(hidden_act=['gelu']), r"hidden_act is \['gelu'\], expected text"),
    (dict(id2label=['a']), r"id2label is \['a'\], expected an object"),
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


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(num_attention_heads=2**20), 'heads is 1048576, expected at least 1'),
    (dict(num_attention_heads=3), 'width 16 is not a multiple of heads 3'),
    (dict(image_size=16384, patch_size=1), '268,435,456 patches'),
  ],
)
def test_sizes_that_contradict_the_weights_are_refused(
  tmp_path, changes, message
):
  _folder(tmp_path)
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with pytest.raises(
    ValueError, match=rf'config\.json describes no.*{message}'
  ):
    interop.read(tmp_path)
