"""Guards `vit_jax.export`: its table, its exit code, and what it refuses."""

import dataclasses
import json
import re
import types

import cv2
import jax
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import interop, loaded
from vit_jax.export import forms, parity
from vit_jax.export.program import Program


@pytest.fixture
def npz(tmp_path):
  path = tmp_path / 'a.npz'
  model = tiny.vit(gelu='exact', depth=1)
  interop.save_npz(path, tiny.params(model), model, image_size=8)
  return path


@pytest.mark.gate
def test_the_command_exports_and_compares(tmp_path, npz, command):
  words = ['vit_jax.export', f'--checkpoint={npz}', f'--to={tmp_path}/out']
  done = command(*words, '--image_size=12')
  assert done.returncode == 0, done.stderr
  row = r'stablehlo +\S+ +\S+  ok'
  assert re.search(row, done.stdout)
  written = json.loads((tmp_path / 'out' / 'model.json').read_text())
  assert written['input']['shape'] == ['b', 12, 12, 3]
  # A check is of what was exported.
  again = command(*words, '--check_only')
  assert re.search(row, again.stdout)
  other = tmp_path / 'other.npz'
  model = tiny.vit(gelu='exact', depth=1)
  interop.save_npz(other, tiny.params(model, seed=1), model, image_size=8)
  words[1] = f'--checkpoint={other}'
  assert command(*words, '--check_only').returncode == 1
  assert command(*words).returncode == 1  # --to is not empty.
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'a').write_text('')
  words[2] = f'--to={tmp_path}/mine'
  assert command(*words, '--overwrite').returncode == 1


def test_rows_compare_with_the_checkpoint_and_with_each_other(tmp_path, npz):
  program = Program(loaded.load(str(npz)))
  pixels = parity.images(program, 9)
  run = jax.jit(program)
  expected = run(pixels)

  def other(change):
    return types.SimpleNamespace(
      TOLERANCE=1e-5, logits=lambda _, part: run(part) + change(part)
    )

  made = {
    'good': other(lambda part: 0),
    # Only the last of two batches shows it.
    'off': other(lambda part: 0.5 * (part[0] == pixels[8]).all()),
    'nan': other(lambda part: np.nan),
  }
  good, off, nan = parity.compare(program, tmp_path, made, pixels)
  assert good.passed
  assert good.allowed == pytest.approx(1e-5 * np.abs(expected).max())
  assert off.difference == pytest.approx(0.5, abs=1e-3)
  assert not off.passed
  assert not nan.passed


def test_images_of_a_folder_are_prepared_as_in_the_evaluation(tmp_path, npz):
  image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
  for name in ('b.png', 'c.png'):
    cv2.imwrite(str(tmp_path / name), image)
  program = Program(loaded.load(str(npz), preprocess='central_crop'))
  found = parity.images(program, 5, (str(tmp_path),))
  assert found.shape == (2, 8, 8, 3)
  np.testing.assert_array_equal(found[0], image[6:14, 11:19, ::-1])


def test_what_cannot_be_exported_is_refused(npz):
  with pytest.raises(ValueError, match='tflite'):
    forms.choose(['tflite'])
  found = loaded.load(str(npz))
  with pytest.raises(ValueError, match='has no head'):
    Program(dataclasses.replace(found, has_head=False))
