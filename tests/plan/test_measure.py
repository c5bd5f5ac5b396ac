"""Guards: `--topology=local` measures steps and memory on this machine."""

import json
import types

import jax
import pytest

from vit_jax.configs import quickstart
from vit_jax.plan import compiling, many_runs, measure, one_run

GIB = compiling.GIB


def quiet(text):
  del text


def tiny():
  config = quickstart.pretrain()
  config.model.update(width=16, depth=1, heads=2, mlp_dim=32)
  config.model.representation_size = 0
  config.data.batch_size = 16
  return one_run.Run('tiny', config)


@pytest.mark.gate
def test_this_machine_is_measured():
  figures = measure.figures(tiny(), 3, quiet)
  assert figures['topology'] == 'cpu:8'
  assert figures['fits'] is True
  assert figures['step_ms'] > 0
  assert figures['step_ms_corrected'] == figures['step_ms']
  assert figures['images_per_sec'] == pytest.approx(16e3 / figures['step_ms'])
  assert figures['hbm_gib'] > 0
  assert figures['settings']['model.dtype'] == 'float32'
  # A CPU has no known peak, and its cores are not TensorCores.
  assert figures['mfu'] is figures['core_days'] is None
  json.dumps(figures)
  page = many_runs.render_all([figures], '')
  assert 'A step takes' in page
  assert figures['backend'] == 'cpu'
  assert f'compiler  cpu ({figures["runtime"]}), jax {jax.__version__}' in page


def _device(kind='NVIDIA L4', **stats):
  return types.SimpleNamespace(device_kind=kind, memory_stats=lambda: stats)


NEEDED = compiling.Memory(GIB, 0, 0, 0, temporaries=4 * GIB)


@pytest.mark.parametrize(
  'stats, seconds, expected',
  [
    # Expected: GiB, their source, usable GiB, whether the run fits.
    ({}, 1.0, (5, 'compiler', None, True)),
    (
      {'peak_bytes_in_use': 6 * GIB, 'bytes_limit': 8 * GIB},
      1.0,
      (6, 'measured', 8, True),
    ),
    # The memory ran out, so the peak does not tell what the step needs.
    (
      {'peak_bytes_in_use': 3 * GIB, 'bytes_limit': 4 * GIB},
      None,
      (5, 'compiler', 4, False),
    ),
  ],
)
def test_memory(stats, seconds, expected):
  found = measure._memory(NEEDED, _device(**stats), True, seconds)
  keys = ('hbm_gib', 'hbm_source', 'hbm_usable_gib', 'fits')
  assert tuple(found[key] for key in keys) == expected
  assert found['hbm']['temporaries'] == 4


def test_speed():
  run = one_run.analyse(tiny()).analysis
  found = measure._speed(run, 0.5, 2, _device())
  assert found['images_per_sec_per_core'] == 16 / 0.5 / 2
  assert found['mfu'] == pytest.approx(run.step_flops / 0.5 / (2 * 121e12))
  days = 0.5 * run.total_steps / 86_400
  assert (found['wall_days'], found['device_days']) == (days, 2 * days)
