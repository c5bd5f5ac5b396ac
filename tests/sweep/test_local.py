"""Guards: local runs get their own devices, and do not outlive the launcher.

A killed launcher can be started again, and repeats no finished run.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests.several import is_running, wait_for
from tests.sweep import fakes
from vit_jax.sweep import commands
from vit_jax.sweep.launchers import local, worker
from vit_jax.sweep.launchers.local import Local


@pytest.mark.parametrize(
  'ids, slots, expected',
  [
    ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
    ([0, 1, 2, 3, 4], 2, [[0, 1], [2, 3, 4]]),
    ([4, 6], 1, [[4, 6]]),
    ([4, 6], 2, [[4], [6]]),
    ([4, 6], 3, [[4], [6], [4]]),
  ],
)
def test_cores_are_divided(ids, slots, expected):
  assert local.divide_cores(ids, slots) == expected


def test_devices_are_divided():
  def divided(ids, slots, kind, variable):
    found = local.environments(kind, list(ids), slots)
    return [each.get(variable) for each in found]

  assert divided('0123', 2, 'gpu', 'CUDA_VISIBLE_DEVICES') == ['0,1', '2,3']
  assert divided('0123', 4, 'tpu', 'TPU_VISIBLE_CHIPS') == list('0123')
  assert divided('0123', 2, 'tpu', 'TPU_CHIPS_PER_PROCESS_BOUNDS') == (
    ['1,2,1'] * 2
  )
  # One run keeps what the user has set.
  assert local.environments('tpu', list('012'), 1) == [{}]
  assert local.environments('cpu', [], 2) == [{}, {}]
  for ids, slots, kind in (
    ('0123', 3, 'gpu'),
    ('01', 4, 'gpu'),
    ('012345', 2, 'tpu'),
  ):
    with pytest.raises(ValueError, match=f'--parallel={slots}: the {len(ids)}'):
      local.environments(kind, list(ids), slots)


@pytest.mark.parametrize(
  'there, variables, expected',
  [
    (['/dev/nvidia0', '/dev/nvidia1'], {}, ('gpu', ['0', '1'])),
    (['/dev/nvidia0'], {'CUDA_VISIBLE_DEVICES': '5,7'}, ('gpu', ['5', '7'])),
    (['/dev/nvidia0'], {'JAX_PLATFORMS': 'cpu'}, ('cpu', [])),
    (['/dev/accel0', '/dev/accel1'], {}, ('tpu', ['0', '1'])),
    (['/dev/vfio/0'], {}, ('tpu', ['0'])),
    ([], {}, ('cpu', [])),
  ],
)
def test_accelerators_are_counted_without_jax(
  monkeypatch, there, variables, expected
):
  def glob(pattern):
    return [path for path in there if path.startswith(pattern.split('[')[0])]

  monkeypatch.setattr(local.glob, 'glob', glob)
  monkeypatch.setattr(local.os, 'environ', variables)
  assert local.accelerators() == expected


def _starts(path):
  """Returns run name -> the processes of its starts."""
  return {
    str(file.relative_to(path / 'runs')).removesuffix('.starts'): [
      int(line.split()[0]) for line in file.read_text().splitlines()
    ]
    for file in (path / 'runs').rglob('*.starts')
  }


@pytest.mark.parametrize(('platform', 'expected'), [('cpu', '1'), ('gpu', '-')])
def test_runs_on_cpus_keep_their_memory(
  tmp_path, monkeypatch, platform, expected
):
  monkeypatch.setattr(local, 'accelerators', lambda: (platform, ['0']))
  monkeypatch.delenv('MALLOC_ARENA_MAX', raising=False)
  monkeypatch.setenv('MALLOC_TOP_PAD_', '7')
  code = (
    'import os;'
    'print(os.environ.get("MALLOC_ARENA_MAX", "-"),'
    ' os.environ["MALLOC_TOP_PAD_"])'
  )
  where = fakes.folders(tmp_path)
  monkeypatch.setattr(
    commands, 'command', lambda *_: [sys.executable, '-c', code]
  )
  launcher = Local(where, 1)
  run = fakes.study().candidates[0]
  handle = launcher.start(run)
  wait_for(lambda: launcher.poll(handle) is not None)
  # A variable that the user has set is kept.
  assert where.log(run.name).read_text().split() == [expected, '7']


@pytest.fixture
def begin(tmp_path, tmp_path_factory, command):
  """Starts the launcher of a sweep, whose runs take so many seconds."""

  def begin(seconds):
    return command.start(
      *(tmp_path_factory.mktemp('output'), 'tests.sweep.fake_main'),
      *('--sweep=configs/sweeps/digits.py', '--parallel=2'),
      f'--workdir={tmp_path}',
      **{'JAX_PLATFORMS': 'cpu', 'FAKE_SECONDS': seconds},
    )

  return begin


@pytest.mark.gate
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_a_restarted_launcher_repeats_nothing(tmp_path, begin, number):
  process = begin('0.5')
  # Wait until some runs are done and two are running.
  wait_for(lambda: len(list((tmp_path / 'runs').rglob('DONE'))) >= 4)
  wait_for(lambda: len(_starts(tmp_path)) >= 6)
  done = [
    str(file.parent.relative_to(tmp_path / 'runs'))
    for file in (tmp_path / 'runs').rglob('DONE')
  ]
  pids = [pid for each in _starts(tmp_path).values() for pid in each]
  process.send(number)
  assert process.wait(20) == (75 if number == signal.SIGTERM else -number)
  # Runs do not outlive a launcher, even one that was killed.
  wait_for(lambda: not any(map(is_running, pids)), 5)
  again = begin('0')
  assert again.wait(60) == 0, again.err
  starts = _starts(tmp_path)
  assert len(starts) == 14
  assert {len(starts[name]) for name in done} == {1}
  assert sum(map(len, starts.values())) <= 16  # Two runs were interrupted.
  assert '[14 of 14 done, 0 running]' in again.out


def test_a_run_waits_until_its_predecessor_has_saved(tmp_path, monkeypatch):
  where = fakes.folders(tmp_path)
  run = fakes.study().candidates[0]
  log = where.log(run.name)
  log.parent.mkdir(parents=True)
  with log.open('a') as file:
    # This run of an earlier launcher holds the lock on its log.
    words = ['-m', worker.__name__, str(os.getpid()), '0', 'sleep', '1']
    earlier = subprocess.Popen([sys.executable, *words], stdout=file)
  line = pathlib.Path(f'/proc/{earlier.pid}/cmdline')
  wait_for(lambda: line.read_text().startswith('sleep'))
  monkeypatch.setattr(commands, 'command', fakes.command(0))
  launcher = Local(where, 1)
  handle = launcher.start(run)
  while launcher.poll(handle) is None:
    assert earlier.poll() is not None or not _starts(tmp_path)
    time.sleep(0.02)
  assert earlier.poll() == 0
  assert len(_starts(tmp_path)[run.name]) == 1
