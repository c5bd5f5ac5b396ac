"""Guards: plans by the real TPU compiler; minutes long, needs libtpu."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from vit_jax.plan import devices

ROOT = pathlib.Path(__file__).parents[2]
TINY = (
  '--config=configs/pretrain.py:ViT-Ti/16,imagenet2012',
  *('--config.model.depth=1', '--config.data.batch_size=64'),
  '--config.model.dropout_rate=0.0',
)

# Compiles the same step in its own process, without the command.
COMPILED = """
from vit_jax.configs import pretrain
from vit_jax.training import program
from vit_jax.plan import analysis, devices
devices.leave_hardware_alone()
config = pretrain.get_config('ViT-Ti/16,imagenet2012')
config.model.depth, config.data.batch_size = 1, 64
config.model.dropout_rate = 0.0
config = analysis.resolve(config, 'tpu')
target = devices.parse('v3:2x2')
built = program.Program(
  config, devices.layout(config, devices.compile_only(target))
)
stats = (
  built.train_step.lower(built.abstract_state, built.abstract_batch)
  .compile()
  .memory_analysis()
)
print(
  stats.argument_size_in_bytes
  + stats.temp_size_in_bytes
  + stats.output_size_in_bytes
  - stats.alias_size_in_bytes
  + stats.generated_code_size_in_bytes
)
"""

pytestmark = [
  pytest.mark.tpu_compiler,
  pytest.mark.skipif(
    not devices.have_compiler(), reason='libtpu is not installed'
  ),
]


def _python(*arguments):
  # A new process, since this one has already used JAX.
  result = subprocess.run(
    [sys.executable, *arguments],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    check=False,
  )
  assert result.returncode == 0, result.stderr
  return result.stdout


def _plan(topology, *arguments):
  return json.loads(
    _python(
      *('-m', 'vit_jax.plan', *TINY, *arguments),
      *(f'--topology={topology}', '--json'),
    )
  )


def test_the_memory_equals_the_compilers():
  figures = _plan('v3:2x2')
  assert round(figures['hbm_gib'] * 2**30) == int(_python('-c', COMPILED))
  assert sum(figures['hbm'].values()) == pytest.approx(figures['hbm_gib'])
  # All but a few parameters can be split over the eight cores.
  assert figures['hbm']['parameters'] == pytest.approx(
    figures['params'] * 4 / 8 / 2**30, rel=0.01
  )
  assert (figures['devices'], figures['device']) == (8, 'TensorCore')
  assert figures['fits'] is True
  assert 0 < figures['mfu'] < 1


@pytest.mark.parametrize(
  'topology, count, device',
  [
    ('v2:2x2', 8, 'TensorCore'),
    ('v4:2x2x1', 4, 'chip of 2 TensorCores'),
    ('v5e:1x1', 1, 'chip'),
    ('2xv5e:2x2', 8, 'chip'),
    ('v5p:2x2x1', 4, 'chip of 2 TensorCores'),
    ('v6e:2x2', 4, 'chip'),
    ('tpu7x:2x2x1', 8, 'TensorCore'),
  ],
)
def test_every_generation(topology, count, device):
  figures = _plan(topology)
  assert (figures['devices'], figures['device']) == (count, device)
  assert figures['fits'] is True
  assert figures['hbm_gib'] > 0
  assert 0 < figures['mfu'] < 1
  assert figures['shares']['matmul'] > 0


def test_settings_that_fit_are_found():
  # The attention of 512 images a core at 896 px does not fit; fewer images do.
  figures = _plan(
    *('v3:2x2', '--config.image_size=(896, 896)'),
    '--config.data.batch_size=4096',
  )
  assert figures['fits'] is False
  assert figures['hbm_gib'] > figures['hbm_usable_gib']
  fix = figures['fix']
  assert fix['fits'] is True
  assert fix['changes']['accumulation_steps'] > 1
  assert fix['hbm_gib'] < fix['hbm_usable_gib']
  assert fix['core_days'] > 0
