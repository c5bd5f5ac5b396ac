"""Guards: an exported program needs only JAX, and gives the same logits."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from etils import epath

import vit_jax
from tests.interop import tiny
from vit_jax import interop, loaded
from vit_jax.export import forms, parity, stablehlo
from vit_jax.export.program import Program
from vit_jax.models.shared import normalize

# What a user without this package types.
READER = """
import sys
import jax, jax.export
import numpy as np
for folder in sys.argv[1:]:
  data = bytearray(open(folder + '/model.stablehlo', 'rb').read())
  model = jax.export.deserialize(data)
  images = np.load(folder + '/images.npy')
  np.save(folder + '/logits.npy', model.call(images))
found = {name.partition('.')[0] for name in sys.modules}
assert not found & {'vit_jax', 'flax', 'absl', 'optax', 'orbax'}, found
"""


def _npz(path, model, size, channels=3):
  params = jax.tree.map(lambda x: 0.3 * x, tiny.params(model, size, channels))
  interop.save_npz(
    path,
    params,
    model,
    image_size=size,
    class_names=list('abcde'),
    preprocessing='resize_small(40)|central_crop',
    decoding={'upright': False, 'jpeg_dct': 'accurate'},
    loss='sigmoid',
  )
  return params


def _export(path, folder, dtype='float32'):
  program = Program(loaded.load(str(path)), dtype)
  forms.write(program, epath.Path(folder), forms.choose(['stablehlo']))
  return program


def _logits(model, params, images):
  apply = jax.jit(lambda p, x: model.apply({'params': p}, normalize(x))[0])
  return apply(params, images)


def _images(count, size, channels=3):
  shape = (count, *size, channels)
  return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_logits_without_this_package(tmp_path):
  cases = {
    'vit': (tiny.vit(gelu='exact'), (8, 12), 1),
    'hybrid': (tiny.vit(resnet_blocks=(1,), patch_size=1), (8, 8), 3),
  }
  expected = {}
  for name, (model, size, channels) in cases.items():
    params = _npz(tmp_path / 'a.npz', model, size, channels)
    _export(tmp_path / 'a.npz', tmp_path / name)
    images = _images(3, size, channels)
    np.save(tmp_path / name / 'images.npy', images)
    expected[name] = _logits(model, params, images)
  subprocess.run(
    [sys.executable, '-c', READER, *cases], cwd=tmp_path, check=True
  )
  for name, logits in expected.items():
    found = np.load(tmp_path / name / 'logits.npy')
    assert found.dtype == np.float32
    assert np.std(logits) > 0.1
    # XLA rounds constant weights otherwise than arguments; ViTs differ by 0.
    scale = np.abs(logits).max()
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-6 * scale)


@pytest.mark.gate
def test_a_resnet_takes_any_size_and_batch(tmp_path):
  model = tiny.bit()
  params = _npz(tmp_path / 'a.npz', model, (32, 32))
  _export(tmp_path / 'a.npz', tmp_path / 'out')
  for count, size in ((1, (32, 32)), (2, (33, 57))):
    images = _images(count, size)
    expected = _logits(model, params, images)
    found = stablehlo.logits(tmp_path / 'out', images)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)


def test_one_file_is_for_all_platforms_and_float32_is_exact(tmp_path):
  _npz(tmp_path / 'a.npz', tiny.vit(), (8, 8))
  texts, logits = [], []
  for dtype in ('float32', 'bfloat16'):
    program = _export(tmp_path / 'a.npz', tmp_path / 'out', dtype)
    data = (tmp_path / 'out' / 'model.stablehlo').read_bytes()
    exported = jax.export.deserialize(bytearray(data))
    assert exported.platforms == ('cpu', 'cuda', 'tpu')
    texts.append(exported.mlir_module())
    logits.append(jax.jit(program)(parity.images(program, 4)))
    # A published program names no folders of this machine.
    for place in (vit_jax.__file__, jax.__file__, str(tmp_path)):
      assert os.path.dirname(place).encode() not in data
  exact = [text.count('precision = [HIGHEST, HIGHEST]') for text in texts]
  assert exact[0] == texts[0].count('stablehlo.dot_general') > 0
  assert 0 < exact[1] < exact[0] / 4  # Only the head stays in float32.
  assert ['bf16' in text for text in texts] == [False, True]
  assert 1e-4 < abs(logits[0] - logits[1]).max() < 0.3


def test_the_description_says_what_a_user_must_do(tmp_path):
  _npz(tmp_path / 'a.npz', tiny.vit(gelu='exact'), (8, 8))
  program = Program(loaded.load(f'{tmp_path}/a.npz'))
  forms.write(program, epath.Path(tmp_path / 'out'), {})
  found = json.loads((tmp_path / 'out' / 'model.json').read_text())
  assert found['model']['name'] == 'ViT-Ti/4'
  assert found['model']['overrides']['gelu'] == 'exact'
  assert found['input']['shape'] == ['b', 8, 8, 3]
  assert found['output']['shape'] == ['b', 5]
  assert found['loss'] == 'sigmoid'
  assert found['class_names'] == list('abcde')
  expected = {'upright': False, 'jpeg_dct': 'accurate', 'channels': 3}
  assert found['decoding'] == expected
  small, crop = found['preprocessing']['operations']
  assert small.startswith('ResizeSmall(size=(40, 40)')
  assert crop == 'CentralCrop(size=(8, 8))'
