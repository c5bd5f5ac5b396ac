"""Guards: two real processes stop at the same call when one gets SIGTERM."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests import ports

ROOT = pathlib.Path(__file__).parents[2]
PATIENCE = 120  # Seconds, generous so that a slow machine does not fail.

# Each case has its own notice. The checks are the processes' only collective
# calls. In some cases process 0 is the slower one.
_PROCESS = """
import json, os, signal, threading, time
from absl import logging
from vit_jax.runtime import distributed, preemption

place = json.loads(os.environ['PLACE'])
index = place['process_id']
logging.use_absl_handler()

def terminate():
  os.kill(os.getpid(), signal.SIGTERM)

def call_until(notice, each, last=3000):
  for call in range(1, last + 1):
    each(call)
    if notice.requested():
      terminate()  # A second signal, while the run saves.
      assert notice.requested()
      return call, notice.reason
  return None, notice.reason

def before_the_first(notice):
  if index == 1:
    terminate()
  return call_until(notice, lambda call: None)

def in_the_middle(notice):
  def step(call):
    time.sleep(0.001 * (1 + index))
    if call == 150 and index == 0:
      terminate()
  return call_until(notice, step)

def while_the_other_is_slow(notice):
  # Process 1 waits in a check when its signal comes.
  def step(call):
    if index == 0 and call > 20:
      time.sleep(0.3)
    if index == 1 and call == 40:
      threading.Timer(0.1, terminate).start()
  return call_until(notice, step)

def over_two_runs(notice):
  def step(call):
    time.sleep(0.001)
    if call == 100 and index == 1:
      terminate()
  first = call_until(notice, lambda call: None, last=137)
  return first, call_until(notice, step)

def cloud_notice(notice):
  return call_until(notice, lambda call: time.sleep(0.001))

def user_interrupt(notice):
  def step(call):
    time.sleep(0.01)
    if call == 30 and index == 1:
      os.kill(os.getpid(), signal.SIGINT)
  return [*call_until(notice, step), notice.stopped('').exit_code]

def ask(server, key):
  return 'TRUE' if index == 1 and key == 'preempted' else None

# A process that a shell starts in the background ignores SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
seen = {}
with distributed.connected(**place, start_timeout=60, lost_timeout=30):
  for case in (
    before_the_first, in_the_middle, while_the_other_is_slow, over_two_runs,
    user_interrupt,
  ):
    with preemption.Notice(check_seconds=0.1) as notice:
      seen[case.__name__] = case(notice)
    distributed.barrier()  # Waits until all have closed their notices.
  os.environ['GCE_METADATA_HOST'] = 'here'
  preemption._ask = ask
  with preemption.Notice(poll_seconds=0.01, check_seconds=0.1) as notice:
    seen['cloud_notice'] = cloud_notice(notice)
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
  print(json.dumps(seen), flush=True)
"""


@pytest.fixture(scope='module')
def seen():
  """Returns what each process saw in each case, and the log of process 1."""
  place = dict(
    coordinator_address=f'127.0.0.1:{ports.free_port()}', num_processes=2
  )
  environment = {
    name: value
    for name, value in os.environ.items()
    if name != 'GCE_METADATA_HOST'
  }
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', _PROCESS],
      cwd=ROOT,
      env=environment
      | {
        'JAX_PLATFORMS': 'cpu',
        'XLA_FLAGS': '',
        'PLACE': json.dumps({**place, 'process_id': i}),
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for i in range(2)
  ]
  try:
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  for process, (_, log) in zip(processes, outputs, strict=True):
    assert process.returncode == 0, log
  return *(json.loads(text) for text, _ in outputs), outputs[1][1]


OTHER = 'SIGTERM of another process'


def test_a_signal_before_the_first_call(seen):
  assert seen[0]['before_the_first'] == [1, OTHER]
  assert seen[1]['before_the_first'] == [1, 'SIGTERM']


def test_a_signal_in_the_middle(seen):
  call, reason = seen[0]['in_the_middle']
  assert reason == 'SIGTERM'
  assert 150 <= call < 250
  assert seen[1]['in_the_middle'] == [call, OTHER]


def test_a_signal_while_the_other_process_is_slow(seen):
  call, reason = seen[0]['while_the_other_is_slow']
  assert reason == OTHER
  assert 40 <= call < 240
  assert seen[1]['while_the_other_is_slow'] == [call, 'SIGTERM']


def test_one_notice_is_used_for_two_runs(seen):
  (first, no_reason), (call, reason) = seen[1]['over_two_runs']
  assert (first, no_reason, reason) == (None, '', 'SIGTERM')
  assert 100 <= call < 200
  assert seen[0]['over_two_runs'] == [[None, ''], [call, OTHER]]


def test_ctrl_c_in_one_process_gives_all_processes_its_exit_code(seen):
  call, reason, code = seen[1]['user_interrupt']
  assert (reason, code) == ('Ctrl-C', 130)
  other = [call, 'Ctrl-C of another process', 130]
  assert seen[0]['user_interrupt'] == other


def test_the_cloud_notice_of_one_machine_stops_all(seen):
  call, reason = seen[0]['cloud_notice']
  assert reason == OTHER
  assert seen[1]['cloud_notice'] == [call, 'preempted']


def test_the_log_names_the_reason(seen):
  messages = [line.rpartition('] ')[2] for line in seen[2].splitlines()]
  assert [text for text in messages if 'preempted' in text] == [
    'preempted: telling the other processes.',
    'preempted: saving, then stopping.',
  ]
  already = ': the run is already saving and stopping.'
  assert messages.count(f'SIGTERM again{already}') == 3
  # After the signal of another process, a Ctrl-C, and the cloud's notice.
  assert messages.count(f'SIGTERM{already}') == 3
  assert messages.count(f'{OTHER}: saving, then stopping.') == 1
