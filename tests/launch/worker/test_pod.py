"""Guards: launch/worker/pod.sh records the code, trains, and lets it save."""

import signal
import time

import pytest

from tests.launch.worker.conftest import SAVES
from tests.several import wait_for

# The fixture's `python` also stands for that of record.py, which fails here.
FAILS_TO_RECORD = '[ "$1" = -m ] || exit 1\n'


@pytest.fixture
def pod(tmp_path, begin):
  def start(program, **variables):
    defaults = dict(
      WORKDIR='gs://b/r',
      JOB_COMPLETION_INDEX=1,
      LOST_PAUSE=0,
      HUGE_PAGES_FILE=tmp_path / 'huge',
    )
    return begin(
      *('worker/pod.sh', FAILS_TO_RECORD + program),
      *('--config=x', '--workdir=gs://b/r'),
      **defaults | variables,
    )

  return start


@pytest.mark.parametrize(
  'index, slice_index', [('0', '0'), ('0', '1'), ('1', '0')]
)
def test_the_first_pod_records_the_code(tmp_path, pod, index, slice_index):
  process = pod(
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
def test_the_exit_code_is_passed_on_at_once(pod, program, code):
  assert pod(program, LOST_PAUSE=60).wait(timeout=20) == code


@pytest.mark.parametrize('code', [76, 134])
def test_only_a_lost_host_is_reported_late(pod, code):
  """The JobSet must first see the exit code of the pod that failed."""
  began = time.monotonic()
  assert pod(f'exit {code}', LOST_PAUSE=1).wait(timeout=20) == code
  assert time.monotonic() - began >= 1


def test_a_second_sigterm_does_not_interrupt_the_save(tmp_path, pod):
  process = pod(SAVES)
  wait_for((tmp_path / 'ready').exists)
  process.send_signal(signal.SIGTERM)
  time.sleep(0.2)
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=20) == 75
  assert (tmp_path / 'saved').exists()
