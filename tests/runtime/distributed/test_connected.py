"""Guards: processes of a run meet, agree and end together, with clear errors.

The processes are real, on 127.0.0.1.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest

from tests import ports
from vit_jax.runtime import distributed, installed

slow = pytest.mark.slow  # Each test starts processes for seconds.

ROOT = pathlib.Path(__file__).parents[3]
PATIENCE = 60.0  # Seconds for anything that should take a few.


class Run:
  """Several worker processes, and what they print."""

  def __init__(self, tmp_path, does, ids=(0, 1), num_processes=None, **limits):
    self.port = ports.free_port()
    self._tmp_path = tmp_path
    self._arguments = {
      'coordinator_address': f'127.0.0.1:{self.port}',
      'num_processes': num_processes or len(ids),
      'does': does,
      **limits,
    }
    self.processes = {}
    for process_id in ids:
      self.add(process_id)

  def add(
    self,
    process_id,
    name=None,
    words=(),
    path='',
    root=ROOT,
    environment=(),
    **arguments,
  ):
    """Starts a process; its `name` is by default its process id.

    `path` comes first on its import path, and `root` holds the code.
    """
    name = process_id if name is None else name
    worker = {**self._arguments, 'process_id': process_id, **arguments}
    with self._file(name).open('w') as file:
      self.processes[name] = subprocess.Popen(
        [sys.executable, '-m', 'tests.runtime.distributed.worker', *words],
        cwd=root,
        env=os.environ
        | {
          'JAX_PLATFORMS': 'cpu',
          'XLA_FLAGS': '',
          'WORKER': json.dumps(worker),
        }
        | ({'PYTHONPATH': str(path)} if path else {})
        | dict(environment),
        stdout=file,
        stderr=subprocess.STDOUT,
      )

  def _file(self, name):
    return self._tmp_path / f'{name}.txt'

  def output(self, name):
    return self._file(name).read_text()

  def wait_for(self, text, alive=True):
    deadline = time.monotonic() + PATIENCE
    while not all(text in self.output(name) for name in self.processes):
      outputs = {name: self.output(name) for name in self.processes}
      assert time.monotonic() < deadline, outputs
      if alive:
        assert all(p.poll() is None for p in self.processes.values()), outputs
      time.sleep(0.02)

  def send(self, name, number):
    """Sends a signal to a process, which no longer counts as one of the run."""
    self.processes[name].send_signal(number)
    return self.processes.pop(name)

  def end(self):
    """Returns each process's exit code, and the seconds until all ended.

    The time to start Python and JAX does not count.
    """
    self.wait_for('begins', alive=False)
    start = time.monotonic()
    codes = {n: p.wait(PATIENCE) for n, p in self.processes.items()}
    return codes, time.monotonic() - start

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes.values():
      process.kill()
      process.wait()


def _lost(run, name):
  """Returns the only error of a process, which names a lost process."""
  [text] = set(re.findall(r'(?:error: |\] )(Lost .*)', run.output(name)))
  assert run.output(name).count(text) == 1
  return text


def test_a_single_process_opens_no_connection(monkeypatch):
  def fail(*_, **__):
    raise AssertionError('There is nobody to talk to.')

  monkeypatch.setattr(socket, 'socket', fail)
  monkeypatch.setattr(jax.distributed, 'initialize', fail)
  for arguments in ({}, {'num_processes': 1}):
    with distributed.connected(**arguments):
      assert distributed.broadcast((1, 'a')) == (1, 'a')
      assert distributed.any_true(True) is True
      assert distributed.any_true(False) is False


def test_processes_meet_agree_and_wait_for_the_last(tmp_path):
  with Run(tmp_path, 'agree', ids=(0, 1, 2)) as run:
    # Other programs may connect to the port, too.
    for garbage in (b'GET / HTTP/1.1\r\n\r\n', b'[' * 60000 + b'\n', b'{}\n'):
      deadline = time.monotonic() + PATIENCE
      while time.monotonic() < deadline:
        try:
          with socket.create_connection(('127.0.0.1', run.port + 1)) as other:
            other.sendall(garbage)
            assert other.recv(1000) == b''
          break
        except ConnectionRefusedError:
          time.sleep(0.05)
        except ConnectionResetError:
          break
    codes, _ = run.end()
    assert codes == {0: 0, 1: 0, 2: 0}, run.output(0)
    for i in range(3):
      [line] = re.findall('agreed (.*)', run.output(i))
      first = {'from': 0, 'none': None}
      assert json.loads(line) == [3, first, [True, True, False]]
    assert 'written' in run.output(0)


def test_all_processes_name_the_missing_ones(tmp_path):
  with Run(
    tmp_path, 'forever', ids=(0, 2), num_processes=4, start_timeout=3
  ) as run:
    codes, seconds = run.end()
    assert codes == {0: 76, 2: 76}
    assert seconds < 20
    host = socket.gethostname()
    for i in (0, 2):
      assert (
        'error: Processes 1, 3 of 4 did not join within 3 s; joined: 0 on'
        f' {host}, 2 on {host}.' in run.output(i)
      )


def test_missing_process_0_is_named(tmp_path):
  with Run(
    tmp_path, 'forever', ids=(1,), num_processes=2, start_timeout=2
  ) as run:
    assert run.end()[0] == {1: 76}
    assert (
      f'error: Process 0 at 127.0.0.1:{run.port + 1} did not answer within 2 s'
      ' (Connection refused); this is process 1 of 2 on' in run.output(1)
    )


@pytest.mark.parametrize('victim', [0, 1])
def test_killed_process_is_named(tmp_path, victim):
  with Run(tmp_path, 'forever', ids=(0, 1, 2)) as run:
    run.wait_for('adding')
    killed = run.send(victim, signal.SIGKILL)
    codes, seconds = run.end()
    # The code is not -6, with which JAX would abort the processes.
    assert set(codes.values()) == {76}
    assert seconds < 6
    for i in codes:
      assert (
        f'Lost process {victim} on {socket.gethostname()} (pid {killed.pid}):'
        ' connection closed' in _lost(run, i)
      )


def test_error_of_one_process_reaches_the_others(tmp_path):
  with Run(tmp_path, 'one fails') as run:
    pid = run.processes[1].pid
    codes, _ = run.end()
    assert codes == {0: 1, 1: 1}
    assert (
      f'Process 1 on {socket.gethostname()} (pid {pid}) ended: ValueError: not'
      ' a good config\n' in run.output(0)
    )
    assert 'error: not a good config' in run.output(1)


@slow
def test_each_process_reports_its_own_error_if_all_fail(tmp_path):
  with Run(tmp_path, 'all fail') as run:
    assert run.end()[0] == {0: 1, 1: 1}
    for i in range(2):
      assert f'error: loss is NaN, says {i}\n' in run.output(i)
      assert 'ended:' not in run.output(i)


@slow
def test_sigterm_to_one_process_stops_all_at_the_same_step(tmp_path):
  with Run(tmp_path, 'until preempted') as run:
    run.wait_for('adding')
    run.processes[1].terminate()
    assert run.end()[0] == {0: 75, 1: 75}
    steps = [
      re.findall(r'error: at step (\d+)', run.output(i)) for i in range(2)
    ]
    assert len(steps[0]) == 1
    assert steps[0] == steps[1]
    assert int(steps[0][0]) >= 4


@slow
@pytest.mark.parametrize('victim', [0, 1])
def test_suspended_process_is_named(tmp_path, victim):
  with Run(tmp_path, 'forever', ids=(0, 1, 2), lost_timeout=4) as run:
    run.wait_for('adding')
    stopped = run.send(victim, signal.SIGSTOP)
    codes, seconds = run.end()
    stopped.send_signal(signal.SIGCONT)
    # The stopped process learns of its loss when it goes on.
    assert stopped.wait(PATIENCE) == 76
    assert set(codes.values()) == {76}
    assert 3 < seconds < 12
    for i in codes:
      assert f'Lost process {victim} on' in _lost(run, i)
      assert 'no sign of life for 4 s' in _lost(run, i)


@slow
@pytest.mark.parametrize('first', [0, 1])
def test_a_suspended_process_does_not_report_the_others_as_lost(
  tmp_path, first
):
  with Run(tmp_path, 'until preempted', lost_timeout=4) as run:
    run.wait_for('adding')
    run.processes[first].send_signal(signal.SIGSTOP)
    time.sleep(1)  # The second process reads all that the first has sent.
    run.processes[1 - first].send_signal(signal.SIGSTOP)
    time.sleep(6)  # Longer than `lost_timeout`.
    run.processes[1 - first].send_signal(signal.SIGCONT)
    time.sleep(1.5)
    run.processes[first].send_signal(signal.SIGCONT)
    time.sleep(2)
    run.processes[0].terminate()
    assert run.end()[0] == {0: 75, 1: 75}, run.output(0) + run.output(1)


@slow
def test_a_repeated_process_id_is_an_error(tmp_path):
  with Run(tmp_path, 'forever', ids=(0, 1), num_processes=3) as run:
    run.add(1, name='twin')
    codes, seconds = run.end()
    assert codes == {0: 1, 1: 1, 'twin': 1}
    assert seconds < 18
    for name in (0, 1, 'twin'):
      assert 'error: Two processes have the same process id:' in (
        run.output(name)
      )


@slow
def test_a_different_number_of_processes_is_an_error(tmp_path):
  with Run(tmp_path, 'forever', ids=(0,), num_processes=2) as run:
    run.add(1, num_processes=3)
    codes, seconds = run.end()
    assert codes == {0: 1, 1: 1}
    assert seconds < 18
    for i in range(2):
      assert 'Process 0 expects 2 processes, and process 1 on' in (
        run.output(i)
      )


def test_different_library_versions_end_the_run_before_the_first_step(tmp_path):
  for name in ('numpy', 'libtpu'):
    folder = tmp_path / f'{name}-9.9.9.dist-info'
    folder.mkdir()
    (folder / 'METADATA').write_text(f'Name: {name}\nVersion: 9.9.9\n')
  here = installed.versions()
  with Run(tmp_path, 'forever', ids=(), num_processes=2) as run:
    run.add(0)
    run.add(1, path=tmp_path)
    assert run.end()[0] == {0: 1, 1: 1}
    host = socket.gethostname()
    has = [
      f'libtpu {here.get("libtpu", "missing")}, numpy {here["numpy"]}',
      'libtpu 9.9.9, numpy 9.9.9',
    ]
    pids = [run.processes[i].pid for i in range(2)]
    for i in range(2):
      assert (
        f'error: Processes differ in their versions: process 0 on {host} (pid'
        f" {pids[0]}) has '{has[0]}', process 1 on {host} (pid {pids[1]}) has"
        f" '{has[1]}'. It must be the same. Install the same on all hosts"
      ) in run.output(i)
      assert 'adding' not in run.output(i)


@slow
def test_a_different_command_line_is_an_error(tmp_path):
  with Run(tmp_path, 'forever', ids=(), num_processes=2) as run:
    for i in range(2):
      words = ['--same=1', f'--process_id={i}', f'--config.seed={i}']
      run.add(i, words=words)
    codes, seconds = run.end()
    assert codes == {0: 1, 1: 1}
    assert seconds < 18
    for i in range(2):
      assert 'Processes differ in their command line' in run.output(i)
      assert "has '--config.seed=0', process 1 on" in run.output(i)


@slow
def test_a_different_command_line_of_a_late_process_0_is_an_error(tmp_path):
  with Run(tmp_path, 'forever', ids=(), num_processes=2) as run:
    run.add(1, words=['--config.seed=1'])
    time.sleep(6)
    run.add(0, words=['--config.seed=0'])
    codes, seconds = run.end()
    assert codes == {0: 1, 1: 1}
    assert seconds < 18
    for i in range(2):
      assert "has '--config.seed=0', process 1 on" in run.output(i)


@slow
def test_different_code_is_an_error(tmp_path):
  other = tmp_path / 'other'
  for package in ('vit_jax', 'tests/runtime/distributed'):
    shutil.copytree(ROOT / package, other / package)
  shutil.copy(ROOT / 'tests' / '__init__.py', other / 'tests')
  with (other / 'vit_jax' / 'runtime' / 'errors.py').open('a') as file:
    file.write('# Changed.\n')
  with Run(tmp_path, 'forever', ids=(0,), num_processes=2) as run:
    run.add(1, root=other, path=other)
    codes, seconds = run.end()
    assert codes == {0: 1, 1: 1}
    assert seconds < 18
    for i in range(2):
      assert 'differ in their vit_jax source (SHA-256): process 0' in (
        run.output(i)
      )


def _hello(**changes):
  hello = {
    'protocol': 2,
    'token': hashlib.sha256(b'\n').hexdigest(),  # Hash without a launcher.
    'nonce': 'stranger',
    'process_id': 1,
    'num_processes': 2,
    'host': 'elsewhere',
    'pid': 1,
    'identity': {},
    **changes,
  }
  return json.dumps({'hello': hello}).encode() + b'\n'


def _disturb(port, stack):
  """Opens 500 silent connections, and sends garbage and false hellos."""
  for data in [b''] * 500 + [
    *(b'GET / HTTP/1.1\r\n\r\n', b'\xff' * 9999, b'{"hello": {"protocol": '),
    *(b'[' * 250_000 + b'\n', b'x' * (1 << 18), b'{"done": {}}\n'),
    *(_hello(process_id=math.inf), _hello(process_id=0), _hello(process_id=9)),
    *(_hello(), _hello(num_processes=7), _hello(protocol=1), _hello(token='a')),
    _hello(identity={'command line': ['x' * 200_000], 'versions': {}}),
  ]:
    sock = socket.create_connection(('127.0.0.1', port), 10)
    stack.enter_context(sock)
    with contextlib.suppress(ConnectionError):
      sock.sendall(data)


@slow
def test_strangers_disturb_neither_the_start_nor_the_run(tmp_path):
  with (
    Run(tmp_path, 'until preempted', ids=(0,), num_processes=2) as run,
    contextlib.ExitStack() as stack,
  ):
    run.wait_for('begins')
    time.sleep(1)
    _disturb(run.port + 1, stack)
    run.add(1)
    run.wait_for('begins')
    began = time.monotonic()
    run.wait_for('adding')
    assert time.monotonic() - began < 15
    _disturb(run.port + 1, stack)
    time.sleep(2)
    run.processes[0].terminate()
    codes, seconds = run.end()
    assert codes == {0: 75, 1: 75}
    assert seconds < 15


@slow
def test_a_process_of_another_launch_is_refused(tmp_path):
  with Run(tmp_path, 'agree', ids=(), num_processes=2, start_timeout=20) as run:
    run.add(0, environment={'VIT_JAX_LAUNCH_TOKEN': 'one'})
    run.add(1, name='other', environment={'VIT_JAX_LAUNCH_TOKEN': 'two'})
    run.wait_for('begins')
    time.sleep(2)
    run.add(1, environment={'VIT_JAX_LAUNCH_TOKEN': 'one'})
    other = run.processes.pop('other')
    assert run.end()[0] == {0: 0, 1: 0}
    assert other.wait(PATIENCE) == 76
    assert 'Sent away a process of another launch: process 1' in run.output(0)


@slow
@pytest.mark.parametrize('victim', [0, 1])
def test_sigterm_before_the_first_step_ends_all_at_once(tmp_path, victim):
  with Run(tmp_path, 'prepare') as run:
    run.wait_for('preparing')
    run.processes[victim].terminate()
    codes, seconds = run.end()
    assert codes == {0: 75, 1: 75}
    assert seconds < 8
    text = 'SIGTERM: nothing was trained since the start.'
    assert f'ended: {text}' in run.output(victim)
    assert re.search(
      rf'Process {victim} on .* ended: {text}', run.output(1 - victim)
    )


@slow
def test_a_lost_process_is_named_while_others_wait_to_agree(tmp_path):
  with Run(tmp_path, 'agree late', ids=(0, 1, 2)) as run:
    run.wait_for('waiting')
    killed = run.send(1, signal.SIGKILL)
    codes, seconds = run.end()
    assert codes == {0: 76, 2: 76}
    assert seconds < 6
    for i in codes:
      assert f'Lost process 1 on {socket.gethostname()} (pid {killed.pid})' in (
        _lost(run, i)
      )


@slow
def test_a_process_may_restart_before_the_run_begins(tmp_path):
  with Run(tmp_path, 'agree', ids=(0, 1), num_processes=3) as run:
    time.sleep(5)
    run.send(1, signal.SIGKILL).wait()
    for i in (1, 2):
      run.add(i)
    assert run.end()[0] == {0: 0, 1: 0, 2: 0}


@slow
def test_a_late_process_does_not_disturb_a_run(tmp_path):
  with Run(tmp_path, 'until preempted') as run:
    run.wait_for('adding')
    run.add(1, name='newcomer', start_timeout=2)
    newcomer = run.processes.pop('newcomer')
    assert newcomer.wait(PATIENCE) == 76
    assert f'(a run with process 1 on {socket.gethostname()}' in run.output(
      'newcomer'
    )
    run.processes[0].terminate()
    assert run.end()[0] == {0: 75, 1: 75}


@slow
def test_preempted_processes_do_not_alarm_each_other(tmp_path):
  with Run(tmp_path, 'preempted', ids=(0, 1, 2)) as run:
    assert run.end()[0] == {0: 75, 1: 75, 2: 75}
    for i in range(3):
      assert f'error: saved, says {i}' in run.output(i)
      assert 'ended' not in run.output(i)
      assert 'Lost' not in run.output(i)


@slow
def test_a_process_left_behind_by_a_preemption_ends(tmp_path):
  with Run(tmp_path, 'one preempted', lost_timeout=3) as run:
    codes, seconds = run.end()
    assert codes == {0: 75, 1: 75}
    assert seconds < 20
    assert 'ended: saved' in run.output(1).replace('PreemptedError: ', '')


@slow
def test_sys_exit_with_code_0_is_not_an_error(tmp_path):
  with Run(tmp_path, 'exit') as run:
    assert run.end()[0] == {0: 0, 1: 0}


@slow
def test_different_agreements_are_an_error(tmp_path):
  with Run(tmp_path, 'disagree') as run:
    assert run.end()[0] == {0: 1, 1: 1}
    assert "different calls: ['any_true', 'broadcast']" in run.output(0)


@slow
@pytest.mark.parametrize('offset', [0, 1])
def test_a_port_in_use_is_an_error(tmp_path, offset):
  with Run(tmp_path, 'forever', ids=(), num_processes=2) as run:
    with socket.create_server(('127.0.0.1', run.port + offset)):
      run.add(0, start_timeout=2)
      assert run.end()[0] == {0: 76}
    assert (
      f'error: Process 0 cannot use port {run.port + offset}: Address already'
      ' in use.' in run.output(0)
    )
