"""Guards: programs are timed correctly on this machine (fake clock)."""

import jax
import numpy as np

from vit_jax import models
from vit_jax.inference_speed import forward, stopwatch


class Clock:
  """A clock that only `work` advances."""

  def __init__(self, durations):
    self.now, self.durations, self.calls = 0.0, list(durations), 0

  def __call__(self):
    return self.now

  def work(self):
    self.calls += 1
    self.now += self.durations.pop(0)


def test_the_median_is_of_the_calls_after_the_warm_up():
  clock = Clock([9, 9, 1, 2, 6, 3, 1])
  timing = stopwatch.Timing(warm_up=2, calls=5, max_seconds=100)
  assert stopwatch.median_seconds(clock.work, timing, clock) == 2
  assert clock.calls == 7


def test_slow_programs_are_called_less_often():
  clock = Clock([20, 21, 22, 23, 24])
  timing = stopwatch.Timing(warm_up=10, calls=30, max_seconds=10)
  # One call warms up, and three count.
  assert stopwatch.median_seconds(clock.work, timing, clock) == 22
  assert clock.calls == 4


TINY = dict(width=16, depth=1, heads=2, mlp_dim=32)


def test_a_program_takes_time_and_at_least_its_arguments_memory():
  model = models.build('ViT-B/16', num_classes=10, **TINY)
  timing = stopwatch.Timing(warm_up=1, calls=3)
  device = stopwatch.find(None, timing)
  assert (device.platform, device.unit, device.cores) == ('cpu', 'device', 1)
  assert device.memory_bytes == 2**30
  assert not device.estimated
  params, images = forward.shapes(model, 32, 4)
  assert (images.shape, images.dtype) == ((4, 32, 32, 3), np.uint8)
  held = sum(4 * leaf.size for leaf in jax.tree.leaves(params))
  small, large = (device.compile(model, 32, n) for n in (4, 8))
  assert small.bytes >= held + 4 * 32 * 32 * 3 + 4 * 10 * 4
  assert large.bytes > small.bytes
  assert 0 < small.seconds() < 10


def test_the_program_computes_the_models_logits():
  model = models.build('ViT-B/16', num_classes=10, head_bias=-2.5, **TINY)
  device = jax.devices()[0]
  sharding = jax.sharding.SingleDeviceSharding(device)
  params = stopwatch._params(device, model, 32)
  images = np.full((2, 32, 32, 3), 255, np.uint8)
  found = forward.lower(model, 32, 2, sharding).compile()(params, images)
  expected, _ = jax.jit(model.apply)(
    {'params': params}, np.ones((2, 32, 32, 3), np.float32)
  )
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert np.ptp(found) > 0
