"""From a config to a plan, with the compiler's answers made up."""

import dataclasses

import jax
import pytest

from configs import pretrain
from vit_jax.plan import auto, compiling, devices, runs, search

GIB = compiling.GIB


@pytest.fixture
def compiler(monkeypatch):
  """Stands in for libtpu: `needs(config, target)` says how many GiB it is."""
  calls = []

  def needs(config, target):
    raise NotImplementedError

  def compile_step(config, target):
    size = compiler.needs(config, target)
    calls.append((config, str(target)))
    memory = compiling.Memory(0, 0, 0, 0, temporaries=round(size * GIB))
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


def _run(batch_size=512, **changes):
  config = pretrain.get_config('ViT-L/16,jft300m')
  config.data.batch_size = batch_size
  config.model.depth = 2
  # Whole copies of the state, which a search may split.
  config.mesh.data, config.mesh.fsdp = -1, 1
  return runs.Run('L', config).changed(changes)


def _plan(run, topology='v3:2x2', **effort):
  effort = runs.Effort(**effort)
  return runs.plan(run, devices.parse(topology), effort, lambda text: None)


def test_what_fits_is_compiled_once(compiler):
  compiler.needs = lambda config, target: 3.5
  plan = _plan(_run())
  assert plan.fits
  assert plan.fix is None
  assert plan.memory.total == 3.5 * GIB
  assert plan.analysis.batch_size == 512
  assert [topology for _, topology in compiler.calls] == ['v3:2x2']


def test_accumulation_is_found(compiler):
  compiler.needs = lambda config, target: 4 + 48 / config.accumulation_steps
  plan = _plan(_run())
  assert plan.fits is False
  # 4 + 48 / 4 is 16: not yet.
  assert dict(plan.fix.changes) == {'accumulation_steps': 8}
  assert plan.fix.fits
  assert plan.fix.config.accumulation_steps == 8
  assert plan.config.accumulation_steps == 1
  assert plan.fix.memory.total == 10 * GIB
  assert len(plan.tried) == len(compiler.calls)


def test_no_search(compiler):
  compiler.needs = lambda config, target: 20
  plan = _plan(_run(), search=False)
  assert (plan.fits, plan.fix, len(compiler.calls)) == (False, None, 1)


def test_what_is_hopeless_is_not_compiled(compiler):
  compiler.needs = lambda config, target: 9
  run = _run(batch_size=65536)
  given = runs.describe({}, run, devices.parse('v3:2x2'))
  assert given.least() > 16 * GIB
  plan = _plan(run, search=False)
  assert (plan.fits, plan.compiled, compiler.calls) == (False, None, [])
  assert plan.memory.total == pytest.approx(given.least(), abs=1)


def test_what_is_known_of_the_memory_before(compiler):
  # L/16 of depth 2 in float32, and Adam's two moments.
  run = _run()
  target = devices.parse('v3:2x2')
  given = runs.describe({}, run, target)
  config = runs.analyse(run).config
  params = 4 * runs.analyse(run).analysis.params
  batch = 512 // 8 * (224 * 224 * 3 + 16 * 4 + 2)
  counters = given.held - 3 * params - batch
  # The step, and those of Adam and of the schedule.
  assert 0 <= counters <= 64
  # Each device has the sum of all: in bfloat16, but for biases and norms.
  assert params / 2 < given.gradients < 0.51 * params
  half = runs.describe({'accumulation_steps': 2}, run, target)
  assert half.activations == pytest.approx(given.activations / 2)
  # The sum over the micro-batches is held beside one's gradients.
  assert half.gradients == 2 * params
  split = {'mesh.fsdp': 8, 'mesh.shard': 'optimizer'}
  found = runs.describe(split, run, target)
  assert found.held == pytest.approx(params * (1 + 2 / 8) + batch, rel=0.01)
  assert found.gradients == given.gradients
  # The compiler keeps of the sum what a device updates.
  split['mesh.partition'] = 'compiler'
  found = runs.describe(split, run, target)
  assert found.gradients == pytest.approx(params / 8, rel=0.01)
  # Parameters in parts are whole for the step, in bfloat16.
  split['mesh.shard'] = 'all'
  found = runs.describe(split, run, target)
  assert found.held == pytest.approx(params * 3 / 8 + batch, rel=0.01)
  assert found.gradients == pytest.approx(params * (1 / 8 + 1 / 2), rel=0.01)
  split['mesh.partition'] = 'auto'
  found = runs.describe(split, run, target)
  assert found.gradients == pytest.approx(params, rel=0.02)
  # But for a micro-batch, each when it is used.
  split['mesh.gather'] = 'micro_batch'
  found = runs.describe(split, run, target)
  assert found.gradients == pytest.approx(params / 8, rel=0.01)
  assert config.model.remat == given.family == 'none'
  full = runs.describe({'model.remat': 'full'}, run, target)
  assert full.family == 'full'
  assert full.activations < given.activations / 4


def test_a_run_is_changed_beside_itself():
  run = _run()
  changed = run.changed({'mesh.fsdp': 8, 'data.batch_size': 64})
  assert (changed.config.mesh.fsdp, changed.config.data.batch_size) == (8, 64)
  assert (run.config.mesh.fsdp, run.config.data.batch_size) == (1, 512)


def _auto(monkeypatch, compiler, fits_from):
  """The smallest of four slices, as the compiler sees it."""
  slices = [devices.parse(t) for t in ('v5e:1x1', 'v5e:2x2', 'v5e:2x4')]
  monkeypatch.setattr(devices, 'of_generation', lambda name: slices)
  compiler.needs = lambda config, target: (
    3 if target.devices >= fits_from else 30
  )
  return auto.smallest(
    _run(batch_size=32), 'v5e', runs.Effort(search=False), lambda text: None
  )


@pytest.mark.parametrize(
  'fits_from, answer', [(1, 'v5e:1x1'), (4, 'v5e:2x2'), (8, 'v5e:2x4')]
)
def test_the_smallest_slice(monkeypatch, compiler, fits_from, answer):
  plan = _auto(monkeypatch, compiler, fits_from)
  assert str(plan.target) == answer
  assert plan.fits


def test_no_slice_is_large_enough(monkeypatch, compiler):
  plan = _auto(monkeypatch, compiler, fits_from=16)
  assert (str(plan.target), plan.fits) == ('v5e:2x4', False)


def test_a_batch_that_no_slice_divides(monkeypatch, compiler):
  compiler.needs = lambda config, target: 3
  with pytest.raises(ValueError, match='batch_size=6 in accumulation'):
    auto.smallest(
      _run(batch_size=6), 'v3', runs.Effort(search=False), lambda text: None
    )


def test_tried_is_told(compiler):
  compiler.needs = lambda config, target: 40
  plan = _plan(_run(), max_tries=2)
  assert plan.fix is None
  assert len(plan.tried) == 3
  assert isinstance(plan.tried[0], search.Tried)
  assert dataclasses.is_dataclass(plan)
