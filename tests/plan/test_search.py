"""Guards: a search tries the right settings and slices (fake compiler)."""

import jax
import pytest

from vit_jax import config as config_lib
from vit_jax.configs import pretrain
from vit_jax.plan import compilers, devices, estimate, search

GIB = compilers.GIB
SLICE = devices.parse('v3:2x2')


@pytest.fixture
def compiler(monkeypatch):
  """Stands in for libtpu; `needs(config, target)` returns a step's GiB."""

  class Compiler:
    def __init__(self):
      self.needs, self.calls = None, []

    def compile_step(self, config, target):
      self.calls.append((config, str(target)))
      size = round(self.needs(config, target) * GIB)
      usable = target.chip.hbm_usable_bytes
      found = None
      if size <= usable:
        row = estimate.Row('dot', 'matmul', 1, 0.1)
        found = estimate.Estimate([row])
      return compilers.Compiled(
        compilers.Memory(temporaries=size), usable, found, seconds=1.0
      )

  def compile_only(target):
    if target.devices > 8:
      pytest.skip('Only eight simulated devices.')
    return jax.devices()[: target.devices]

  compiler = Compiler()
  monkeypatch.setattr(compilers, 'compile_step', compiler.compile_step)
  monkeypatch.setattr(devices, 'compile_only', compile_only)
  return compiler


def _run(batch_size=512, **changes):
  config = pretrain.get_config('ViT-L/16,jft300m')
  config.data.batch_size = batch_size
  config.model.depth = 1
  # Each device holds the whole state, which a search may split.
  config.mesh.data, config.mesh.fsdp = -1, 1
  return search.Run('L', config).changed(changes)


def _plan(run, **options):
  return search.plan(run, [SLICE], **options)


def test_a_run_that_fits_is_compiled_once(compiler):
  compiler.needs = lambda config, target: 3.5
  found = _plan(_run())
  assert (found['fits'], found['fix'], found['hbm_gib']) == (True, None, 3.5)
  assert [target for _, target in compiler.calls] == ['v3:2x2']


def test_accumulation_is_found(compiler):
  compiler.needs = lambda config, target: 4 + 48 / config.accumulation_steps
  # With less to try, there is less to describe.
  run = _run(**{'model.remat': 'full', 'mesh.fsdp': 8, 'mesh.data': 1})
  found = _plan(run)
  assert (found['fits'], found['search_ended']) == (False, None)
  # Four micro-batches need 4 + 48 / 4 = 16 GiB, which does not fit.
  fix = found['fix']
  assert fix['changes'] == {'accumulation_steps': 8}
  assert (fix['fits'], fix['hbm_gib']) == (True, 10)
  assert fix['settings']['accumulation_steps'] == 8
  assert found['settings']['accumulation_steps'] == 1
  # It was asked to do less.
  assert _plan(run, fix=False)['fix'] is None
  compiler.needs = lambda config, target: 16
  found = _plan(run, max_tries=1)
  assert found['fix'] is None
  assert found['search_ended'].startswith('--max_tries')


def test_a_run_that_cannot_fit_is_not_compiled(compiler):
  run = _run(batch_size=65536)
  found = _plan(run, fix=False)
  assert (found['fits'], found['compile_seconds']) == (False, None)
  assert found['hbm_source'] == 'lower bound'
  least = search.describe({}, run, SLICE).predict() / GIB
  assert found['hbm_gib'] == pytest.approx(least)
  assert compiler.calls == []


def _attempt(name, activations, remat='none'):
  config = config_lib.default()
  config.model.remat = remat
  return search.Attempt(
    *(search.Run('run', config), SLICE, {'name': name}, config),
    *(compilers.Memory(parameters=2 * GIB), GIB, round(activations * GIB)),
  )


@pytest.mark.parametrize(
  'candidates, order, answer',
  [
    # 3 + 0.45 * 32 = 17.4 and 3 + 0.45 * 16 = 10.2. Then `b` kept 0.5625, with
    # which `a` needs 21.
    ({'a': (32, 20), 'b': (16, 12), 'c': (8, 5)}, 'b', 'b'),
    # `a` kept 1.04, with which `b` needs 24 and `c` 14. `c` kept 0.55, so `b`
    # has a chance again.
    ({'a': (27, 31), 'b': (20, 9), 'c': (11, 9), 'd': (6, 9)}, 'acb', 'b'),
    ({'a': (32, 20), 'b': (30, 20)}, '', None),
  ],
)
def test_each_compilation_corrects_the_predictions(
  compiler, candidates, order, answer
):
  attempts = [_attempt(name, size) for name, (size, _) in candidates.items()]
  names = {id(one.config): one.changes['name'] for one in attempts}
  compiler.needs = lambda config, target: candidates[names[id(config)]][1]
  given = _attempt('given', 60)
  given.compiled = compilers.Compiled(compilers.Memory(), 0)
  found, ended = search.find(given, attempts, tries=6)
  assert ''.join(names[id(config)] for config, _ in compiler.calls) == order
  assert (found and found.changes['name']) == answer
  assert (ended is None) == (answer is not None)


