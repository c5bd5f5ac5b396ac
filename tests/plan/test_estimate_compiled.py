"""Guards: the step-time estimate is right on programs compiled for TPUs."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies

from vit_jax.plan import chips, estimate, hlo

pytestmark = [
  pytest.mark.tpu_compiler,
  pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason='libtpu, the compiler for TPU, is not installed',
  ),
]


@pytest.fixture(name='compiled', scope='module')
def fixture_compiled():
  """Returns a compiler of functions of two matrices, for a v3 core."""
  with pytest.MonkeyPatch.context() as patch:
    for name, value in (
      ('TPU_SKIP_MDS_QUERY', '1'),
      ('TPU_WORKER_HOSTNAMES', 'localhost'),
      ('ALLOW_MULTIPLE_LIBTPU_LOAD', '1'),
    ):
      patch.setenv(name, value)
    topology = topologies.get_topology_desc('v3:2x2', platform='tpu')
  sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
  matrix = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=sharding)

  def compile_(function):
    lowered = jax.jit(function).lower(matrix, matrix)
    return hlo.parse(lowered.compile().as_text())

  return compile_


def scanned(length):
  def function(x, w):
    def body(carry, _):
      return jnp.tanh(carry @ w), None

    return jax.lax.scan(body, x, length=length)[0]

  return function


def products(module):
  """Returns the executions of matrix products in one call."""
  found = estimate.estimate(module, chips.get('v3'), strict=True)
  return sum(r.times for r in found.rows if r.op_class == 'matmul')


@pytest.mark.parametrize('length', [1, 2, 7, 100])
def test_scan(compiled, length):
  assert products(compiled(scanned(length))) == length


def test_the_gradient_of_a_scan(compiled):
  # One product forward, and two backward: for the carry and for the weights.
  gradient = jax.grad(
    lambda x, w: scanned(7)(x, w).astype(jnp.float32).sum(), (0, 1)
  )
  assert products(compiled(gradient)) == 7 + 2 * 7


def test_nested_scans(compiled):
  def function(x, w):
    def body(carry, _):
      return scanned(5)(carry, w) + carry, None

    return jax.lax.scan(body, x, length=3)[0]

  assert products(compiled(function)) == 15


def test_scans_and_single_products_take_equal_time_per_product(compiled):
  seconds = [
    estimate.estimate(module, chips.get('v3')).by_class['matmul']
    for module in (
      compiled(scanned(8)),
      compiled(scanned(1)),
      compiled(lambda x, w: jnp.tanh(x @ w)),
    )
  ]
  assert seconds[0] == pytest.approx(8 * seconds[1], rel=0.3)
  assert seconds[1] == pytest.approx(seconds[2], rel=0.3)


def test_a_loop_with_a_data_dependent_end_has_no_trip_count(compiled):
  def function(x, w):
    return jax.lax.while_loop(
      lambda x: jnp.sum(x.astype(jnp.float32)) < 9, lambda x: x @ w, x
    )

  module = compiled(function)
  with pytest.raises(ValueError, match='trip count of the loop'):
    estimate.estimate(module, chips.get('v3'), strict=True)
  assert len(estimate.estimate(module, chips.get('v3')).assumptions) == 1


def test_a_large_product_reaches_the_peak_rate(compiled):
  found = estimate.estimate(
    compiled(lambda x, w: jnp.tile(x, (32, 32)) @ jnp.tile(w, (32, 32))),
    chips.get('v3'),
  )
  rate = 2 * 16384**3 / found.by_class['matmul']
  assert rate == pytest.approx(chips.get('v3').peak_flops, rel=0.05)
