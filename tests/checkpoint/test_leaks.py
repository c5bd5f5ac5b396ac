"""Guards: memory does not grow with the number of saves."""

import contextlib
import gc
import math
import pathlib

import jax.numpy as jnp
import pytest

from tests.tiny_run import eventful_config
from vit_jax import checkpoint
from vit_jax.training import train
from vit_jax.workdir import metrics


def _megabytes():
  status = pathlib.Path('/proc/self/status').read_text()
  return int(status.partition('VmRSS:')[2].split()[0]) / 1024


def test_saves_leave_no_objects(tmp_path):
  arrays = {str(i): jnp.full((4, 4), i) for i in range(20)}
  opened = checkpoint.Checkpoints(tmp_path, keep=1, keep_every=0)
  with contextlib.closing(opened) as checkpoints:
    for step in range(1, 13):
      checkpoints.save(step, arrays)
      checkpoints.wait()
      if step == 4:
        gc.collect()
        before = len(gc.get_objects())
    gc.collect()
    # Each save leaves 6 objects, for any number of arrays. Without `leaks` it
    # leaves 30, and strings, which are not counted here.
    assert len(gc.get_objects()) - before < 8 * 10


@pytest.mark.slow  # Ten minutes: ten thousand steps.
@pytest.mark.parametrize('every', [5])
def test_memory_is_flat_over_ten_thousand_steps(tmp_path, monkeypatch, every):
  config = eventful_config()
  config.total_steps = 10_000
  config.evals.test.every = config.checkpoint.every = config.log.every = every
  config.log.tensorboard = True
  found = {}

  def write_and_look(self, step, values, write=metrics.MetricWriter.write):
    write(self, step, values)
    # The minimum, because a current save takes memory for a moment.
    thousand = step // 1000
    found[thousand] = min(_megabytes(), found.get(thousand, math.inf))

  monkeypatch.setattr(metrics.MetricWriter, 'write', write_and_look)
  train.train_and_evaluate(config, tmp_path)
  # Allocators and caches fill up in the first thousand steps.
  assert found[9] - found[1] < 2, found
  print(found)
