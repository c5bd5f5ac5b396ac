"""What is done on the machines of a TPU VM: code, set-up, run, logs, stop."""

import dataclasses
import os
import re
import secrets
import shlex
from collections.abc import Sequence

from vit_jax.launch import shell as shell_lib
from vit_jax.launch.queued_resource import Target
from vit_jax.runtime import shipped

_SSH = ('gcloud', 'compute', 'tpus', 'tpu-vm')
# Relative to the home directory there, where ssh begins.
_SCRIPTS = 'vit_jax_home/code/launch/worker'
ARCHIVE = 'vit_jax_code.tar.gz'


@dataclasses.dataclass(frozen=True)
class Worker:
  """What one machine says of its run (launch/worker/status.sh).

  Attributes:
    name: of the machine.
    alive: whether run.sh runs.
    state: `new`, `idle`, or what run.sh says: `running`, `restarting`,
      `ended`, `gave_up`, `stopped`, `interrupted`.
    code: the last exit code; None if there is none yet.
    text: the whole line.
    failures: attempts in a row that failed, as run.sh counts.
  """

  name: str
  alive: bool
  state: str
  code: int | None
  text: str
  failures: int = 0


def ssh(target: Target, command: str, *, worker: str = 'all') -> list[str]:
  """The gcloud command that runs a line of shell on one or all workers."""
  return [
    *(*_SSH, 'ssh', target.name, *target.place),
    *(['--internal-ip'] if target.internal_ip else []),
    f'--worker={worker}',
    '--quiet',
    f'--command={command}',
  ]


def pack(shell: shell_lib.Shell, directory: str) -> str:
  """Packs the code as it is here.

  Returns:
    The archive, in that directory.

  Raises:
    ValueError: this is an installed package, which has no history to ship.
  """
  script = shipped.path('launch/pack.sh')
  if not (script.parents[1] / 'setup.py').is_file():
    raise ValueError(
      'the code that is shipped is that of a checkout, with its commit; this is'
      f' the package installed in {script.parents[1]}. Clone the repository and'
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
    shell: runs or prints.
    target: where.
    archive: see `pack`.
    lock: what is installed, see setup.sh.
    workdir: of a run, whose recorded versions are installed instead, if it has
      any; '': none.

  Raises:
    CommandError: it did not succeed everywhere.
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
  # The script comes out of the archive, and then unpacks all of it.
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
  """Notes the code in the work directory and starts a run on all workers.

  Args:
    shell: runs or prints.
    target: where.
    flags: of vit_jax.main.
    variables: `NAME=VALUE` for the run's environment.

  Raises:
    CommandError: it did not start everywhere.
    ValueError: see `shell.check_run`.
  """
  workdir = shell_lib.check_run(flags)
  record = ['vit_jax_home/venv/bin/python', f'{_SCRIPTS}/record.py', workdir]
  program = ['python', '-m', 'vit_jax.main', *flags]
  shell.run(ssh(target, shlex.join([*record, *program]), worker='0'))
  # The same on all workers, see docs/processes.md.
  token = f'VIT_JAX_LAUNCH_TOKEN={secrets.token_hex(16)}'
  begin = [
    *('bash', f'{_SCRIPTS}/start.sh', f'WORKDIR={workdir}', token),
    *(*variables, '--', *flags),
  ]
  shell.run(ssh(target, shlex.join(begin)))


def stop(
  shell: shell_lib.Shell, target: Target, *, restart: bool = False
) -> None:
  """Stops the run on all workers and waits until it is saved.

  Args:
    shell: runs or prints.
    target: where.
    restart: it goes on soon, and does not count as stopped by hand.
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
  """Shows the ends of the logs."""
  follow_word = 'yes' if follow else 'no'
  command = f'FOLLOW={follow_word} bash {_SCRIPTS}/logs.sh {lines}'
  shell.run(ssh(target, command, worker=worker))


def status(shell: shell_lib.Shell, target: Target) -> list[Worker]:
  """Asks all workers; those that were never set up say `new`.

  Raises:
    CommandError: not all of them can be reached.
  """
  script = f'{_SCRIPTS}/status.sh'
  line = (
    f'if [ -f {script} ]; then bash {script};'
    ' else echo "worker=$(hostname) alive=no state=new | "; fi'
  )
  return parse_status(shell.read(ssh(target, line)))


def parse_status(text: str) -> list[Worker]:
  """The lines of status.sh in what gcloud printed, by name."""
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
