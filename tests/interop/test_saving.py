"""Guards what is written: exact round trips, and descriptions beside arrays."""

import json

import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import convert, interop, models
from vit_jax.interop import inference

_LARGE = dict(parallel=True, qk_norm=True, qkv_bias=False, norm_bias=False)
_RECENT = dict(norm='rms', mlp='swiglu', layer_scale=1e-4, rotary='mixed')
# Those of released files and of large ones are told by their arrays.
TOLD = {
  'vit': (tiny.vit(representation_size=8), (8, 8)),
  'gap': (tiny.vit(pooling='gap', patch_size=(4, 2)), (16, 8)),
  'post': (tiny.vit(norm_position='post'), (8, 8)),
  'large': (tiny.vit(pooling='map', **_LARGE), (8, 8)),
  'recent': (tiny.vit(**_RECENT), (8, 8)),
  'hybrid': (
    tiny.vit(resnet_blocks=(1, 1), patch_size=2, resnet_width=0.25),
    (32, 32),
  ),
  'bit': (tiny.bit(), (224, 224)),
}
OTHERS = {
  'scanned': (tiny.vit(scan=True), (8, 8)),
  '2d': (tiny.vit(position_embedding='2d'), (8, 12)),
  'axial': (tiny.vit(attention='axial', pooling='gap'), (8, 8)),
  'relative': (tiny.vit(position_embedding='relative'), (8, 8)),
  'rotary': (tiny.vit(rotary='axial', rotary_base=9.0), (8, 8)),
  'axial resnet': (tiny.axial_resnet(), (16, 16)),
}


@pytest.mark.parametrize('name', [*TOLD, *OTHERS])
def test_round_trip_is_exact(tmp_path, name):
  model, size = (TOLD | OTHERS)[name]
  params = tiny.params(model, size)
  interop.save_npz(tmp_path / 'a.npz', params, model, image_size=size)
  loaded = interop.load_npz(tmp_path / 'a.npz', model, size)
  tiny.assert_equal(loaded, params)
  assert {type(v) for v in tiny.flat(loaded).values()} == {np.ndarray}
  interop.save_npz(tmp_path / 'b.npz', loaded, model, image_size=size)
  for ending in ('.npz', '.npz.json'):
    one, two = ((tmp_path / (n + ending)).read_bytes() for n in 'ab')
    assert one == two
  expected = tiny.vit() if name == 'scanned' else model
  assert interop.read(tmp_path / 'a.npz').model == expected
  # The file is read without its `.json`, too.
  (tmp_path / 'a.npz.json').unlink()
  bare = interop.read(tmp_path / 'a.npz')
  assert bare.model is None
  if name in TOLD:
    assert interop.infer_model(bare.params) == (model, size)
    tiny.assert_equal(interop.load_npz(tmp_path / 'a.npz', model), params)


@pytest.mark.parametrize('name', ['ViT-B/16', 'BiT-R50x1'])
def test_named_models_are_described_by_their_names(name):
  model = models.build(name, num_classes=10)
  assert inference.describe(model) == (name, {})
  _, overrides = inference.describe(model.clone(num_classes=3))
  assert not overrides


def test_arrays_that_leave_the_model_open_are_refused():
  def file(**options):
    return tiny.flat(tiny.params(tiny.vit(**options)))

  oblong = tiny.flat(tiny.params(tiny.vit(), (8, 16)))
  with pytest.raises(ValueError, match='8 patches do not form a square grid'):
    interop.infer_model(oblong)
  assert interop.infer_model(oblong, (8, 16)) == (tiny.vit(), (8, 16))
  for kind in ('none', 'sincos2d', 'relative'):
    with pytest.raises(ValueError, match='Name the model'):
      interop.infer_model(file(position_embedding=kind))
  arrays = file()
  del arrays['head/bias']
  assert interop.infer_model(arrays)[0] == tiny.vit(num_classes=1)
  with pytest.raises(ValueError, match='missing among head/bias, layer1'):
    interop.infer_model({'head/bias': np.zeros(3), 'layer1/weight': np.ones(3)})


