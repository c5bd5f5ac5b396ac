"""Guards: the input benchmark measures the pipeline's speed and the stalls."""

import time

from benchmarks import inputs
from vit_jax import data
from vit_jax.data import ops


def test_stall_is_what_the_step_does_not_hide(monkeypatch):
  """A batch takes 40 ms: a step of 60 ms hides it, a step of 0 ms does not."""

  class Batches:
    def __init__(self, *_, **__):
      self._ready = time.monotonic()

    def ready(self):
      return True

    def close(self):
      pass

    def __iter__(self):
      return self

    def __next__(self):
      # One batch is made ahead.
      self._ready = max(self._ready + 0.04, time.monotonic() - 0.04)
      time.sleep(max(0.0, self._ready - time.monotonic()))
      return {}

  monkeypatch.setattr(inputs.pipeline, 'train_batches', Batches)
  view = data.View(data.open_source('digits'), 'train')
  preprocess = ops.parse('resize', image_size=(8, 8), channels=1)
  hidden, bare = (
    inputs.turn(
      *(view, preprocess, {'workers': 0}),
      **dict(batch_size=8, batches=4, step_ms=step_ms),
    )
    for step_ms in (60, 0)
  )
  assert 0.03 < bare['batch_sec'] < 0.2
  assert hidden['stall_ms'] < 20 < bare['stall_ms']
