"""Guards: memory an image is the slope between two batches that have room."""

import os
import pathlib
import subprocess
import sys

import pytest

from vit_jax.paper.cost import planning, training_memory
from vit_jax.plan import devices

ROOT = pathlib.Path(__file__).parents[3]
USABLE = 15.5
# Model -> GiB of the state, and of an image. Any others have 1 and 0.125.
NEEDS = {'ViT-H/14': (9.0, 0.25), 'BiT-R152x4': (7.0, 0.75)}


def model_of(config):
  return config.partition(':')[2].removesuffix(',jft300m')


class Compiler:
  """Stands in for `vit_jax.plan`; remembers what it compiled."""

  def __init__(self, needs=NEEDS):
    self.asked = []
    self._needs = needs

  def __call__(self, words):
    config, batch, topology, form = words
    config = config.removeprefix('--config=')
    batch = int(batch.removeprefix('--config.data.batch_size='))
    assert (topology, form) == ('--topology=v3:2x2', '--json')
    model = model_of(config)
    self.asked.append((model, batch))
    state, image = self._needs.get(model, (1.0, 0.125))
    if 'mini.py' in config:
      state, image = 0.001, 0.0005
    return {
      'config': config,
      'topology': 'v3:2x2',
      'hbm_gib': state + image * batch / 8 + batch / 2**13,
      'hbm': {'program': batch / 2**13},
      'hbm_usable_gib': USABLE,
      'forward_gmacs': 4.4,
      'params': 88_000_000,
      'libtpu': '0.0.1',
      'jax': '0.12.0',
    }


def test_memory_an_image_is_without_the_state(tmp_path):
  compiler = Compiler()
  training_memory.measure('paper', tmp_path, compiler)
  found = training_memory.read(tmp_path, 'paper')
  assert list(found) == list(training_memory.MODELS)
  assert found['ViT-B/32'].per_image == 0.125
  assert found['ViT-B/32'].gmacs == 4.4
  assert found['ViT-B/32'].parameters == 88
  assert [b for m, b in compiler.asked if m == 'ViT-B/32'] == [512, 256]
  # 16 images take 9 + 4 GiB, which leaves room; 32 take 9 + 8 GiB.
  batches = [b for m, b in compiler.asked if m == 'ViT-H/14']
  assert batches == [512, 256, 128, 64]
  assert list(found['ViT-H/14'].plans) == [16, 8]
  assert found['ViT-H/14'].per_image == 0.25
  assert list(found['BiT-R152x4'].plans) == [8, 4]
  assert found['BiT-R152x4'].per_image == 0.75


def test_a_model_without_two_batches_is_not_measured(tmp_path):
  compiler = Compiler({'ViT-B/32': (12.5, 0.125)})
  training_memory.measure('paper', tmp_path, compiler)
  total = len(training_memory.MODELS)
  assert [b for m, b in compiler.asked if m == 'ViT-B/32'] == [
    *(512, 256, 128, 64, 32)
  ]
  assert training_memory.progress('paper', tmp_path) == (total - 1, total)
  assert 'ViT-B/32' not in training_memory.read(tmp_path, 'paper')


def test_an_interruption_loses_no_compilation(tmp_path):
  compiler = Compiler()

  def interrupted(words):
    if len(compiler.asked) == 3:
      raise KeyboardInterrupt
    return compiler(words)

  with pytest.raises(KeyboardInterrupt):
    training_memory.measure('paper', tmp_path, interrupted)
  assert training_memory.progress('paper', tmp_path)[0] == 1
  training_memory.measure('paper', tmp_path, compiler)
  assert len(compiler.asked) == len({*compiler.asked})
  count = len(compiler.asked)
  training_memory.measure('paper', tmp_path, compiler)
  assert len(compiler.asked) == count


def test_a_failure_stops_no_other_model(tmp_path):
  compiler = Compiler()

  def failing(words):
    if model_of(words[0]) == 'ViT-B/32':
      raise ValueError('it crashed')
    return compiler(words)

  with pytest.raises(ValueError, match=r'ViT-B/32,jft300m: it crashed') as e:
    training_memory.measure('paper', tmp_path, failing)
  assert str(e.value).startswith('training_memory: ')
  total = len(training_memory.MODELS)
  assert training_memory.progress('paper', tmp_path) == (total - 1, total)


@pytest.mark.parametrize('scale', ['mini', 'midi'])
def test_other_scales_have_the_models_of_the_miniature(tmp_path, scale):
  compiler = Compiler()
  training_memory.measure(scale, tmp_path, compiler)
  [plan, *_] = planning.read(tmp_path / 'training_memory')
  assert plan['config'] == 'configs/mini.py:ViT-B/32,jft300m'
  total = len(training_memory.MODELS)
  assert training_memory.progress(scale, tmp_path) == (total, total)
  assert training_memory.progress('paper', tmp_path) == (0, total)
  assert {batch for _, batch in compiler.asked} == {8 * 256, 8 * 128}


@pytest.mark.parametrize('scale', ['paper', 'mini'])
@pytest.mark.parametrize('model', training_memory.MODELS)
def test_models_have_configs(scale, model):
  from vit_jax.runtime import command_line

  run = training_memory._run(model, 8, scale)
  config = command_line.read_config([f'--config={run.config}'])
  assert config.model.name == model
  assert tuple(config.image_size) == ((224,) if scale == 'paper' else (24,)) * 2


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
  not devices.have_compiler(), reason='libtpu is not installed'
)
def test_the_real_compiler_states_the_memory_of_an_image(tmp_path):
  code = (
    'import pathlib; from vit_jax.paper.cost import training_memory as m;'
    ' m.MODELS = ("ViT-B/32",);'
    f' m.measure("mini", pathlib.Path({str(tmp_path)!r}))'
  )
  subprocess.run(
    [sys.executable, '-c', code],
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    check=True,
  )
  found = training_memory.read(tmp_path, 'mini')['ViT-B/32']
  assert list(found.plans) == [256, 128]
  # A miniature of 2 blocks and 10 tokens: less than a thousandth of 16 GiB.
  assert 0 < found.per_image < 0.001
