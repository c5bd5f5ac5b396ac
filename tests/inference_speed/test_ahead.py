"""Guards: --device=v3 estimates speeds by the compiler (a fake one here)."""

import types

import jax
import pytest

from vit_jax import models
from vit_jax.inference_speed import ahead
from vit_jax.plan import devices

HLO = """HloModule m, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %a = f32[8]{0} add(%p, %p), backend_config={"estimated_cycles":"940000"}
}
"""


def _stats():
  return types.SimpleNamespace(
    argument_size_in_bytes=100,
    output_size_in_bytes=20,
    alias_size_in_bytes=3,
    temp_size_in_bytes=4000,
    generated_code_size_in_bytes=50000,
    peak_memory_in_bytes=0,
  )


@pytest.fixture
def no_compiler(monkeypatch):
  compiled = types.SimpleNamespace(memory_analysis=_stats, as_text=lambda: HLO)
  monkeypatch.setattr(jax.stages.Lowered, 'compile', lambda self: compiled)
  monkeypatch.setattr(devices, 'compile_only', lambda target: jax.devices())


def test_memory_comes_from_the_compiler_and_time_from_the_estimate(
  no_compiler,
):
  device = ahead.find('v3', None, correction=0.8)
  assert device.name == 'TPU v3 TensorCore'
  assert (device.unit, device.cores, device.estimated) == ('core', 1, True)
  assert device.memory_bytes == int(15.48 * 2**30)
  model = models.build(
    'ViT-B/16', num_classes=2, width=16, depth=1, heads=2, mlp_dim=16
  )
  program = device.compile(model, 16, 1)
  assert program.bytes == 54_117
  # At 940 MHz, 940,000 cycles take a millisecond.
  assert program.seconds() == pytest.approx(1e-3 / 0.8)


def test_without_the_compiler_the_error_says_how_to_install_it(monkeypatch):
  monkeypatch.setattr(devices, 'have_compiler', lambda: False)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[plan\]"'):
    ahead.find('v3', None, 1)
