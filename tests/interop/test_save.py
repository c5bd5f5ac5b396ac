"""Guards `save_npz`: exact round trips, checks of `.json` and parameters."""

import json

import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import interop
from vit_jax.interop import arrays, parameter_shapes

MODELS = {
  'vit': (tiny.vit(representation_size=8), (8, 8)),
  'scanned': (tiny.vit(scan=True), (8, 8)),
  'gap': (tiny.vit(pooling='gap'), (8, 8)),
  'map': (tiny.vit(pooling='map', position_embedding='2d'), (8, 12)),
  'hybrid': (tiny.vit(resnet_blocks=(1, 1), patch_size=1), (16, 16)),
  'axial': (tiny.vit(attention='axial', pooling='gap'), (8, 8)),
  'relative': (tiny.vit(position_embedding='relative'), (8, 8)),
  'bit': (tiny.bit(), (32, 32)),
  'axial resnet': (tiny.axial_resnet(), (16, 16)),
}


@pytest.mark.parametrize('name', MODELS)
def test_round_trip_is_exact(tmp_path, name):
  model, size = MODELS[name]
  params = tiny.params(model, size)
  interop.save_npz(tmp_path / 'a.npz', params, model, image_size=size)
  loaded = interop.load_npz(tmp_path / 'a.npz', model, size)
  tiny.assert_equal(loaded, params)
  assert {type(v) for v in tiny.flat(loaded).values()} == {np.ndarray}
  interop.save_npz(tmp_path / 'b.npz', loaded, model, image_size=size)
  for ending in ('.npz', '.npz.json'):
    one, two = ((tmp_path / (n + ending)).read_bytes() for n in 'ab')
    assert one == two
  # The file is read without its `.json`, too.
  (tmp_path / 'a.npz.json').unlink()
  if name != 'map':  # Its 2-D embedding has no grid to infer.
    tiny.assert_equal(interop.load_npz(tmp_path / 'a.npz', model, size), params)


SAVERS = {
  'npz': lambda path, params, model, size: interop.save_npz(
    path / 'a.npz', params, model, image_size=size
  ),
  'huggingface': interop.save_huggingface,
}


@pytest.mark.parametrize('kind', SAVERS)
@pytest.mark.parametrize(
  'source, size, message',
  [
    (tiny.vit(num_classes=3), 8, r'head/bias is \(3,\), expected \(5,\)'),
    (tiny.vit(depth=3), 8, r'extra \(16\)'),
    (tiny.vit(depth=1), 8, r'missing \(16\)'),
    (tiny.vit(pooling='map'), 8, r'missing \(1\):\n    cls'),
    (tiny.vit(), 12, r'pos_embedding is \(1, 5, 16\), expected \(1, 10, 16\)'),
    (tiny.vit(), None, 'NaN or infinite values in 1 of 40 arrays: head/bias'),
  ],
)
def test_wrong_parameters_are_not_written(
  tmp_path, kind, source, size, message
):
  params = tiny.params(source)
  if size is None:
    params['head']['bias'] = np.full(5, np.nan)
  with pytest.raises(ValueError, match=message):
    SAVERS[kind](tmp_path, params, tiny.vit(), size or 8)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'image_size': [8.5, 8]}, r'image_size is \[8\.5, 8\], expected a side'),
    ({'class_names': ['a']}, 'There are 1 class names for 5 classes'),
    ({'overrides': {'width': '16'}}, 'describes no model: width is'),
    ({'overrides': {'name': 'x'}}, 'describes no model: .*multiple values'),
    ({'num_classes': '3'}, "num_classes is '3', expected a whole number"),
    ({'image_size': 2}, 'describes no model: .* below one patch'),
  ],
)
def test_the_json_file_is_checked(tmp_path, changes, message):
  path = tmp_path / 'a.npz.json'
  interop.save_npz(tmp_path / 'a.npz', tiny.params(tiny.vit()), tiny.vit())
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))
  with pytest.raises(ValueError, match=rf'a\.npz\.json .*{message}'):
    interop.read(tmp_path / 'a.npz')


@pytest.mark.parametrize(
  'sizes, message',
  [
    (
      dict(depth=10**9),
      'no model: depth is 1000000000, expected at least 1 and',
    ),
    (dict(depth=3), 'another model than .*: depth is 3, but in the arrays 2'),
    (
      dict(mlp_dim=25),
      'another model .*: mlp_dim is 25, but in the arrays 24',
    ),
    (dict(patch_size=10**6), r'another .*: patch_size is \(1000000, 1000000\)'),
    (dict(num_classes=6), 'another model .*: num_classes is 6, but in'),
    (dict(image_size=10**9), 'image_size is 1000000000, .* at most 16,384'),
    (dict(patch_size=1, image_size=9999), r'patch_size is \(1, 1\), but in'),
  ],
)
def test_sizes_are_checked_before_the_model_is_built(
  tmp_path, monkeypatch, sizes, message
):
  path = tmp_path / 'a.npz.json'
  interop.save_npz(tmp_path / 'a.npz', tiny.params(tiny.vit()), tiny.vit())
  content = json.loads(path.read_text())
  for key, value in sizes.items():
    (content if key in content else content['overrides'])[key] = value
  path.write_text(json.dumps(content))
  monkeypatch.setattr(parameter_shapes, 'initial', None)
  monkeypatch.setattr(arrays, '_read_array', None)
  with pytest.raises(ValueError, match=rf'a\.npz\.json .*{message}') as error:
    interop.load(tmp_path / 'a.npz', tiny.vit(), 8)
  assert len(str(error.value).splitlines()) == 1


def test_contents_of_the_json_file(tmp_path):
  model = tiny.vit(gelu='exact', num_classes=2)
  interop.save_npz(
    tmp_path / 'a.npz',
    tiny.params(model, (8, 16)),
    model,
    image_size=(8, 16),
    class_names=['cat', 'dog'],
    preprocessing='resize',
  )
  assert json.loads((tmp_path / 'a.npz.json').read_text()) == {
    'model': 'ViT-Ti/4',
    'num_classes': 2,
    'overrides': {
      'width': 16,
      'depth': 2,
      'heads': 2,
      'mlp_dim': 24,
      'gelu': 'exact',
    },
    'image_size': [8, 16],
    'preprocessing': 'resize',
    'class_names': ['cat', 'dog'],
  }
  weights = interop.read(tmp_path / 'a.npz')
  assert weights.model == model
  assert weights.image_size == (8, 16)
  assert weights.grid == (2, 4)
  assert weights.class_names == ('cat', 'dog')
  assert weights.preprocessing == 'resize'
  _, report = interop.load(tmp_path / 'a.npz', tiny.vit(num_classes=2), (8, 16))
  assert report.notes == (
    "these weights come from a model with gelu='exact', this one has 'tanh':"
    " set gelu='exact' to compute the same",
  )
  assert str(report).endswith(f'; {report.notes[0]}')
  (tmp_path / 'a.npz.json').write_text('{"model": "ViT-B/16"}')
  with pytest.raises(ValueError, match=r'it lacks class_names, image_size'):
    interop.read(tmp_path / 'a.npz')
