"""Guards: the search finds the fastest and largest batch (fake compiler)."""

import types

import jax
import pytest

from vit_jax.inference_speed import batch_sizes, devices


def _search(seconds, need, memory_bytes=1000, **settings):
  """Returns the rates, the largest batch, and the batches compiled for it."""
  asked = []

  def compile_batch(model, size, batch_size):
    assert (model, size) == ('model', 32)
    asked.append(batch_size)
    return devices.Program(need(batch_size), lambda: seconds(batch_size))

  device = types.SimpleNamespace(
    memory_bytes=memory_bytes, compile=compile_batch
  )
  settings = batch_sizes.Search(**{'precision': 0} | settings)
  found = batch_sizes.search(device, 'model', 32, settings)
  assert len(asked) == len({*asked})  # No batch is compiled twice.
  return *found, asked


def _error(message):
  raise jax.errors.JaxRuntimeError(message)


def _second(batch_size):
  return 1.0


def _hundreds(batch_size):
  return 100 * batch_size


def test_batches_are_timed_until_two_are_no_faster():
  # From a batch of 4 on, the speed stays at 8 images a second.
  rates, largest, _ = _search(lambda b: max(0.5, b / 8), lambda b: 100 + b)
  assert rates == {1: 2, 2: 4, 4: 8, 8: 8, 16: 8}
  assert largest == 900


def test_batches_that_do_not_fit_are_not_timed():
  rates, largest, _ = _search(_second, _hundreds, memory_bytes=500)
  assert (rates, largest) == ({1: 1, 2: 2, 4: 4, 5: 5}, 5)
  assert _search(_second, lambda b: 2000) == ({}, 0, [1])


def test_running_out_of_memory_ends_the_timing():
  def seconds(batch_size):
    return 1.0 if batch_size < 4 else _error('RESOURCE_EXHAUSTED: 1 of 2 GiB')

  rates, _, _ = _search(seconds, lambda b: b)
  assert [*rates] == [1, 2]
  with pytest.raises(jax.errors.JaxRuntimeError, match='broken'):
    _search(lambda b: _error('INTERNAL: broken'), lambda b: b)


def test_batches_that_fail_to_compile_do_not_fit():
  def need(batch_size):
    return 1 if batch_size <= 300 else _error('INTERNAL: index too large')

  rates, largest, _ = _search(
    _second, need, memory_bytes=10**9, patience=1, max_seconds=1.5
  )
  assert (rates, largest) == ({1: 1.0}, 300)


def test_a_compiler_that_fails_at_once_is_an_error_unless_memory_is_short():
  with pytest.raises(ValueError, match=r'32 px, batch 1, did not co.*no such'):
    _search(_second, lambda b: _error('INTERNAL: no such op'))
  short = lambda b: _error('RESOURCE_EXHAUSTED: x')  # noqa: E731
  assert _search(_second, short) == ({}, 0, [1])


@pytest.mark.parametrize(
  'need, expected',
  [
    (lambda b: 100 + 7 * b, 1430),
    (lambda b: 7 * b if b < 500 else 9 * b, 1123),
    (lambda b: 5000 + b * b, 71),
    (lambda b: 128 * (b // 128 + 1), 9983),  # Memory grows in steps.
    (lambda b: b if b < 3 else _error('too large'), 2),
    (lambda b: 10_112 * b, 0),
  ],
)
def test_the_largest_batch_is_found_for_any_memory_growth(need, expected):
  _, largest, _ = _search(_second, need, memory_bytes=10_111, max_seconds=1)
  assert largest == expected


def test_linear_memory_needs_few_compilations():
  *_, asked = _search(
    lambda b: b, lambda b: 1000 + 10 * b, 100_000, precision=0.02, max_seconds=3
  )
  # The last try aims at 99% of the memory; 98% suffice.
  assert asked == [1, 2, 32, 512, 8192, 131_072, 9800]
