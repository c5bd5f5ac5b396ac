"""Guards: plans by the real compilers; minutes long, without TPU or GPU.

Needs libtpu or the extra `cuda`. The figures for an H100 are those of LOG.md,
"the step on a GPU, from the GPU's compiler".
"""

import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import pytest

from tests import commands
from vit_jax.plan import chips, devices, estimate, hlo

ROOT = pathlib.Path(__file__).parents[2]
_no_tpu = pytest.mark.skipif(
  not devices.have_compiler(), reason='libtpu is not installed'
)
_no_gpu = pytest.mark.skipif(
  devices.gpu_compiler() is None, reason='the GPU compiler is not installed'
)


def on_tpu(test):
  return pytest.mark.tpu_compiler(_no_tpu(test))


def on_gpu(test):
  return pytest.mark.gpu_compiler(_no_gpu(test))


V3 = chips.CHIPS['v3']


def _plan(argument, *words):
  # A new process, since JAX's platform is chosen once.
  config = f'--config=configs/pretrain.py:{argument},imagenet2012'
  words = [config, '--config.model.dropout_rate=0.0', *words, '--json']
  words = sys.executable, '-m', 'vit_jax.plan', *words
  return json.loads(commands.run_new(*words).stdout)


def _tiny(topology, *words):
  return _plan(
    'ViT-Ti/16',
    *('--config.model.depth=1', '--config.data.batch_size=64'),
    *(f'--topology={topology}', *words),
  )


@on_tpu
@pytest.mark.parametrize(
  'topology, count, device',
  [
    ('v2:2x2', 8, 'TensorCore'),
    ('v3:2x2', 8, 'TensorCore'),
    ('v4:2x2x1', 4, 'chip of 2 TensorCores'),
    ('v5e:1x1', 1, 'chip'),
    ('2xv5e:2x2', 8, 'chip'),
    ('v5p:2x2x1', 4, 'chip of 2 TensorCores'),
    ('v6e:2x2', 4, 'chip'),
    ('tpu7x:2x2x1', 8, 'TensorCore'),
  ],
)
def test_every_generation(topology, count, device):
  found = _tiny(topology)
  assert (found['devices'], found['device']) == (count, device)
  assert found['fits'] is True
  assert 0 < found['mfu'] < 1
  assert found['shares']['matmul'] > 0
  assert sum(found['hbm'].values()) == pytest.approx(found['hbm_gib'])
  # All but a few parameters can be split over the devices of a slice.
  if topology == 'v3:2x2':
    assert found['hbm']['parameters'] == pytest.approx(
      found['params'] * 4 / 8 / 2**30, rel=0.01
    )


@on_tpu
def test_settings_that_fit_are_found():
  # The attention of 512 images a core at 896 px does not fit; fewer images do.
  size = ('--config.image_size=(896, 896)', '--config.data.batch_size=4096')
  found = _tiny('v3:2x2', *size)
  assert found['fits'] is False
  assert found['hbm_gib'] > found['hbm_usable_gib']
  fix = found['fix']
  assert fix['fits'] is True
  assert fix['changes']['accumulation_steps'] > 1
  assert fix['hbm_gib'] < fix['hbm_usable_gib']
  assert fix['core_days'] > 0


@pytest.fixture(name='compiled', scope='module')
def fixture_compiled():
  """Returns a compiler of functions of two matrices, for a v3 core."""
  with pytest.MonkeyPatch.context() as patch:
    for name, value in devices.ENVIRONMENT.items():
      patch.setenv(name, value)
    device = devices.compile_only(devices.parse('v3:2x2'))[0]
  sharding = jax.sharding.SingleDeviceSharding(device)
  matrix = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=sharding)

  def compile_(function):
    lowered = jax.jit(function).lower(matrix, matrix)
    return estimate.estimate(hlo.parse(lowered.compile().as_text()), V3)

  return compile_


def _scanned(length, inner=lambda x, w: jnp.tanh(x @ w)):
  def function(x, w):
    return jax.lax.scan(
      lambda carry, _: (inner(carry, w), None), x, length=length
    )[0]

  return function


@on_tpu
@pytest.mark.parametrize(
  'function, products',
  [
    (_scanned(1), 1),
    (_scanned(7), 7),
    (_scanned(3, lambda x, w: _scanned(5)(x, w) + x), 15),
    # One product forward, and two backward: for the carry and for the weights.
    (jax.grad(lambda x, w: _scanned(7)(x, w).astype('f4').sum(), (0, 1)), 21),
  ],
)
def test_loops_of_a_compiled_program(compiled, function, products):
  found = compiled(function)
  rows = [row for row in found.rows if row.op_class == 'matmul']
  assert sum(row.times for row in rows) == products
  assert found.assumptions == []


