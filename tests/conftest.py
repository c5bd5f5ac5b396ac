"""Gives all tests eight simulated devices."""

import gc
import os
import signal

import pytest

from tests import commands

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


# Python would look for garbage among the modules, again and again.
gc.disable()


def pytest_collection_finish():
  """From now on there is garbage, but not among what was imported."""
  gc.freeze()
  gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """Gives each file to one process, so that its fixtures are made once."""
  from xdist import scheduler

  return scheduler.LoadFileScheduling(config, log)


@pytest.fixture(scope='session', autouse=True)
def command():
  """Runs `python -m MODULE WORD...`; see `commands.Commands`."""
  yield commands.shared()
  commands.shared().close()


@pytest.fixture(scope='session')
def compiled(tmp_path_factory):
  """A directory of compiled programs that pytest's processes share."""
  folder = tmp_path_factory.getbasetemp()
  if 'PYTEST_XDIST_WORKER' in os.environ:
    folder = folder.parent
  return folder / 'programs'


@pytest.fixture(scope='module')
def programs(compiled):
  """Runs of a file share their compiled programs, with other files, too."""
  from tests import tiny_run  # Imports JAX, which the lines above configure.

  with tiny_run.keeping_programs(compiled):
    yield


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
