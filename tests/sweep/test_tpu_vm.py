"""Guards: a sweep runs one run on each slice, and reads how the runs ended.

Stand-ins replace the functions of launch/.
"""

import pytest
from etils import epath

from tests.sweep import fakes
from vit_jax.launch import shell as shell_lib
from vit_jax.launch import workers
from vit_jax.sweep import tpu_vm
from vit_jax.sweep.commands import Folders


def _worker(state, code=None, *, alive=False):
  return workers.Worker('w', alive, state, code, '')


@pytest.mark.parametrize(
  'found, code',
  [
    ([_worker('running', alive=True), _worker('ended', 0)], None),
    ([_worker('ended', 0), _worker('ended', 0)], 0),
    ([_worker('ended', 76), _worker('ended', 1)], 1),
    ([_worker('ended', 0), _worker('gave_up', 77)], 77),
    ([_worker('stopped', 75)], 75),
    ([_worker('running')], 75),  # A restart of the machine interrupted it.
    ([_worker('new'), _worker('ended', 0)], -9),  # The slice is a new one.
    ([_worker('idle')], -9),
    ([], -9),
  ],
)
def test_exit_codes_follow_from_the_machines_states(found, code):
  assert tpu_vm.exit_code(found) == code


@pytest.fixture
def cloud(monkeypatch):
  """Records the calls to the slices, which answer with `cloud.found`."""
  calls = []

  class Cloud:
    found = (_worker('running', alive=True),)

  def start(shell, target, flags):
    calls.append(('start', target.name, target.zone, flags[-2:]))
    if Cloud.found is None:
      raise shell_lib.CommandError('no way')

  def status(shell, target):
    if Cloud.found is None:
      raise shell_lib.CommandError('no way')
    return Cloud.found

  monkeypatch.setattr(workers, 'start', start)
  monkeypatch.setattr(workers, 'status', status)
  monkeypatch.setattr(
    workers, 'stop', lambda shell, target: calls.append(('stop', target.name))
  )
  monkeypatch.setenv('CLOUDSDK_CORE_PROJECT', 'p')
  monkeypatch.setenv('CLOUDSDK_COMPUTE_ZONE', 'z')
  Cloud.calls = calls
  return Cloud


def _pool(path, names=('x', 'y'), shared='gs://bucket/sweep'):
  return tpu_vm.TpuVms(Folders(path, epath.Path(shared)), names)


def test_each_slice_has_one_run(cloud, tmp_path):
  pool = _pool(tmp_path)
  first, second, third = fakes.study().candidates[:3]
  assert pool.slots == 2
  assert [pool.start(first), pool.start(second)] == ['x', 'y']
  assert cloud.calls[0] == (
    'start',
    'x',
    'z',
    [
      '--workdir=gs://bucket/sweep/runs/a/rate=0.001',
      '--compilation_cache=gs://bucket/sweep/compilation_cache',
    ],
  )
  assert pool.poll('y') is None
  cloud.found = [_worker('ended', 0)]
  assert pool.poll('y') == 0
  assert pool.start(third) == 'y'
  pool.stop('x')
  assert cloud.calls[-1] == ('stop', 'x')


def test_a_slice_out_of_reach(cloud, tmp_path):
  pool = _pool(tmp_path)
  assert pool.start(fakes.study().candidates[0]) == 'x'
  cloud.found = None
  assert pool.poll('x') is None  # The run continues.
  # A run that did not start must be started again.
  assert pool.start(fakes.study().candidates[1]) == 'y'
  assert pool.poll('y') == -9
  assert pool.poll('x') is None


def test_a_pool_adopts_running_runs(cloud, tmp_path):
  pool = _pool(tmp_path)
  assert pool.poll('x') is None
  assert pool.start(fakes.study().candidates[0]) == 'y'
  with pytest.raises(ValueError, match='on z, which --tpus= does not name'):
    pool.poll('z')
