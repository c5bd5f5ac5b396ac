"""Guards `vit_jax.export`: its table, its exit code, and what it refuses."""

import dataclasses
import re

import cv2
import jax
import numpy as np
import pytest
from etils import epath

from tests.export import test_stablehlo
from tests.interop import tiny
from vit_jax import interop
from vit_jax.export import description, forms, parity, writing
from vit_jax.export.program import Program
from vit_jax.inspection import subject


@pytest.fixture
def npz(tmp_path):
  path = tmp_path / 'a.npz'
  model = tiny.vit(gelu='exact', depth=1)
  interop.save_npz(path, tiny.params(model), model, image_size=8)
  return path


@pytest.mark.gate
def test_the_command_exports_and_compares(tmp_path, npz, command):
  words = [f'--checkpoint={npz}', f'--to={tmp_path}/out', '--image_size=12']
  done = command('vit_jax.export', *words)
  assert done.returncode == 0, done.stderr
  assert 'on 32 random images' in done.stdout
  assert re.search(r'stablehlo +\S+ +\S+ +\S+  ok', done.stdout)
  written = description.read(epath.Path(tmp_path / 'out'))
  assert written['input']['shape'] == ['b', 12, 12, 3]


def test_rows_compare_with_the_checkpoint_and_with_each_other(tmp_path, npz):
  program = Program(subject.load(str(npz)))
  pixels = parity.images(program, 9)
  run = jax.jit(program)
  expected = run(pixels)
  made = {
    'good': forms.FORMS['stablehlo'],
    'off': dataclasses.replace(
      forms.FORMS['stablehlo'],
      # Only the last of two batches shows it.
      logits=lambda _, part: run(part) + 0.5 * (part[0] == pixels[8]).all(),
    ),
    'nan': dataclasses.replace(
      forms.FORMS['stablehlo'], logits=lambda _, part: run(part) * np.nan
    ),
  }
  made['good'].write(program, epath.Path(tmp_path))
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
  program = Program(subject.load(str(npz), preprocess='central_crop'))
  found = parity.images(program, 5, (str(tmp_path),))
  assert found.shape == (2, 8, 8, 3)
  np.testing.assert_array_equal(found[0], image[6:14, 11:19, ::-1])


def test_a_check_is_of_the_preprocessing_that_was_exported(tmp_path, npz):
  to = epath.Path(tmp_path / 'out')
  words = dict(image_size=(12, 12), preprocess='resize(14)|central_crop')
  program = Program(subject.load(str(npz), **words))
  writing.write(program, to, forms.choose(['stablehlo']))
  written = description.read(to)
  description.check_same(written, program, to)
  for key, value, message in (
    ('image_size', (8, 8), r'image_size is \[12, 12\], and now .* \[8, 8\]'),
    ('preprocess', 'resize', "preprocessing.text is 'resize.14.* 'resize'"),
  ):
    other = Program(subject.load(str(npz), **words | {key: value}))
    with pytest.raises(ValueError, match=message):
      description.check_same(written, other, to)


def test_errors_say_what_to_do(tmp_path, npz):
  program = Program(subject.load(str(npz)))
  writing.write(
    program, epath.Path(tmp_path) / 'out', forms.choose(['stablehlo'])
  )
  path = tmp_path / 'out' / 'model.stablehlo'
  path.write_bytes(path.read_bytes()[:-1] + b'!')
  with pytest.raises(ValueError, match='SHA-256 is not the one in'):
    description.read(epath.Path(tmp_path / 'out'))
  path.unlink()
  with pytest.raises(ValueError, match='stablehlo is missing'):
    description.read(epath.Path(tmp_path / 'out'))
  with pytest.raises(ValueError, match=r"no form 'tflite'.*stablehlo"):
    forms.choose(['tflite'])
  with pytest.raises(ValueError, match='has no head'):
    Program(dataclasses.replace(program.subject, has_head=False))
  with pytest.raises(ValueError, match='has no head'):
    Program(subject.load(str(_headless(tmp_path))))


def _headless(tmp_path):
  model = tiny.vit()
  params = tiny.params(model)
  flat = tiny.flat({k: v for k, v in params.items() if k != 'head'})
  np.savez(tmp_path / 'headless.npz', **flat)
  return tmp_path / 'headless.npz'


def test_only_an_earlier_export_is_replaced(tmp_path):
  to = epath.Path(tmp_path)
  writing.check_target(to / 'new', overwrite=False)
  writing.check_target(to, overwrite=False)  # It is empty.
  (to / 'mine').write_text('')
  with pytest.raises(ValueError, match='is no export'):
    writing.check_target(to, overwrite=True)
  (to / 'model.json').write_text('')
  writing.check_target(to, overwrite=True)
  with pytest.raises(ValueError, match='--overwrite replaces it'):
    writing.check_target(to, overwrite=False)


def test_bfloat16_differs_from_float32(tmp_path):
  model = tiny.vit()
  test_stablehlo._npz(tmp_path / 'a.npz', model, (8, 8))
  loaded = subject.load(f'{tmp_path}/a.npz')
  pixels = parity.images(Program(loaded), 4)
  one, other = (
    jax.jit(Program(loaded, dtype))(pixels) for dtype in ('bfloat16', 'float32')
  )
  assert 1e-4 < abs(one - other).max() < 0.3
