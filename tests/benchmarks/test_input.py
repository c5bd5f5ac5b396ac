"""Guards: the input benchmark measures the pipeline's speed and the stalls."""

import time

import pytest

from benchmarks.measure import input as measure_input
from vit_jax import data, sharding
from vit_jax.data import ops


@pytest.mark.parametrize(
  'text, expected',
  [
    ('default', {}),
    ('threads=4', {'threads': 4}),
    ('workers=2,threads=0', {'workers': 2, 'threads': 0}),
  ],
)
def test_parse(text, expected):
  assert measure_input.parse(text) == expected


@pytest.mark.parametrize('text', ['', 'thread=1', 'threads', 'threads=-1'])
def test_parse_wrong(text):
  with pytest.raises(ValueError, match=f'--setting={text}: '):
    measure_input.parse(text)


@pytest.mark.gate
def test_measure(tmp_path):
  results = measure_input.measure(
    measure_input.make_images(tmp_path, 8),
    ['threads=1,workers=0', 'opencv'],
    image_size=(16, 16),
    batch_size=8,
    batches=2,
    step_ms=1.0,
    rounds=2,
  )
  assert list(results) == ['threads=1,workers=0', 'opencv']
  first = results['threads=1,workers=0']
  for result in results.values():
    seconds = result['batch_sec']['median']
    assert result['images_per_sec'] == pytest.approx(8 / seconds)
    assert result['ratio'] == pytest.approx(
      seconds / first['batch_sec']['median']
    )
  assert first['largest_stall_ms'] >= first['stall_ms']['median'] >= 0
  assert 'stall_ms' not in results['opencv']


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

  monkeypatch.setattr(measure_input.pipeline, 'train_batches', Batches)
  view = data.View(data.open_source('digits'), 'train')
  preprocess = ops.parse('resize', image_size=(8, 8), channels=1)

  def turn(step_ms):
    return measure_input.turn(
      view,
      preprocess,
      sharding.make_mesh(),
      {'workers': 0},
      batch_size=8,
      batches=4,
      step_ms=step_ms,
    )

  hidden, bare = turn(60), turn(0)
  assert 0.03 < bare['batch_sec'] < 0.2
  assert hidden['stall_sec'] < 0.02 < bare['stall_sec']
