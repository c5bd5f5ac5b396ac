"""Starts a one-node Slurm cluster on this machine, for the life of a test."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

from tests import commands, several

PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sinfo')

_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={other_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
  """Returns the needed programs that are not installed (Debian: slurm-wlm)."""
  path = os.environ['PATH'] + ':/usr/sbin'
  return [name for name in PROGRAMS if not shutil.which(name, path=path)]


@contextlib.contextmanager
def started(folder: pathlib.Path) -> Iterator[dict[str, str]]:
  """Yields the environment with which commands find the cluster.

  Args:
    folder: folder for the cluster's files; a socket needs its path to be short.
  """
  for name in ('state', 'spool'):
    (folder / name).mkdir()
  port = several.free_port()
  other_port = port + 1
  config = folder / 'slurm.conf'
  config.write_text(
    _CONFIG.format(
      folder=folder,
      host=socket.gethostname().partition('.')[0],
      port=port,
      other_port=other_port,
      cpus=os.cpu_count(),
    )
  )
  key = folder / 'munge.key'
  key.write_bytes(os.urandom(1024))
  key.chmod(0o400)
  environment = os.environ | {
    'PATH': os.environ['PATH'] + ':/usr/sbin',
    'SLURM_CONF': str(config),
  }
  munge = [
    *('munged', '--foreground', '--force', f'--key-file={key}'),
    *(f'--socket={folder}/munge.sock', f'--pid-file={folder}/munged.pid'),
    *(f'--log-file={folder}/munged.log', f'--seed-file={folder}/seed'),
  ]
  with contextlib.ExitStack() as stack:
    for command in (munge, ['slurmctld', '-D'], ['slurmd', '-D']):
      process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
      )
      stack.callback(process.wait)
      stack.callback(process.terminate)
      time.sleep(1)  # Each program contacts the one before.
    several.wait_for(lambda: _is_idle(environment))
    yield environment


def _is_idle(environment: dict[str, str]) -> bool:
  words = ('sinfo', '--noheader', '--format=%t')
  found = commands.run_new(*words, code=None, **environment)
  return found.stdout.strip() == 'idle'
