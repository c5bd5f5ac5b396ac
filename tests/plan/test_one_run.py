"""Guards: a config becomes a plan, with a search if needed (fake compiler)."""

import pytest

from vit_jax.configs import pretrain
from vit_jax.plan import analysis, compiling, devices, one_run

GIB = compiling.GIB


def _run(batch_size=512, **changes):
  config = pretrain.get_config('ViT-L/16,jft300m')
  config.data.batch_size = batch_size
  config.model.depth = 2
  # Each device holds the whole state, which a search may split.
  config.mesh.data, config.mesh.fsdp = -1, 1
  return one_run.Run('L', config).changed(changes)


def _plan(run, topology='v3:2x2', **effort):
  effort = one_run.Effort(**effort)
  return one_run.plan(run, devices.parse(topology), effort, lambda text: None)


def test_a_run_that_fits_is_compiled_once(compiler):
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
  # Four micro-batches need 4 + 48 / 4 = 16 GiB, which does not fit.
  assert dict(plan.fix.changes) == {'accumulation_steps': 8}
  assert plan.fix.fits
  assert plan.fix.config.accumulation_steps == 8
  assert plan.config.accumulation_steps == 1
  assert plan.fix.memory.total == 10 * GIB
  assert len(plan.tried) == len(compiler.calls)


def test_a_run_that_cannot_fit_is_not_compiled(compiler):
  compiler.needs = lambda config, target: 9
  run = _run(batch_size=65536)
  given = one_run.describe({}, run, devices.parse('v3:2x2'))
  assert given.least() > 16 * GIB
  plan = _plan(run, search=False)
  assert (plan.fits, plan.compiled, compiler.calls) == (False, None, [])
  assert plan.memory.total == pytest.approx(given.least(), abs=1)


def test_known_memory_before_compilation(compiler):
  # L/16 of depth 2 in float32, and Adam's two moments. CPUs stand in for the
  # slice; they would sum gradients in float32, so the run asks for bfloat16.
  run = _run().changed({'mesh.reduce_dtype': 'bfloat16'})
  target = devices.parse('v3:2x2')
  given = one_run.describe({}, run, target)
  config = one_run.analyse(run).config
  params = 4 * one_run.analyse(run).analysis.params
  batch = 512 // 8 * (224 * 224 * 3 + 16 * 4 + 3)
  counters = given.held - 3 * params - batch
  # The counters of the step, of Adam and of the schedule.
  assert 0 <= counters <= 64
  # Each device holds the sum of all gradients, in bfloat16 except for biases,
  # norms and the class head.
  head = 2 * 1024 * 18_291
  assert params / 2 < given.gradients - head < 0.51 * params
  half = one_run.describe({'accumulation_steps': 2}, run, target)
  assert half.activations == pytest.approx(given.activations / 2)
  # The sum over the micro-batches exists beside one micro-batch's gradients.
  assert half.gradients == 2 * params
  split = {'mesh.fsdp': 8, 'mesh.shard': 'optimizer'}
  found = one_run.describe(split, run, target)
  assert found.held == pytest.approx(params * (1 + 2 / 8) + batch, rel=0.01)
  assert found.gradients == given.gradients
  # The compiler keeps only the part of the sum that a device updates.
  split['mesh.partition'] = 'compiler'
  found = one_run.describe(split, run, target)
  assert found.gradients == pytest.approx(params / 8, rel=0.01)
  # Split parameters are gathered for the step, in bfloat16 except for the head.
  split['mesh.shard'] = 'all'
  found = one_run.describe(split, run, target)
  assert found.held == pytest.approx(params * 3 / 8 + batch, rel=0.01)
  assert found.gradients == pytest.approx(
    params * (1 / 8 + 1 / 2) + head, rel=0.01
  )
  split['mesh.partition'] = 'auto'
  found = one_run.describe(split, run, target)
  assert found.gradients == pytest.approx(params + 2 * head, rel=0.02)
  # A micro-batch's gradients, and their sum, are float32.
  found = one_run.describe(split | {'accumulation_steps': 2}, run, target)
  assert found.gradients == pytest.approx(2.5 * params + head, rel=0.02)
  # Gathering for each micro-batch holds no whole parameters for the step.
  split['mesh.gather'] = 'micro_batch'
  found = one_run.describe(split, run, target)
  assert found.gradients == pytest.approx(params / 8, rel=0.01)
  assert config.model.remat == given.family == 'none'
  full = one_run.describe({'model.remat': 'full'}, run, target)
  assert full.family == 'full'
  assert full.activations < given.activations / 4


@pytest.mark.gate
def test_what_is_frozen_has_neither_state_nor_gradient(compiler):
  target = devices.parse('v3:2x2')
  found = {}
  for name, changes in {
    'all': {},
    'head': {'tuning.train': 'head'},
    'additions': {'lora.rank': 8},
  }.items():
    run = _run(**changes)
    program = compiling.build(analysis.resolve(run.config, 'tpu'), target)
    held = compiling.held(program)
    candidate = one_run.describe({}, run, target)
    found[name] = held, candidate.gradients, candidate.activations
  (held, gradients, activations), (head, head_gradients, kept) = (
    found['all'],
    found['head'],
  )
  assert head.parameters == held.parameters
  head_bytes = 4 * (1024 * 18_291 + 18_291)
  assert head.optimizer == 2 * head_bytes + 8
  assert head_gradients == head_bytes < gradients
  assert kept < activations / 100
  additions, some, more = found['additions']
  assert additions.parameters > held.parameters
  assert additions.optimizer < held.optimizer
  assert some < gradients
  assert kept < more < activations
  # A gathered kernel with an addition keeps its float32.
  few, many = (
    one_run.describe(
      {'mesh.fsdp': 8, 'mesh.shard': 'all'},
      _run(**{'lora.rank': 1, 'lora.targets': targets}),
      target,
    ).gradients
    for targets in (('out',), ('out', 'mlp'))
  )
  kernels = 2 * 2 * 1024 * 4096  # In two blocks.
  assert many - few == pytest.approx(2 * kernels, rel=0.01)


@pytest.mark.gate
@pytest.mark.parametrize(
  'mesh',
  [
    {'mesh.data': 1, 'mesh.fsdp': -1},
    {'mesh.partition': 'manual'},
  ],
)
def test_every_mesh_can_be_searched(compiler, mesh):
  compiler.needs = lambda config, target: 15.6
  plan = _plan(_run(**mesh), max_tries=99)
  assert plan.fits is False
  tried = [dict(one.candidate.changes) for one in plan.tried]
  assert len(tried) > 1
  # The search skips settings that contradict the user's.
  manual = mesh.get('mesh.partition') == 'manual'
  assert any('mesh.gather' in one for one in tried) != manual
  # The search splits the state further if that is possible.
  given = mesh.get('mesh.data')
  wider = any(
    (one.get('mesh.data'), one.get('mesh.fsdp')) == (1, 8) for one in tried
  )
  assert wider == (given != 1)


def test_a_mesh_over_part_of_a_slice_is_refused(compiler):
  compiler.needs = lambda config, target: 3
  with pytest.raises(ValueError, match='uses 4 of the 8 devices'):
    _plan(_run(**{'mesh.data': 4}))
