"""Guards: programs are timed here, or estimated by a compiler (a fake one)."""

import types

import jax
import numpy as np
import pytest

from tests.interop import tiny
from vit_jax import models
from vit_jax.inference_speed import devices
from vit_jax.plan import devices as plan_devices

HLO = """HloModule m, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} add(%p, %p), backend_config={"estimated_cycles":"940000"}
}
"""
STATS = types.SimpleNamespace(
  argument_size_in_bytes=100,
  output_size_in_bytes=20,
  alias_size_in_bytes=3,
  temp_size_in_bytes=4000,
  generated_code_size_in_bytes=50000,
  peak_memory_in_bytes=0,
)
TINY = dict(width=16, depth=1, heads=2, mlp_dim=32, num_classes=10)


def test_a_program_takes_time_and_at_least_its_arguments_memory():
  model = models.build('ViT-B/16', **TINY)
  timing = dict(warm_up=1, calls=3, max_seconds=10)
  device = devices.local(timing)
  assert (device.platform, device.unit, device.cores) == ('cpu', 'device', 1)
  assert device.memory_bytes == 2**30
  held = sum(
    4 * leaf.size for leaf in jax.tree.leaves(tiny.params(model, (32, 32)))
  )
  program = device.compile(model, 32, 4)
  assert program.bytes >= held + 4 * 32 * 32 * 3 + 4 * 10 * 4
  assert 0 < program.seconds() < 10


def test_the_program_computes_the_models_logits():
  model = models.build('ViT-B/16', head_bias=-2.5, **TINY)
  seen = {}

  def seconds(compiled):
    params = tiny.params(model, (32, 32))
    images = np.full((2, 32, 32, 3), 255, np.uint8)
    seen['found'] = compiled(params, images)
    seen['expected'] = jax.jit(model.apply)(
      {'params': params}, np.ones((2, 32, 32, 3), np.float32)
    )[0]
    return 5.0

  device = devices.Device('', 'cpu', 1, 1, jax.devices()[0], seconds)
  assert device.compile(model, 32, 2).seconds() == 5
  np.testing.assert_allclose(seen['found'], seen['expected'], atol=1e-5)


def test_an_absent_tpu_has_the_compilers_memory_and_time(monkeypatch):
  compiled = types.SimpleNamespace(
    memory_analysis=lambda: STATS, as_text=lambda: HLO
  )
  monkeypatch.setattr(jax.stages.Lowered, 'compile', lambda self: compiled)
  monkeypatch.setattr(plan_devices, 'compile_only', lambda _: jax.devices())
  device = devices.absent('v3')
  assert device.name == 'TPU v3 TensorCore'
  assert (device.platform, device.unit, device.cores) == ('tpu', 'core', 1)
  assert device.memory_bytes == int(15.48 * 2**30)
  program = device.compile(models.build('ViT-B/16', **TINY), 16, 1)
  assert program.bytes == 54_117
  # At 940 MHz, 940,000 cycles take a millisecond.
  assert program.seconds() == pytest.approx(1e-3)


def test_without_the_compiler_the_error_says_how_to_install_it(monkeypatch):
  monkeypatch.setattr(plan_devices, 'have_compiler', lambda: False)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[plan\]"'):
    devices.absent('v3')
