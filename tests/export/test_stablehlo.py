"""Guards: an exported program needs only JAX, and gives the same logits."""

import hashlib
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
folder, images, to = sys.argv[1:]
data = bytearray(open(folder + '/model.stablehlo', 'rb').read())
model = jax.export.deserialize(data)
np.save(to, model.call(np.load(images)))
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


@pytest.mark.parametrize(
  'model, size, channels',
  [
    (tiny.vit(gelu='exact'), (8, 12), 1),
    (tiny.vit(resnet_blocks=(1,), patch_size=1), (8, 8), 3),
  ],
)
def test_logits_without_this_package(tmp_path, model, size, channels):
  params = _npz(tmp_path / 'a.npz', model, size, channels)
  _export(tmp_path / 'a.npz', tmp_path / 'out')
  images = _images(3, size, channels)
  np.save(tmp_path / 'images.npy', images)
  subprocess.run(
    [sys.executable, '-c', READER, 'out', 'images.npy', 'logits.npy'],
    cwd=tmp_path,
    check=True,
  )
  found = np.load(tmp_path / 'logits.npy')
  expected = _logits(model, params, images)
  assert found.dtype == np.float32
  assert np.std(expected) > 0.1
  # XLA rounds constant weights otherwise than arguments; ViTs differ by 0.
  scale = np.abs(expected).max()
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)


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
  _export(tmp_path / 'a.npz', tmp_path / 'out')
  found = json.loads((tmp_path / 'out' / 'model.json').read_text())
  assert found['format_version'] == 1
  assert found['model']['name'] == 'ViT-Ti/4'
  assert found['model']['overrides']['gelu'] == 'exact'
  assert found['input']['shape'] == ['b', 8, 8, 3]
  assert found['output']['shape'] == ['b', 5]
  assert 'sigmoid' in found['output']['meaning']
  assert found['class_names'] == list('abcde')
  assert found['decoding']['upright'] is False
  assert found['decoding']['jpeg_dct'] == 'accurate'
  small, crop = found['preprocessing']['operations']
  assert small['operation'].startswith('ResizeSmall(size=(40, 40)')
  assert 'shorter side' in small['meaning']
  assert crop['operation'] == 'CentralCrop(size=(8, 8))'
  assert found['forms']['stablehlo']['calling_convention_version'] >= 9
  (file,) = found['files']
  data = (tmp_path / 'out' / file['path']).read_bytes()
  assert hashlib.sha256(data).hexdigest() == file['sha256']
  assert len(data) == file['bytes']
