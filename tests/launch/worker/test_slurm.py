"""Guards: launch/slurm.sbatch requeues a job exactly when a restart can help.

Stand-ins replace Slurm's programs.
"""

import signal

import pytest

from tests.commands import write_program
from tests.launch.worker.conftest import ROOT, SAVES
from tests.several import wait_for

# Like the real programs, srun returns the largest exit code, and scancel
# signals all processes, which are slurm_task.sh and the program.
STAND_INS = {
  'srun': """
    while [[ $1 == --* ]]; do shift; done
    pids=()
    for task in 0 1; do
      SLURM_PROCID=$task setsid "$@" & pids+=($!)
    done
    printf '%s\n' "${pids[@]}" > "$FOLDER/pids"
    largest=0
    for pid in "${pids[@]}"; do
      code=0
      wait "$pid" || code=$?
      ((code > largest)) && largest=$code
    done
    exit "$largest"
  """,
  'scancel': """
    [[ "$*" == '--signal=TERM 7.0' ]] || exit 2
    while read -r pid; do kill -TERM -- "-$pid"; done < "$FOLDER/pids"
  """,
  'squeue': 'cat "$FOLDER/state"',
  'scontrol': 'echo "$*" >> "$FOLDER/requeued"',
}


@pytest.fixture
def job(tmp_path, begin):
  """Returns a function that starts the job with two processes of a program."""
  for name, text in STAND_INS.items():
    write_program(tmp_path / 'bin' / name, text)
  (tmp_path / 'state').write_text('RUNNING\n')

  def start(program, **variables):
    defaults = dict(
      PYTHON='program',
      SLURM_SUBMIT_DIR=tmp_path,
      LAUNCH=ROOT / 'launch',
      SLURM_JOB_ID=7,
    )
    words = ('--config=a', '--b=c d')
    return begin('slurm.sbatch', program, *words, **defaults | variables)

  return start


def by_process(first, second):
  return f'[ $SLURM_PROCID = 0 ] && {first}\n{second}'


@pytest.mark.parametrize(
  'program, code, again',
  [
    ('exit 0', 0, False),
    ('exit 1', 1, False),
    ('exit 75', 75, True),
    ('exit 76', 76, True),
    ('kill -KILL $$', 137, True),
    # The error of one process outranks the exit code of the other process.
    (by_process('exit 1', 'exit 76'), 1, False),
    (by_process('exit 1', 'kill -ABRT $$'), 1, False),
    # 130 is Ctrl-C, after which nobody wants a restart.
    ('exit 130', 130, False),
    ('exit 74', 55, False),
    (by_process('exit 130', 'kill -KILL $$'), 130, False),
  ],
)
def test_which_exit_codes_requeue_the_job(tmp_path, job, program, code, again):
  process = job(program)
  assert process.wait(timeout=20) == code
  requeued = tmp_path / 'requeued'
  assert requeued.exists() == again
  assert not again or requeued.read_text() == 'requeue 7\n'
  word = 'queued again' if again else 'ended'
  said = (tmp_path / 'output').read_text()
  assert f'slurm.sbatch: {word} code={code}' in said
  # By this, a sweep knows how a job ended.
  assert again or f'code={code} job=7' in said
  assert (tmp_path / 'calls').read_text() == (
    '-m vit_jax.main --config=a --b=c d\n' * 2
  )


@pytest.mark.parametrize('count, again', [('2', True), ('3', False)])
def test_requeues_are_limited(tmp_path, job, count, again):
  process = job('exit 77', RESTARTS='3', SLURM_RESTART_COUNT=count)
  assert process.wait(timeout=20) == 77
  assert (tmp_path / 'requeued').exists() == again
  word = 'queued again' if again else 'gave up'
  assert f'slurm.sbatch: {word} code=77' in (tmp_path / 'output').read_text()


@pytest.mark.parametrize(
  'state, again', [('RUNNING', True), ('COMPLETING', False)]
)
def test_the_job_waits_for_the_save(tmp_path, job, state, again):
  """Before its time limit the job is requeued; a cancelled job is not."""
  (tmp_path / 'state').write_text(f'{state}\n')
  process = job(SAVES)
  # A process that is signalled before its trap is set dies of the signal.
  wait_for(lambda: len(list(tmp_path.glob('ready?'))) == 2)
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=20) == 75
  assert (tmp_path / 'saved').exists()
  assert (tmp_path / 'requeued').exists() == again
