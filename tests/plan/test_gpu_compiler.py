"""Guards: the step as XLA compiles it for an H100, and plans of it.

The figures are those of LOG.md, "the step on a GPU, from the GPU's compiler".
Needs the extra `cuda`, but no GPU; takes about a minute.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from vit_jax.plan import gpus

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = 2
B16 = (
  '--config=configs/pretrain.py:ViT-B/16,imagenet2012',
  *(f'--config.model.depth={BLOCKS}', '--config.data.batch_size=256'),
  '--config.model.dropout_rate=0.0',
)
# [B * L, D] activations in bfloat16: 256 images of 200 rows, 197 of them
# tokens.
ACTIVATIONS = 256 * 200 * 768 * 2

# Compiles the step and counts, in a process of its own, because JAX's platform
# is chosen once.
COUNTED = """
import collections, json, re, sys
from vit_jax.configs import pretrain
from vit_jax.plan import analysis, compiling, devices, hlo, op_classes
devices.leave_hardware_alone()
config = pretrain.get_config('ViT-B/16,imagenet2012')
config.model.depth, config.data.batch_size = 2, 256
config.model.dropout_rate = 0.0
config = analysis.resolve(config, 'gpu')
target = devices.parse('h100x1')
built = compiling.build(config, target)
module = hlo.parse(
  built.train_step.lower(built.abstract_state, built.abstract_batch)
  .compile(target.options)
  .as_text()
)

def inside(one):
  if 'calls' not in one.called:
    return [one]
  parts = module.computations[one.called['calls'][0]]
  return [part for inner in parts for part in inside(inner)]

kernels = collections.Counter(map(op_classes.kernel, module.entry))
epilogues = collections.Counter(
  re.search('"epilogue":"([^"]*)"', one.attributes)[1]
  for one in module.entry
  if op_classes.kernel(one).startswith(op_classes.PRODUCT)
)
transposed = {
  one.name: one.bytes
  for one in module.entry
  if any(part.opcode == 'transpose' for part in inside(one))
}
json.dump([kernels, epilogues, transposed], sys.stdout)
"""

pytestmark = [
  pytest.mark.gpu_compiler,
  pytest.mark.skipif(
    gpus.plugin() is None, reason='the GPU compiler is not installed'
  ),
]


def _python(*arguments):
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
  words = [*B16, *arguments, f'--topology={topology}', '--json']
  return json.loads(_python('-m', 'vit_jax.plan', *words))


def test_the_step_has_the_kernels_that_make_it_fast():
  kernels, epilogues, transposed = json.loads(_python('-c', COUNTED))
  assert kernels['__cudnn$fmhaSoftmax'] == BLOCKS
  assert kernels['__cudnn$fmhaSoftmaxBackward'] == BLOCKS
  # Products that add their bias themselves: the patches', each block's query,
  # key, value, out and Dense_1, and the two of the head; Dense_0 also computes
  # its GELU. Without these, kernels of their own move the activations.
  assert epilogues['BIAS'] == 5 * BLOCKS + 3
  assert epilogues['BIAS_GELU_AUX'] == BLOCKS
  # Only the images are transposed, into patches.
  large = {n: size for n, size in transposed.items() if size >= ACTIVATIONS}
  assert large == {}
  assert len(transposed) == 1


def test_a_plan_of_one_gpu_and_of_eight():
  one = _plan('h100x1')
  assert one['method'] == 'roofline, not measured'
  assert one['fits'] is True
  # Measured with 12 blocks: the compiler's memory is right to 3%.
  assert 2.5 < one['hbm_gib'] < 3.5
  assert 6 < one['step_ms'] < 9
  assert 0.4 < one['mfu'] < 1
  assert one['shares']['attention'] > 0
  eight = _plan('h100x8', '--config.data.batch_size=2048')
  assert eight['devices'] == 8
  kinds = {found['kind'] for found in eight['collectives']}
  assert {'all-gather', 'reduce-scatter'} <= kinds
  assert 0.9 < eight['step_ms'] / one['step_ms'] < 1.5


def test_gradients_are_summed_beside_the_backward_pass():
  sums = _plan(
    'h100x8',
    *('--config.data.batch_size=2048', '--config.mesh.data=8'),
    '--config.mesh.fsdp=1',
  )
  total = sum(found['ms'] for found in sums['collectives'])
  assert {found['kind'] for found in sums['collectives']} == {'all-reduce'}
  # 16.3 million gradients of 4 bytes, 2 x 7/8 times, at 450 GB/s.
  assert total == pytest.approx(16.3e6 * 4 * 2 * 7 / 8 / 450e6, rel=0.02)
  assert sums['hidden_ms'] > 0.9 * total


@pytest.mark.parametrize('topology', ['a100x2', 'h200x1'])
def test_other_gpus(topology):
  figures = _plan(topology, '--config.model.dropout_rate=0.1')
  assert figures['fits'] is True
  assert 0 < figures['mfu'] < 1
