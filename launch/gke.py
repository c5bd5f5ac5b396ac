"""Runs vit_jax on TPU slices of Google Kubernetes Engine (GKE), with XPK.

  build   build an image of the local code in the cloud
  run     start a run: the command of XPK that runs the image

XPK (pip install xpk) makes the cluster and its slices, shows and deletes runs.
From nothing to a run, in the repository's root:

  export CLOUDSDK_CORE_PROJECT=my-project CLOUDSDK_COMPUTE_ZONE=us-east5-a
  P='--project=my-project --zone=us-east5-a --cluster=vit'
  I=us-east5-docker.pkg.dev/my-project/vit/vit_jax:1
  xpk cluster create $P --tpu-type=v6e-16 --num-slices=1 --spot
  python launch/gke.py build --image=$I
  python launch/gke.py run --name=b16 --cluster=vit --image=$I \\
      --accelerator=v6e-16 -- \\
      --config=configs/pretrain.py:ViT-B/16,imagenet2012 \\
      --config.data.data_dir=gs://my-bucket/tfds \\
      --workdir=gs://my-bucket/runs/b16
  xpk workload delete $P --workload=b16
  xpk cluster delete $P

--dry_run prints each command, ready to paste into a shell, and runs nothing.
COMMAND --help explains one command; launch/README.md explains the rest.
"""

import functools
import os
import pathlib
import shlex
import sys

# `python launch/gke.py` must work without an installed package.
if not __package__:
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from vit_jax import topology
from vit_jax.launch import flags as flags_lib
from vit_jax.launch import workers

_HERE = pathlib.Path(__file__).parent
_CODES = _HERE / 'worker/restartable_codes'
# Seconds for which the slices of a run wait for each other.
SLICES_TIMEOUT = 3600
# How often all pods restart, and the seconds from SIGTERM to SIGKILL, in which
# a run saves, unless the user passes XPK's flags.
MAX_RESTARTS, GRACE = 100, 300


def build(shell, args, _) -> None:
  """Builds an image of the local code with Cloud Build.

  The image contains the files that `tpu_vm.py setup` would ship; each run
  records them in its work directory. Give each state of the code its own tag.
  The image also fixes the versions of all libraries, those of --lock.
  """
  config = os.path.relpath(_HERE / 'image/cloudbuild.yaml')
  with shell.scratch() as directory:
    archive = workers.pack(shell, directory)
    shell.run(
      [
        *('gcloud', 'builds', 'submit', archive, f'--config={config}'),
        f'--substitutions=_IMAGE={args.image},_LOCK={args.lock}',
        f'--project={args.project}',
        '--timeout=3600',
      ]
    )


def run(shell, args, flags) -> None:
  """Starts a run on slices of a cluster that XPK has made.

  The flags of vit_jax.main follow --. All pods restart together when one of
  them ends with an exit code of 75 to 78 or by a signal, or when its node is
  lost, at most --max-restarts times. Any other error ends the run for good.
  Flags that this command does not know, such as --max-restarts=9 or
  --priority=high, are those of xpk workload create.
  """
  wanted, workdir = topology.parse(args.accelerator), flags_lib.check_run(flags)
  if not workdir.startswith('gs://'):
    raise ValueError(
      f'--workdir={workdir} is a directory of one pod, which is lost with it,'
      ' or a mounted bucket, where saving is not safe.'
      ' Expected --workdir=gs://BUCKET/PATH, which needs no mount.'
    )
  if args.num_slices > 1 and wanted.hosts == 1:
    raise ValueError(
      f'--num_slices={args.num_slices} of {wanted}: one run can use several'
      ' slices only if each slice has several machines.'
    )
  if args.num_slices > 1 and not any('start_timeout' in f for f in flags):
    # The other slices may wait long for capacity. With the program's default of
    # a few minutes, the first slice would restart again and again meanwhile.
    flags = [*flags, f'--start_timeout={SLICES_TIMEOUT}']
  if not args.no_preflight:
    flags_lib.check_bucket(shell, workdir)
  kind = wanted.generation.accelerator or wanted.generation.name
  program = [
    # The metadata server, which JAX would ask, knows only the node. GKE
    # describes the slice in environment variables.
    *('env', f'WORKDIR={workdir}', 'TPU_SKIP_MDS_QUERY=true', *args.env),
    *('bash', 'launch/worker/pod.sh', *flags),
  ]
  # With `exec`, the signals of XPK's shell reach pod.sh, which passes them on.
  # Kubernetes replaces $(A) in commands, and takes $$ for $.
  line = f'exec {shlex.join(program)}'.replace('$', '$$')
  command = [
    *('xpk', 'workload', 'create', f'--workload={args.name}'),
    *(f'--cluster={args.cluster}', f'--project={args.project}'),
    *(f'--zone={args.zone}', f'--tpu-type={kind}-{wanted.topology}'),
    *(f'--num-slices={args.num_slices}', f'--docker-image={args.image}'),
    f'--max-restarts={MAX_RESTARTS}',
    f'--restart-on-exit-codes={",".join(_CODES.read_text().split())}',
    f'--termination-grace-period-seconds={GRACE}',
    *args.more,  # The last of two equal flags counts.
    f'--command={line}',
  ]
  shell.run(command)


COMMANDS = {
  'build': (build, 'image lock project'),
  'run': (
    run,
    'name cluster zone project image accelerator num_slices env no_preflight',
  ),
}

# Runs one command. Its argument is the command line without the program's name.
main = functools.partial(
  flags_lib.run,
  doc=__doc__,
  commands=COMMANDS,
  takes=('run',),
  passes=('run',),
)


if __name__ == '__main__':
  main(sys.argv[1:])
