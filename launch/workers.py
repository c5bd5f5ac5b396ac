"""Ships the code to the machines of a TPU VM, and controls the run on them."""

import dataclasses
import os
import pathlib
import re
import shlex
from collections.abc import Sequence

from vit_jax.launch.flags import check_run
from vit_jax.launch.shell import Shell
from vit_jax.launch.slices import Target

_SSH = ('gcloud', 'compute', 'tpus', 'tpu-vm')
# Relative to the home directory on the worker, in which ssh starts.
SCRIPTS = 'vit_jax_home/code/launch/worker'
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
  """

  name: str
  alive: bool
  state: str
  code: int | None
  text: str


def ssh(target: Target, command: str, *, worker: str = 'all') -> list[str]:
  """Returns the gcloud command that runs a shell line on one or all workers."""
  return [*_on(target, 'ssh', target.name, worker), f'--command={command}']


def _on(target: Target, program: str, what: str, worker: str = 'all', *to):
  return [
    *(*_SSH, program, what, *to, *target.place),
    *(['--internal-ip'] if target.internal_ip else []),
    *(f'--worker={worker}', '--quiet'),
  ]


def pack(shell: Shell, directory: str) -> str:
  """Packs the local code into an archive in `directory`; returns its path.

  Raises:
    CommandError: this is no checkout with a commit.
  """
  script = pathlib.Path(__file__).with_name('pack.sh')
  shell.run(['bash', os.path.relpath(script), directory])
  return f'{directory}/code.tar.gz'


def set_up(
  shell: Shell, target: Target, archive: str, lock: str, workdir: str = ''
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
  shell.run(_on(target, 'scp', archive, 'all', f'{target.name}:{ARCHIVE}'))
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
  shell: Shell, target: Target, flags: Sequence[str], variables: Sequence[str]
) -> None:
  """Records the code in the work directory and starts a run on all workers.

  Args:
    shell: runs or prints the commands.
    target: the slice.
    flags: flags of vit_jax.main.
    variables: `NAME=VALUE` for the run's environment and for run.sh.

  Raises:
    CommandError: it did not start on some worker.
    ValueError: see `flags.check_run`.
  """
  workdir = check_run(flags)
  record = ['vit_jax_home/venv/bin/python', f'{SCRIPTS}/record.py', workdir]
  program = ['python', '-m', 'vit_jax.main', *flags]
  shell.run(ssh(target, shlex.join([*record, *program]), worker='0'))
  begin = ['bash', f'{SCRIPTS}/start.sh', f'WORKDIR={workdir}']
  shell.run(ssh(target, shlex.join([*begin, *variables, '--', *flags])))


def stop(shell: Shell, target: Target, *, restart: bool = False) -> None:
  """Stops the run on all workers and waits until it has saved.

  Args:
    shell: runs or prints the command.
    target: the slice.
    restart: whether the run restarts soon, so that it does not count as stopped
      by hand.
  """
  script, words = f'{SCRIPTS}/stop.sh', ' restart' if restart else ''
  # A worker that was never set up has nothing to stop.
  shell.run(ssh(target, f'if [ -f {script} ]; then bash {script}{words}; fi'))


def status(shell: Shell, target: Target) -> list[Worker]:
  """Returns the states of all workers, sorted; one without set-up is `new`.

  Raises:
    CommandError: some worker can't be reached.
  """
  script = f'{SCRIPTS}/status.sh'
  line = (
    f'if [ -f {script} ]; then bash {script};'
    ' else echo "worker=$(hostname) alive=no state=new | "; fi'
  )
  return parse(shell.read(ssh(target, line)))


def parse(text: str) -> list[Worker]:
  """Returns the workers, sorted, whose lines of status.sh are in a text."""
  found = []
  pattern = r'^worker=(\S+) alive=(yes|no) state=(\S+)(.*?) \| .*$'
  for match in re.finditer(pattern, text, re.MULTILINE):
    name, alive, state, rest = match.groups()
    code = re.search(r'\bcode=(\d+)', rest)
    number = int(code[1]) if code else None
    found.append(Worker(name, alive == 'yes', state, number, match[0]))
  return sorted(found, key=lambda worker: (len(worker.name), worker.name))
