"""Guards: the search finds the fastest and largest batch (fake compiler)."""

import jax
import pytest

from vit_jax.inference_speed import batch_sizes, forward

SETTINGS = batch_sizes.Search(precision=0)


def _device(seconds, need, memory_bytes=1000):
  """Returns a fake device and the list of batches that it compiled."""
  asked = []

  def compile_batch(model, size, batch_size):
    assert (model, size) == ('model', 32)
    asked.append(batch_size)
    return forward.Program(need(batch_size), lambda: seconds(batch_size))

  device = forward.Device('device', 'cpu', memory_bytes, compile_batch)
  return device, asked


def _error(message):
  raise jax.errors.JaxRuntimeError(message)


def test_batches_are_timed_until_two_are_no_faster():
  # From a batch of 4 on, the speed stays at 8 images a second.
  device, _ = _device(lambda b: max(0.5, b / 8), lambda b: 100 + b)
  found = batch_sizes.search(device, 'model', 32, SETTINGS)
  assert found.rates == {1: 2, 2: 4, 4: 8, 8: 8, 16: 8}
  assert found.largest == 900


def test_batches_that_do_not_fit_are_not_timed():
  device, _ = _device(lambda b: 1.0, lambda b: 100 * b, memory_bytes=500)
  found = batch_sizes.search(device, 'model', 32, SETTINGS)
  assert found.rates == {1: 1, 2: 2, 4: 4}
  assert found.largest == 5


def test_a_model_too_large_for_one_image_has_no_speed():
  device, asked = _device(lambda b: 1.0, lambda b: 2000)
  assert batch_sizes.search(device, 'model', 32, SETTINGS) == batch_sizes.Found(
    {}, 0
  )
  assert asked == [1]


def test_smaller_batches_are_tried_where_the_first_does_not_fit():
  device, asked = _device(lambda b: 1.0, lambda b: 100 * b, memory_bytes=500)
  settings = batch_sizes.Search(first=64, growth=4, precision=0)
  found = batch_sizes.search(device, 'model', 32, settings)
  assert found == batch_sizes.Found({4: 4.0}, 5)
  assert asked[:3] == [64, 16, 4]
  # No batch is compiled twice.
  assert len(asked) == len({*asked})
  device, asked = _device(lambda b: 1.0, lambda b: 2000)
  found = batch_sizes.search(device, 'model', 32, settings)
  assert (found, asked) == (batch_sizes.Found({}, 0), [64, 16, 4, 1])


def test_running_out_of_memory_ends_the_timing():
  def seconds(batch_size):
    return 1.0 if batch_size < 4 else _error('RESOURCE_EXHAUSTED: 1 of 2 GiB')

  device, _ = _device(seconds, lambda b: b)
  assert [*batch_sizes.search(device, 'model', 32, SETTINGS).rates] == [1, 2]
  broken, _ = _device(lambda b: _error('INTERNAL: broken'), lambda b: b)
  with pytest.raises(jax.errors.JaxRuntimeError, match='broken'):
    batch_sizes.search(broken, 'model', 32, SETTINGS)


def test_batches_that_fail_to_compile_do_not_fit():
  def need(batch_size):
    return 1 if batch_size <= 300 else _error('INTERNAL: index too large')

  device, _ = _device(lambda b: 1.0, need, memory_bytes=10**9)
  settings = batch_sizes.Search(precision=0, patience=1, max_seconds=1.5)
  found = batch_sizes.search(device, 'model', 32, settings)
  assert found.largest == 300
  assert found.rates == {1: 1}


def test_a_compiler_that_fails_at_once_is_an_error_unless_memory_is_short():
  device, _ = _device(lambda b: 1.0, lambda b: _error('INTERNAL: no such op'))
  with pytest.raises(ValueError, match=r'32 px, batch 1, did not co.*no such'):
    batch_sizes.search(device, 'model', 32, SETTINGS)
  short, _ = _device(lambda b: 1.0, lambda b: _error('RESOURCE_EXHAUSTED: x'))
  assert batch_sizes.search(short, 'model', 32, SETTINGS).largest == 0


@pytest.mark.parametrize(
  'need, expected',
  [
    (lambda b: 100 + 7 * b, 1430),
    (lambda b: 7 * b if b < 500 else 9 * b, 1123),
    (lambda b: 5000 + b * b, 71),
    (lambda b: 128 * (b // 128 + 1), 9983),  # Memory grows in steps.
    (lambda b: b if b < 3 else None, 2),
    (lambda b: 10_112 * b, 0),
  ],
)
def test_the_largest_batch_is_found_for_any_memory_growth(need, expected):
  asked = []

  def slow(batch_size):
    asked.append(batch_size)
    return need(batch_size)

  known = {1: need(1)}
  assert batch_sizes.largest_batch(slow, known, 10_111, 0) == expected
  assert len(asked) == len({*asked})


def test_linear_memory_needs_few_compilations():
  asked = []

  def need(batch_size):
    asked.append(batch_size)
    return 1000 + 10 * batch_size

  known = {1: 1010, 2: 1020}
  # The first try is limited. The second aims at 99% of the memory; 98% suffice.
  assert batch_sizes.largest_batch(need, known, 100_000, 0.02) == 9800
  assert asked == [2048, 9800]


def test_the_search_stops_within_the_precision():
  # 100 fits and 102 does not; the gap is within the precision.
  known = {1: 1, 100: 50, 102: 120}
  assert batch_sizes.largest_batch(lambda b: 1 / 0, known, 100, 0.02) == 100