def _config(**changes):
  config = config_lib.default()
  config.data.batch_size = 256
  config.update_from_flattened_dict(changes)
  return config


def test_settings_from_cheap_to_expensive():
  found = search.settings(_config(), devices=8)
  axes = {'mesh.data': 1, 'mesh.fsdp': 8}
  split = axes | {'mesh.shard': 'optimizer'}
  whole = axes | {'mesh.shard': 'all', 'mesh.gather': 'micro_batch'}
  # A device has 32 rows, and a micro-batch at least 8 of them.
  few = [{}, {'accumulation_steps': 2}, {'accumulation_steps': 4}]
  assert found[:9] == [s | steps for s in ({}, split, whole) for steps in few]
  assert found[9] == {'model.remat': 'dots'}
  assert found[18] == {'model.remat': 'full'}
  last = whole | {'model.remat': 'full'}
  assert found[26:] == [
    last | {'accumulation_steps': steps} for steps in (4, 8, 16, 32)
  ]


def test_settings_of_the_user_are_kept():
  config = _config(
    **{
      'accumulation_steps': 8,
      'mesh.data': 1,
      'mesh.fsdp': -1,
      'mesh.shard': 'optimizer',
      'model.remat': 'full',
    }
  )
  # A micro-batch has only four rows already, below the eight of a full one.
  more = {'mesh.shard': 'all', 'mesh.gather': 'micro_batch'}
  steps = [more | {'accumulation_steps': steps} for steps in (16, 32)]
  assert search.settings(config, devices=8) == [{}, more, *steps]


EVERY = {'shard': 'all', 'gather': 'micro_batch'}
OVER_8 = {'data': 1, 'fsdp': 8}


@pytest.mark.parametrize(
  'count, slices, mesh, expected',
  [
    # As in configs/pretrain.py, the state is already in 32 parts, or in one per
    # device if there are fewer.
    (128, 1, {'data': -1, 'fsdp': -1}, [EVERY]),
    (8, 1, {'data': -1, 'fsdp': -1}, [EVERY]),
    (8, 1, {'data': 1, 'fsdp': -1, 'gather': 'micro_batch'}, []),
    (
      *(8, 1, {'data': 1, 'fsdp': -1, 'shard': 'none'}),
      [{'shard': 'optimizer'}, EVERY],
    ),
    # The search keeps more than 32 parts.
    (128, 1, {'data': 1, 'fsdp': -1}, [EVERY]),
    # Four of eight devices share a state; all eight can.
    (8, 1, {'data': 2, 'fsdp': 4, 'gather': 'micro_batch'}, [OVER_8 | EVERY]),
    (8, 1, {'data': 8}, [OVER_8 | {'shard': 'optimizer'}, OVER_8 | EVERY]),
    # A state is split only within a slice.
    (16, 2, {'data': 2, 'fsdp': -1}, [EVERY]),
    # One device cannot split its state.
    (1, 1, {}, []),
  ],
)
def test_a_state_is_split_further_only_in_valid_ways(
  count, slices, mesh, expected
):
  config = _config(**{f'mesh.{key}': value for key, value in mesh.items()})
  found = []
  for changes in search.settings(config, count, slices):
    parts = {
      key.removeprefix('mesh.'): value
      for key, value in changes.items()
      if key.startswith('mesh.')
    }
    if parts not in found:
      found.append(parts)
  assert found == [{}, *expected]


