"""Guards: launch/worker/pod.sh records the code, trains, and lets it save."""

import os
import pathlib
import signal
import subprocess
import time

import pytest

from tests.launch.worker.conftest import wait_for

POD = pathlib.Path(__file__).parents[3] / 'launch' / 'worker' / 'pod.sh'
# Stands in for Python: record.py fails, vit_jax.main runs `$FOLDER/program`.
PYTHON = """#!/bin/bash
printf '%s\\n' "$*" >> "$FOLDER/calls"
[ "$1" = -m ] || exit 1
. "$FOLDER/program"
"""
# On SIGTERM, this program saves for half a second.
SAVER = """
trap 'sleep 0.5; touch "$FOLDER/saved"; exit 75' TERM
touch "$FOLDER/ready"
while true; do sleep 0.05; done
"""


@pytest.fixture
def begin(tmp_path, processes):
  """Returns a function that starts pod.sh."""
  python = tmp_path / 'python'
  python.write_text(PYTHON)
  python.chmod(0o755)

  def start(program, **variables):
    (tmp_path / 'program').write_text(program)
    processes.append(
      subprocess.Popen(
        ['bash', str(POD), '--config=x', '--workdir=gs://b/r'],
        env=os.environ
        | dict(
          FOLDER=str(tmp_path),
          WORKDIR='gs://b/r',
          PATH=f'{tmp_path}{os.pathsep}{os.environ["PATH"]}',
          JOB_COMPLETION_INDEX='1',
          LOST_PAUSE='0',
          HUGE_PAGES_FILE=str(tmp_path / 'huge'),
        )
        | variables,
        start_new_session=True,
      )
    )
    return processes[-1]

  return start


@pytest.mark.parametrize(
  'index, slice_index', [('0', '0'), ('0', '1'), ('1', '0')]
)
def test_the_first_pod_records_the_code(tmp_path, begin, index, slice_index):
  # record.py fails here, which must not keep the run from starting.
  process = begin(
    'exit 0', JOB_COMPLETION_INDEX=index, MEGASCALE_SLICE_ID=slice_index
  )
  assert process.wait(timeout=20) == 0
  train = '-m vit_jax.main --config=x --workdir=gs://b/r'
  record = f'launch/worker/record.py gs://b/r python {train}'
  first = [record] if index == slice_index == '0' else []
  calls = (tmp_path / 'calls').read_text().splitlines()
  assert calls == [*first, train]
  assert (tmp_path / 'huge').read_text() == 'always\n'


@pytest.mark.parametrize(
  'program, code',
  [
    ('exit 0', 0),
    ('exit 1', 1),
    ('exit 75', 75),
    ('exit 77', 77),
    ('kill -KILL $$', 137),
  ],
)
def test_the_exit_code_is_passed_on_at_once(begin, program, code):
  process = begin(program, LOST_PAUSE='60')
  assert process.wait(timeout=20) == code


@pytest.mark.parametrize('code', [76, 134])
def test_only_a_lost_host_is_reported_late(begin, code):
  """The JobSet must first see the exit code of the pod that failed."""
  began = time.monotonic()
  process = begin(f'exit {code}', LOST_PAUSE='1')
  assert process.wait(timeout=20) == code
  assert time.monotonic() - began >= 1


def test_a_second_sigterm_does_not_interrupt_the_save(tmp_path, begin):
  process = begin(SAVER)
  wait_for((tmp_path / 'ready').exists)
  process.send_signal(signal.SIGTERM)
  time.sleep(0.2)
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=20) == 75
  assert (tmp_path / 'saved').exists()
