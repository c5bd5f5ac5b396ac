"""Guards: ONNX Runtime, timm and transformers give the checkpoint's logits."""

import dataclasses
import json
import os

import cv2
import jax
import numpy as np
import pytest
from etils import epath
from PIL import Image

import vit_jax
from tests.interop import tiny
from vit_jax import convert, interop, loaded
from vit_jax.export import forms, parity
from vit_jax.export.program import Program
from vit_jax.runtime import installed

STATISTICS = {'image_mean': (0.4, 0.5, 0.6), 'image_std': (0.2, 0.3, 0.4)}
ALL = ('stablehlo', 'onnx', 'huggingface', 'timm')


def _program(tmp_path, model, size, channels=3, dtype='float32'):
  params = jax.tree.map(lambda x: 0.3 * x, tiny.params(model, size, channels))
  path = tmp_path / 'a.npz'
  interop.save_npz(
    path, params, model, image_size=size, class_names=list('abcde')
  )
  return Program(loaded.load(str(path)), dtype)


def _rows(program, to, names):
  chosen = forms.choose(names)
  for form in chosen.values():
    form.check(program)
  forms.write(program, to, chosen)
  return parity.compare(program, to, chosen, parity.images(program, 9))


@pytest.mark.export
@pytest.mark.filterwarnings('ignore::FutureWarning')  # PyTorch's own.
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize(
  'options, size, channels',
  [
    (dict(), (8, 12), 3),
    (dict(gelu='exact', patch_size=(4, 2)), (8, 8), 1),
    (dict(pooling='gap', **STATISTICS), (8, 8), 3),  # SigLIP's, for others.
  ],
)
def test_all_forms_agree(tmp_path, options, size, channels):
  pytest.importorskip('onnxruntime')
  torch = pytest.importorskip('torch')
  program = _program(tmp_path, tiny.vit(**options), size, channels)
  to = epath.Path(tmp_path / 'out')
  rows = _rows(program, to, ALL)
  assert [row.form for row in rows] == list(ALL)
  assert all(row.passed and row.difference < 1e-4 for row in rows)
  assert max(row.difference for row in rows) > 0  # These are other programs.
  # Programs and models name no folders of this machine.
  for file in (tmp_path / 'out').glob('**/*.*'):
    content = file.read_bytes()
    for place in (vit_jax.__file__, torch.__file__, str(tmp_path)):
      assert os.path.dirname(place).encode() not in content, file
  written = json.loads((tmp_path / 'out' / 'model.json').read_text())
  assert written['forms'] == list(ALL)
  assert {p.name for p in to.iterdir()} == {
    *('model.json', 'model.stablehlo', 'model.onnx', 'huggingface', 'timm')
  }


@pytest.mark.hf
@pytest.mark.parametrize(
  'options',
  [
    dict(),
    dict(pooling='gap', gelu='exact'),
    dict(width=56, mlp_dim=488, depth=1),  # 56 * (488 / 56) < 488.
    dict(layer_scale=1e-4, class_position=False, registers=2, **STATISTICS),
    dict(
      embedding_norm=True, patch_bias=False, gelu='quick', norm_epsilon=1e-5
    ),
    dict(mlp='swiglu', layer_scale=1e-4, qkv_bias=False),
    dict(pooling='map'),
    dict(pooling='gap_patches', final_norm='pooled', gelu='exact'),
    dict(distillation_token=True),
    dict(
      rotary='dinov3',
      position_embedding='none',
      norm_epsilon=1e-5,
      registers=1,
      gelu='exact',
      layer_scale=1e-4,
      key_bias=False,
      mlp='swiglu',
      mlp_dim=64,
    ),
  ],
)
def test_timm_builds_the_model_of_the_folder(tmp_path, options):
  pytest.importorskip('timm')
  program = _program(tmp_path, tiny.vit(**options), (8, 12))
  (row,) = _rows(program, epath.Path(tmp_path / 'out'), ['timm'])
  assert row.difference < 1e-4
  config = json.loads((tmp_path / 'out/timm/config.json').read_text())
  assert config['label_names'] == list('abcde')


def test_models_that_others_lack_are_refused(tmp_path, monkeypatch):
  program = _program(tmp_path, tiny.vit(), (8, 8))
  monkeypatch.setattr(installed, 'require', lambda *_, **__: None)
  for form, options in (
    ('timm', dict(pooling='token_gap')),
    ('timm', dict(norm_epsilon=1e-12)),
    ('onnx', dict(pooling='map')),
    ('huggingface', dict(position_embedding='2d')),
    ('huggingface', dict(parallel=True)),
    ('timm', dict(qk_norm=True)),
    ('huggingface', dict(norm_bias=False)),
  ):
    forms.FORMS[form].check(program)
    other = dataclasses.replace(program.loaded, model=tiny.vit(**options))
    with pytest.raises(ValueError, match=next(iter(options))):
      forms.FORMS[form].check(dataclasses.replace(program, loaded=other))


@pytest.mark.hf
def test_the_pipeline_of_transformers_gives_our_top_five(tmp_path):
  model = tiny.vit(num_classes=8)
  # About a trained model's scale; larger weights magnify rounding errors.
  params = jax.tree.map(lambda x: 0.3 * x, tiny.params(model))
  params['head'] = jax.tree.map(lambda x: 6 * x, params['head'])
  names = [f'class {letter}' for letter in 'abcdefgh']
  interop.save_npz(
    tmp_path / 'a.npz', params, model, image_size=8, class_names=names
  )
  transformers = pytest.importorskip('transformers')
  convert.convert(f'{tmp_path}/a.npz', f'{tmp_path}/hf')
  rng = np.random.default_rng(0)
  small = rng.integers(0, 256, (6, 8, 8, 3), np.uint8)
  # Smooth, so that an antialiased resize is about the same.
  smooth = [cv2.resize(image, (80, 64)) for image in small[:3]]
  images = [Image.fromarray(image) for image in [*small, *smooth]]
  classify = transformers.pipeline('image-classification', f'{tmp_path}/hf')
  found = classify(images, top_k=5)
  ours = vit_jax.load(f'{tmp_path}/a.npz').predict(images).best(5)
  for theirs, expected in zip(found, ours, strict=True):
    assert [x['label'] for x in theirs] == [x['class'] for x in expected]
  for theirs, expected in zip(found[:6], ours[:6], strict=True):
    np.testing.assert_allclose(
      [x['score'] for x in theirs],
      [x['probability'] for x in expected],
      atol=1e-4,
    )
  # The images are told apart.
  assert len({tuple(x['label'] for x in one) for one in found}) > 1