def test_known_memory_before_compilation(compiler):
  # L/16 of depth 1 in float32, and Adam's two moments. CPUs stand in for the
  # slice; they would sum gradients in float32, so the run asks for bfloat16.
  run = _run(**{'mesh.reduce_dtype': 'bfloat16'})
  given = search.describe({}, run, SLICE)
  params = given.held.parameters
  batch = 512 // 8 * (224 * 224 * 3 + 16 * 4 + 3)
  assert given.held.total == pytest.approx(3 * params + batch, abs=64)
  # Each device holds the sum of all gradients, in bfloat16 except for biases,
  # norms and the class head.
  head = 2 * 1024 * 18_291
  assert params / 2 < given.gradients - head < 0.51 * params
  half = search.describe({'accumulation_steps': 2}, run, SLICE)
  assert half.activations == pytest.approx(given.activations / 2)
  # The sum over the micro-batches exists beside one micro-batch's gradients.
  assert half.gradients == 2 * params
  changes = {}
  for more, held, gradients in (
    ({'mesh.fsdp': 8, 'mesh.shard': 'optimizer'}, 1 + 2 / 8, given.gradients),
    # The compiler keeps only the part of the sum that a device updates.
    ({'mesh.partition': 'compiler'}, 1 + 2 / 8, params / 8),
    # Split parameters are gathered for the step, in bfloat16 but for the head.
    ({'mesh.shard': 'all'}, 3 / 8, params * (1 / 8 + 1 / 2) + head),
    ({'mesh.partition': 'auto'}, 3 / 8, params + 2 * head),
    # A micro-batch's gradients, and their sum, are float32.
    ({'accumulation_steps': 2}, 3 / 8, 2.5 * params + head),
    # Gathering for each micro-batch holds no whole parameters for the step.
    ({'mesh.gather': 'micro_batch'}, 3 / 8, 2 * params / 8),
  ):
    changes |= more
    found = search.describe(changes, run, SLICE)
    assert found.held.total == pytest.approx(held * params + batch, rel=0.01)
    assert found.gradients == pytest.approx(gradients, rel=0.02)
  full = search.describe({'model.remat': 'full'}, run, SLICE)
  assert full.activations < given.activations / 4


def test_what_is_frozen_has_neither_state_nor_gradient(compiler):
  every = search.describe({}, _run(), SLICE)
  head = search.describe({}, _run(**{'tuning.train': 'head'}), SLICE)
  size = 4 * (1024 * 18_291 + 18_291)
  assert head.held.parameters == every.held.parameters
  assert head.held.optimizer == 2 * size + 8
  assert head.gradients == size < every.gradients
  assert head.activations < every.activations / 100
  # A gathered kernel with an addition keeps its float32.
  few, many = (
    search.describe(
      {'mesh.fsdp': 8, 'mesh.shard': 'all'},
      _run(**{'lora.rank': 1, 'lora.targets': targets}),
      SLICE,
    ).gradients
    for targets in (('out',), ('out', 'mlp'))
  )
  kernels = 2 * 1024 * 4096
  assert many - few == pytest.approx(2 * kernels, rel=0.01)


def _auto(compiler, fits_from, run, **options):
  """Plans on three slices; a run fits on at least `fits_from` devices."""
  slices = [devices.parse(text) for text in ('v5e:1x1', 'v5e:2x2', 'v5e:2x4')]
  compiler.needs = lambda config, target: (
    3 if target.devices >= fits_from else 30
  )
  return search.plan(run, search.suiting(run, slices), **options)


@pytest.mark.parametrize(
  'fits_from, changes, answer',
  [
    (1, {}, 'v5e:1x1'),
    (8, {}, 'v5e:2x4'),
    # Two devices share an image, but 1x1 has only one.
    (1, {'mesh.data': -1, 'mesh.tensor': 2}, 'v5e:2x2'),
    # This mesh needs exactly eight devices.
    (1, {'mesh.data': 8, 'mesh.fsdp': 1}, 'v5e:2x4'),
  ],
)
def test_the_smallest_slice(compiler, fits_from, changes, answer):
  run = _run(batch_size=32, **changes)
  found = _auto(compiler, fits_from, run, fix=False)
  assert (found['topology'], found['fits']) == (answer, True)
  assert found['search_ended'] is None


def test_the_limit_of_compilations(compiler):
  found = _auto(compiler, 8, _run(batch_size=32), max_tries=1)
  assert [target for _, target in compiler.calls] == ['v5e:1x1', 'v5e:2x2']
  assert (found['topology'], found['fits'], found['fix']) == (
    *('v5e:2x2', False, None),
  )
  assert found['search_ended'].startswith('--max_tries')


def test_a_batch_that_no_slice_divides():
  with pytest.raises(ValueError, match='batch_size=6'):
    search.suiting(_run(batch_size=6), devices.of_generation('v3'))
