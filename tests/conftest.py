"""Gives all tests eight simulated devices; marks the tests of the gate."""

import os
import pathlib
import signal

import pytest

# Must be set before JAX is first used.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ['XLA_FLAGS'] = ' '.join(
  [
    os.environ.get('XLA_FLAGS', ''),
    '--xla_force_host_platform_device_count=8',
    # Tiny models spend most of their time in compilation.
    '--xla_backend_optimization_level=0',
    '--xla_llvm_disable_expensive_passes=true',
  ]
)

GATE = pathlib.Path(__file__).parents[1] / '.ci' / 'gate_tests'


def gate_tests():
  """Returns the tests to mark `gate`, each with its cases that stay unmarked.

  Each line of the list is a file, a test, a case of a test, or `TEST except
  CASE; CASE`.
  """
  lines = (line.partition(' except ') for line in GATE.read_text().splitlines())
  return {test: kept.split('; ') if kept else [] for test, _, kept in lines}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  listed = gate_tests()
  for item in items:
    test, _, case = item.nodeid.partition('[')
    by_test = test in listed and case.removesuffix(']') not in listed[test]
    file = test.partition('::')[0]
    if by_test or file in listed or item.nodeid in listed:
      item.add_marker('gate')


@pytest.fixture
def soon():
  """Fails a test after 5 s, in case it hangs, for example on a pipe."""

  def late(*_):
    raise AssertionError('The test still waits after 5 s.')

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(5)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)
