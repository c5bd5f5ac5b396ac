"""Ships the code to the machines of a TPU VM, and controls the run on them."""

import dataclasses
import os
import re
import shlex
from collections.abc import Sequence

from vit_jax.launch import shell as shell_lib
from vit_jax.launch.queued_resource import Target
from vit_jax.runtime import installed

_SSH = ('gcloud', 'compute', 'tpus', 'tpu-vm')
# Relative to the home directory on the worker, in which ssh starts.
_SCRIPTS = 'vit_jax_home/code/launch/worker'
ARCHIVE = 'vit_jax_code.tar.gz'


@dataclasses.dataclass(frozen=True)
class Worker:
  """The state of the run on one machine (launch/worker/status.sh).

  Attributes:
    name: name of the machine.
    alive: whether run.sh runs.
    state: `new`, `idle`, or a state of run.sh: `running`, `restarting`,
      `ended`, `gave_up`, `stopped`, `interrupted`.
    code: the last exit code; None if there is none yet.
    text: the whole line.
    failures: run.sh's count of failed attempts in a row.
  """

  name: str
  alive: bool
  state: str
  code: int | None
  text: str
  failures: int = 0


def ssh(target: Target, command: str, *, worker: str = 'all') -> list[str]:
  """Returns the gcloud command that runs a shell line on one or all workers."""
  return [
    *(*_SSH, 'ssh', target.name, *target.place),
    *(['--internal-ip'] if target.internal_ip else []),
    f'--worker={worker}',
    '--quiet',
    f'--command={command}',
  ]


def pack(shell: shell_lib.Shell, directory: str) -> str:
  """Packs the local code into an archive in `directory`; returns its path.

  Raises:
    ValueError: this is an installed package, not a checkout with a commit.
  """
  script = installed.path('launch/pack.sh')
  if not (script.parents[1] / 'setup.py').is_file():
    raise ValueError(
      'only a checkout, which has a commit, can be shipped, but this is the'
      f' package installed in {script.parents[1]}. Clone the repository and'
      ' start the program in its root: python launch/tpu_vm.py or'
      ' launch/gke.py.'
    )
  shell.run(['bash', os.path.relpath(script), directory])
  return f'{directory}/code.tar.gz'


def set_up(
  shell: shell_lib.Shell,
  target: Target,
  archive: str,
  *,
  lock: str,
  workdir: str = '',
) -> None:
  """Ships the code to all workers and installs it there.

  Args:
    shell: runs or prints the commands.
    target: the slice.
    archive: the archive of `pack`.
    lock: the versions to install, see setup.sh.
    workdir: work directory of a run whose recorded versions, if any, are
      installed instead; '': none.

  Raises:
    CommandError: it failed on some worker.
  """
  shell.run(
    [
      *(*_SSH, 'scp', archive, f'{target.name}:{ARCHIVE}', *target.place),
      *(['--internal-ip'] if target.internal_ip else []),
      '--worker=all',
      '--quiet',
    ]
  )
  words = [f'LOCK={lock}', *([f'WORKDIR={workdir}'] if workdir else [])]
  # setup.sh is extracted first; it then unpacks the whole archive.
  shell.run(
    ssh(
      target,
      f'tar -xzOf {ARCHIVE} launch/worker/setup.sh > vit_jax_setup.sh'
      f' && env {shlex.join(words)} bash vit_jax_setup.sh',
    )
  )


def start(
  shell: shell_lib.Shell,
  target: Target,
  flags: Sequence[str],
  *,
  variables: Sequence[str] = (),
) -> None:
  """Records the code in the work directory and starts a run on all workers.

  Args:
    shell: runs or prints the commands.
    target: the slice.
    flags: flags of vit_jax.main.
    variables: `NAME=VALUE` for the run's environment.

  Raises:
    CommandError: it did not start on some worker.
    ValueError: see `shell.check_run`.
  """
  workdir = shell_lib.check_run(flags)
  record = ['vit_jax_home/venv/bin/python', f'{_SCRIPTS}/record.py', workdir]
  program = ['python', '-m', 'vit_jax.main', *flags]
  shell.run(ssh(target, shlex.join([*record, *program]), worker='0'))
  begin = [
    *('bash', f'{_SCRIPTS}/start.sh', f'WORKDIR={workdir}'),
    *(*variables, '--', *flags),
  ]
  shell.run(ssh(target, shlex.join(begin)))


def stop(
  shell: shell_lib.Shell, target: Target, *, restart: bool = False
) -> None:
  """Stops the run on all workers and waits until it has saved.

  Args:
    shell: runs or prints the command.
    target: the slice.
    restart: whether the run restarts soon, so that it does not count as stopped
      by hand.
  """
  script, words = f'{_SCRIPTS}/stop.sh', ' restart' if restart else ''
  # A worker that was never set up has nothing to stop.
  shell.run(ssh(target, f'if [ -f {script} ]; then bash {script}{words}; fi'))


def logs(
  shell: shell_lib.Shell,
  target: Target,
  *,
  worker: str,
  lines: int,
  follow: bool,
) -> None:
  """Shows the last lines of the logs."""
  follow_word = 'yes' if follow else 'no'
  command = f'FOLLOW={follow_word} bash {_SCRIPTS}/logs.sh {lines}'
  shell.run(ssh(target, command, worker=worker))


def status(shell: shell_lib.Shell, target: Target) -> list[Worker]:
  """Returns the states of all workers; a worker without set-up is `new`.

  Raises:
    CommandError: some worker can't be reached.
  """
  script = f'{_SCRIPTS}/status.sh'
  line = (
    f'if [ -f {script} ]; then bash {script};'
    ' else echo "worker=$(hostname) alive=no state=new | "; fi'
  )
  return parse_status(shell.read(ssh(target, line)))


def parse_status(text: str) -> list[Worker]:
  """Parses the lines of status.sh in gcloud's output; sorts them by name."""
  found = []
  pattern = r'^worker=(\S+) alive=(yes|no) state=(\S+)(.*?) \| .*$'
  for line in re.finditer(pattern, text, re.MULTILINE):
    name, alive, state, rest = line.groups()
    code = re.search(r'\bcode=(\d+)', rest)
    failures = re.search(r'\bfailures=(\d+)', rest)
    found.append(
      Worker(
        name=name,
        alive=alive == 'yes',
        state=state,
        code=int(code[1]) if code else None,
        failures=int(failures[1]) if failures else 0,
        text=line[0],
      )
    )
  return sorted(found, key=lambda worker: (len(worker.name), worker.name))