SAVERS = (interop.save_npz, interop.save_huggingface)


@pytest.mark.parametrize(
  'source, size, message',
  [
    (tiny.vit(num_classes=3), 8, r'head/bias is \(3,\), expected \(5,\)'),
    (tiny.vit(depth=3), 8, r'extra \(16\)'),
    (tiny.vit(pooling='map'), 8, r'missing \(1\):\n    cls'),
    (tiny.vit(), 12, r'pos_embedding is \(1, 5, 16\), expected \(1, 10, 16\)'),
    (tiny.vit(), None, 'NaN or infinite values in 1 of 40 arrays: head/bias'),
  ],
)
def test_wrong_parameters_are_not_written(tmp_path, source, size, message):
  params = tiny.params(source)
  if size is None:
    params['head']['bias'] = np.full(5, np.nan)
  for save in SAVERS:
    with pytest.raises(ValueError, match=message):
      save(tmp_path / 'a.npz', params, tiny.vit(), image_size=size or 8)
    with pytest.raises(ValueError, match='1 class names for 5 classes'):
      save(
        *(tmp_path / 'a.npz', params, tiny.vit()),
        image_size=8,
        class_names=['a'],
      )
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'changes',
  [
    {'image_size': [8.5, 8]},
    {'image_size': 10**9},
    {'image_size': 2},
    {'class_names': ['a']},
    {'overrides': {'width': '16'}},
    {'overrides': {'depth': 10**9}},
    {'overrides': {'name': 'x'}},
    {'overrides': None},
    {'num_classes': '3'},
    {'model': 'nothing'},
  ],
)
def test_the_json_file_is_checked(tmp_path, changes):
  path = tmp_path / 'a.npz.json'
  interop.save_npz(tmp_path / 'a.npz', tiny.params(tiny.vit()), tiny.vit())
  content = json.loads(path.read_text())
  path.write_text(json.dumps(content | changes))
  with pytest.raises(ValueError, match=r'a\.npz\.json does not describe weigh'):
    interop.read(tmp_path / 'a.npz')
  [key] = changes
  path.write_text(json.dumps({k: v for k, v in content.items() if k != key}))
  with pytest.raises(ValueError, match=rf'a\.npz\.json .*{key}'):
    interop.read(tmp_path / 'a.npz')


def test_contents_of_the_json_file(tmp_path):
  model = tiny.vit(gelu='exact', num_classes=2)
  interop.save_npz(
    tmp_path / 'a.npz',
    tiny.params(model, (8, 16)),
    model,
    image_size=(8, 16),
    class_names=['cat', 'dog'],
    preprocessing='resize',
    loss='sigmoid',
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
    'loss': 'sigmoid',
  }
  weights = interop.read(tmp_path / 'a.npz')
  assert weights.model == model
  assert (weights.image_size, weights.grid) == ((8, 16), (2, 4))
  assert weights.class_names == ('cat', 'dog')
  assert weights.preprocessing == 'resize'
  _, report = interop.load(tmp_path / 'a.npz', tiny.vit(num_classes=2))
  assert report.notes[0].endswith("set gelu='exact' to compute the same")
  assert str(report).endswith('; '.join(report.notes))


def test_other_positions_that_are_not_learned_are_noted(tmp_path):
  model = tiny.vit(position_embedding='sincos2d_mae')
  path = tmp_path / 'a.npz'
  interop.save_npz(path, tiny.params(model), model, image_size=8)
  for kind, notes in (('sincos2d', 1), ('none', 1), ('sincos2d_mae', 0)):
    _, report = interop.load(path, tiny.vit(position_embedding=kind))
    assert len(report.notes) == notes


def test_a_bucket_without_its_library(monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda _: None)
  for call in (interop.read, lambda path: convert.convert('runs/a', path)):
    with pytest.raises(ValueError, match=r'gs://bucket.*jax\[gcs\]"'):
      call('gs://bucket/a.npz')