@on_tpu
def test_a_loop_whose_end_depends_on_data_counts_once(compiled):
  found = compiled(
    lambda x, w: jax.lax.while_loop(lambda x: x[0, 0] < 9, w.dot, x)
  )
  rows = [row for row in found.rows if row.op_class == 'matmul']
  assert sum(row.times for row in rows) == len(found.assumptions) == 1


@on_tpu
def test_a_large_product_reaches_the_peak_rate(compiled):
  found = compiled(lambda x, w: jnp.tile(x, (32, 32)) @ jnp.tile(w, (32, 32)))
  rate = 2 * 16384**3 / found.by_class['matmul']
  assert rate == pytest.approx(V3.peak_flops, rel=0.05)


def _b16(topology, batch, *words):
  return _plan(
    'ViT-B/16',
    *('--config.model.depth=2', f'--config.data.batch_size={batch}'),
    *(f'--topology={topology}', *words),
  )


@on_gpu
def test_a_plan_of_one_gpu_and_of_eight():
  one = _b16('h100x1', 256)
  assert one['fits'] is True
  # Measured with 12 blocks: the compiler's memory is right to 3%.
  assert 2.5 < one['hbm_gib'] < 3.5
  assert 6 < one['step_ms'] < 9
  assert 0.4 < one['mfu'] < 1
  assert one['shares']['attention'] > 0
  eight = _b16('h100x8', 2048)
  assert eight['devices'] == 8
  assert 0.9 < eight['step_ms'] / one['step_ms'] < 1.5


@on_gpu
def test_gradients_are_summed_beside_the_backward_pass():
  mesh = ('--config.mesh.data=8', '--config.mesh.fsdp=1')
  found = _b16('h100x8', 2048, *mesh)
  left = found['shares']['collectives'] * found['step_ms']
  # 16.3 million gradients of 4 bytes, 2 x 7/8 times, at 450 GB/s.
  total = 16.3e6 * 4 * 2 * 7 / 8 / 450e6
  assert found['hidden_ms'] + left == pytest.approx(total, rel=0.02)
  assert found['hidden_ms'] > 0.9 * total


@on_gpu
@pytest.mark.parametrize('topology', ['a100x2', 'h200x1'])
def test_other_gpus(topology):
  found = _b16(topology, 256, '--config.model.dropout_rate=0.1')
  assert found['fits'] is True
  assert 0 < found['mfu'] < 1


# Compiles the step and counts, in a process of its own.
COUNTED = """
import collections, json, re, sys
from vit_jax.configs import pretrain
from vit_jax.plan import analysis, compilers, devices, hlo
devices.leave_hardware_alone()
config = pretrain.get_config('ViT-B/16,imagenet2012')
config.model.depth, config.data.batch_size = 2, 256
config.model.dropout_rate = 0.0
config = analysis.resolve(config, 'gpu')
target = devices.parse('h100x1')
built = compilers.build(config, target)
module = hlo.parse(
  built.train_step.lower(built.abstract_state, built.abstract_batch)
  .compile(target.options)
  .as_text()
)
kernels = collections.Counter(one.kernel for one in module.entry)
epilogues = collections.Counter(
  re.search('"epilogue":"([^"]*)"', one.attributes)[1]
  for one in module.entry
  if one.kernel.startswith('__cublas')
)
transposed = {
  one.name: one.bytes
  for one in module.entry
  if any(part.opcode == 'transpose' for part in one.parts)
}
json.dump([kernels, epilogues, transposed], sys.stdout)
"""


@on_gpu
def test_the_step_has_the_kernels_that_make_it_fast():
  blocks = 2
  result = commands.run_new(sys.executable, '-c', COUNTED)
  kernels, epilogues, transposed = json.loads(result.stdout)
  assert kernels['__cudnn$fmhaSoftmax'] == blocks
  assert kernels['__cudnn$fmhaSoftmaxBackward'] == blocks
  # Products that add their bias themselves: the patches', each block's query,
  # key, value, out and Dense_1, and the two of the head; Dense_0 also computes
  # its GELU. Without these, kernels of their own move the activations.
  assert epilogues['BIAS'] == 5 * blocks + 3
  assert epilogues['BIAS_GELU_AUX'] == blocks
  # Only the images are transposed, into patches. [B * L, D] activations in
  # bfloat16 are larger: 256 images of 200 rows, 197 of them tokens.
  large = {n: s for n, s in transposed.items() if s >= 256 * 200 * 768 * 2}
  assert large == {}
  assert len(transposed) == 1
