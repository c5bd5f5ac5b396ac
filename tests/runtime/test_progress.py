"""Guards: speed, ETA, the log line, and the metrics of an interval."""

import types

import jax.numpy as jnp
import pytest
from absl import logging

from vit_jax.runtime import progress


@pytest.fixture
def clock(monkeypatch):
  """A clock that moves only by `clock.now += seconds`."""
  clock = types.SimpleNamespace(now=1000.0)
  fake = types.SimpleNamespace(monotonic=lambda: clock.now)
  monkeypatch.setattr(progress, 'time', fake)
  return clock


def test_speed_leaves_out_compilation_and_pauses(clock):
  measure = progress.Progress(start_step=100, total_steps=200, batch_size=32)
  clock.now += 60  # Compiling.
  measure.wait(50)
  measure.reset(101)
  assert measure.measure(101) == {}
  clock.now += 10
  measure.wait(2.5)
  assert measure.measure(111) == {
    'images_per_sec': 32.0,
    'input_wait': 0.25,
    'eta_sec': 89.0,
  }
  clock.now += 20
  measure.pause(10)
  measure.wait(1)
  # 20 steps took 30 seconds, pauses included: 69 x 1.5 seconds are left.
  assert measure.measure(121) == {
    'images_per_sec': 32.0,
    'input_wait': 0.1,
    'eta_sec': 118.5,
  }
  clock.now += 5
  measure.wait(7)  # Another clock may measure a wait that is too long.
  assert measure.measure(200)['input_wait'] == 1.0


@pytest.mark.parametrize(
  ('seconds', 'text'),
  [
    (0, '0:00'),
    (9.4, '0:09'),
    (59.6, '1:00'),
    (75, '1:15'),
    (3600, '1:00:00'),
    (86399, '23:59:59'),
    (93784, '1d02:03:04'),
  ],
)
def test_duration(seconds, text):
  assert progress.duration(seconds) == text


@pytest.mark.parametrize(
  ('others', 'text'),
  [
    ({'train/unreadable': 0.0}, ''),
    ({'train/unreadable': 3.0}, '  unreadable 3'),
    ({'train/skipped': 2.0}, '  skipped 2'),
    (
      {
        'images_per_sec': 12345.6,
        'input_wait': 0.071,
        'eta_sec': 93784,
        'train/unreadable': 0.0,
      },
      '  12,346 img/s  input  7%  ETA 1d02:03:04',
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
  progress.log_line(50, 10000, values | others)
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
  interval = progress.Interval(10)
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


@pytest.mark.parametrize(
  'made, expected', [(150, 'input limits'), (250, 'step limits')]
)
def test_what_limits_the_speed(clock, caplog, made, expected):
  caplog.set_level('INFO', logger=logging.get_absl_logger().name)
  limits = progress.Limits(100)
  # The first step compiles, and the last is not waited for.
  for seconds in (30.0, 0.7, 0.5, 0.6, 0.7, 0.1):
    before, clock.now = clock.now, clock.now + seconds
    limits.time(before, {})
  limits.log(made)
  assert caplog.messages == [
    f'By itself, the input makes about {made} images/s, and the step takes 200:'
    f' the {expected}.'
  ]
