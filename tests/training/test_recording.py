"""Guards: speed, ETA, the log line, and the metrics of an interval."""

import types

import jax.numpy as jnp
import pytest
from absl import logging

from vit_jax.training import recording


@pytest.fixture
def clock(monkeypatch):
  """A clock that moves only by `clock.now += seconds`."""
  clock = types.SimpleNamespace(now=1000.0)
  fake = types.SimpleNamespace(monotonic=lambda: clock.now)
  monkeypatch.setattr(recording, 'time', fake)
  return clock


def test_speed_leaves_out_evaluations_and_saves(clock):
  measure = recording.Progress(total_steps=200, batch_size=32)
  seconds = {'steps': 1.0, 'input': 50.0}
  measure.start(101, seconds)
  assert measure.measure(101, seconds) == {}
  clock.now += 10
  seconds = {'steps': 8.5, 'input': 52.5}
  assert measure.measure(111, seconds) == {
    'images_per_sec': 32.0,
    'input_wait': 0.25,
    'eta_sec': 89.0,
  }
  clock.now += 20
  seconds = {'steps': 17.5, 'input': 53.5}
  # 20 steps took 30 seconds, pauses included: 69 x 1.5 seconds are left.
  assert measure.measure(121, seconds) == {
    'images_per_sec': 32.0,
    'input_wait': 0.1,
    'eta_sec': 118.5,
  }


@pytest.mark.parametrize(
  ('others', 'text'),
  [
    (
      {'train/unreadable': 3.0, 'train/skipped': 2.0},
      '  unreadable 3  skipped 2',
    ),
    (
      {
        'images_per_sec': 12345.6,
        'input_wait': 0.071,
        'eta_sec': 93784,
        'train/unreadable': 0.0,
      },
      '  12,346 img/s  input  7%  ETA 1 day, 2:03:04',
    ),
  ],
)
def test_log_line(caplog, others, text):
  values = {
    'train/loss': 0.12345,
    'train/accuracy': 0.9,
    'train/learning_rate': 3e-4,
    'train/unreadable': 0.0,
    'train/skipped': 0.0,
  }
  caplog.set_level('INFO', logger=logging.get_absl_logger().name)
  recording.log_line(50, 10000, values | others)
  assert caplog.messages == [
    f'step    50/10000  loss 0.1235  acc  90.0%  lr 3.00e-04{text}'
  ]


def _step(loss, **others):
  values = dict(
    loss=loss,
    accuracy=loss / 4,
    learning_rate=loss / 10,
    grad_norm=1.0,
    update_norm=1.0,
    param_norm=1.0,
    unreadable=2.0,
    skipped=0.0,
  )
  return {k: jnp.float32(v) for k, v in (values | others).items()}


def _interval(*steps):
  interval = recording.Interval(10)
  for values in steps:
    interval.add(values)
  return interval


def test_interval_means_sums_and_last_values():
  interval = _interval(_step(1.0), _step(2.0), _step(4.0), _step(5.0))
  assert interval.mean() == pytest.approx(
    {
      'train/loss': 3.0,
      'train/accuracy': 0.75,
      'train/learning_rate': 0.5,
      'train/grad_norm': 1.0,
      'train/update_norm': 1.0,
      'train/param_norm': 1.0,
      'train/unreadable': 8.0,
      'train/skipped': 0.0,
    }
  )
