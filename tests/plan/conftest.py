"""Stands in for the TPU compiler."""

import jax
import pytest

from vit_jax.plan import compiling, devices


@pytest.fixture
def compiler(monkeypatch):
  """Stands in for libtpu; `needs(config, target)` returns a step's GiB."""
  calls = []

  def needs(config, target):
    raise NotImplementedError

  def compile_step(config, target):
    size = compiler.needs(config, target)
    calls.append((config, str(target)))
    memory = compiling.Memory(
      0, 0, 0, 0, temporaries=round(size * compiling.GIB)
    )
    estimate = 'estimate' if size < 15.48 else None
    return compiling.Compiled(
      memory, target.chip.hbm_usable_bytes, estimate, 1.0
    )

  def compile_only(target):
    if target.devices > 8:
      pytest.skip('Only eight simulated devices.')
    return jax.devices()[: target.devices]

  class Compiler:
    pass

  compiler = Compiler()
  compiler.needs, compiler.calls = needs, calls
  monkeypatch.setattr(compiling, 'compile_step', compile_step)
  monkeypatch.setattr(devices, 'compile_only', compile_only)
  return compiler
