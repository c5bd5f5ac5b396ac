"""Eight simulated devices for all tests; must precede JAX's first use."""

import os
import pathlib
import signal

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ['XLA_FLAGS'] = ' '.join(
  [
    os.environ.get('XLA_FLAGS', ''),
    '--xla_force_host_platform_device_count=8',
    # Compiling takes most of the time of tiny models.
    '--xla_backend_optimization_level=0',
    '--xla_llvm_disable_expensive_passes=true',
  ]
)

GATE = pathlib.Path(__file__).parents[1] / '.ci' / 'gate_tests'


def gate_tests():
  """What is marked `gate`: test -> the cases that are not.

  A line of the list is a file, a test, one case of it, or `TEST except CASE;
  CASE`.
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
  """Whoever waits for a pipe fails, and does not wait for ever."""

  def late(*_):
    raise AssertionError('It waits.')

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(5)
  yield
  signal.alarm(0)
  signal.signal(signal.SIGALRM, before)
