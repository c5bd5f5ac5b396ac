"""Runs vit_jax on TPU slices of Google Kubernetes Engine (GKE).

  create_cluster   a cluster, and in it what runs JobSets
  create_nodes     a node pool for each slice; costs money until deleted
  build            an image of the code here, built in the cloud
  manifest         print what apply would send
  apply            start a run
  logs             show what it says
  status           the run, its pods and their restarts
  delete           end the run; it saves first
  delete_nodes     give the slices back
  delete_cluster   all of it

From nothing to a run, in the repository's root:

  export CLOUDSDK_CORE_PROJECT=my-project
  S='--cluster=vit --zone=us-east5-a --accelerator=v6e-16'
  I=us-east5-docker.pkg.dev/my-project/vit/vit_jax:1
  python launch/gke.py create_cluster --cluster=vit --zone=us-east5-a
  python launch/gke.py create_nodes $S --spot
  python launch/gke.py build --image=$I
  python launch/gke.py apply --name=b16 --image=$I --accelerator=v6e-16 \\
      --spot -- --config=configs/pretrain.py:ViT-B/16,imagenet2012 \\
      --workdir=gs://my-bucket/runs/b16
  python launch/gke.py logs --name=b16 --follow
  python launch/gke.py delete --name=b16
  python launch/gke.py delete_nodes $S

--dry_run prints each command, ready to be pasted, and runs nothing.
COMMAND --help explains one command; launch/README.md explains the rest.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from launch import flags as flags_lib
from launch import manifest as manifest_lib
from launch import shell as shell_lib
from launch import workers
from vit_jax import topology

_JOBSET = 'https://github.com/kubernetes-sigs/jobset/releases/download/{}/manifests.yaml'
# The label that the JobSet's controller puts on all pods of a run.
_LABEL = 'jobset.sigs.k8s.io/jobset-name'


def create_cluster(shell, args, _) -> None:
  """Makes a cluster with one small machine, and installs JobSet in it.

  It may mount buckets (Cloud Storage FUSE), and its pods are identities of
  their own (Workload Identity), which are to be given access to the bucket:
  launch/README.md.
  """
  shell_lib.confirm(
    f'Create the cluster {args.cluster}? It costs money until deleted.',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  shell.run(
    [
      *('gcloud', 'container', 'clusters', 'create', args.cluster),
      *_place(args),
      f'--workload-pool={args.project}.svc.id.goog',
      '--addons=GcsFuseCsiDriver',
      '--release-channel=rapid',
      *('--machine-type=e2-standard-4', '--num-nodes=1'),
    ]
  )
  # So that kubectl speaks to it from now on.
  shell.run(
    [
      *('gcloud', 'container', 'clusters', 'get-credentials', args.cluster),
      *_place(args),
    ]
  )
  url = _JOBSET.format(args.jobset_version)
  shell.run(['kubectl', 'apply', '--server-side', f'--filename={url}'])


def create_nodes(shell, args, _) -> None:
  """Makes a node pool for each slice, of exactly its machines.

  Their quota is Compute Engine's (IAM & Admin > Quotas, "TPU"), not that of
  the Cloud TPU API.
  """
  wanted = _slice(args)
  shell.say(
    f'{args.num_slices} x {wanted}: {args.num_slices * wanted.chips:,}'
    ' chip-hours an hour, until the pools are deleted.'
  )
  shell_lib.confirm('Create them?', yes=args.yes, dry_run=args.dry_run)
  placed = wanted.generation.name == 'tpu7x' and wanted.hosts > 1
  if placed:
    shell.run(
      [
        *('gcloud', 'compute', 'resource-policies', 'create'),
        *('workload-policy', f'{args.cluster}-{wanted.topology}'),
        '--type=HIGH_THROUGHPUT',
        f'--accelerator-topology={wanted.topology}',
        f'--region={args.zone.rpartition("-")[0]}',
        f'--project={args.project}',
      ]
    )
  for name in _pools(args, wanted):
    command = [
      *('gcloud', 'container', 'node-pools', 'create', name),
      f'--cluster={args.cluster}',
      *_place(args),
      f'--node-locations={args.zone}',
      f'--machine-type={wanted.machine_type}',
      f'--num-nodes={wanted.hosts}',
      '--workload-metadata=GKE_METADATA',
    ]
    if placed:
      command.append(f'--placement-policy={args.cluster}-{wanted.topology}')
    elif wanted.hosts > 1:
      command.append(f'--tpu-topology={wanted.topology}')
    if args.spot:
      command.append('--spot')
    if args.reservation:
      command += [
        f'--reservation={args.reservation}',
        '--reservation-affinity=specific',
      ]
    shell.run(command)


def build(shell, args, _) -> None:
  """Builds the image from the code as it is here, with Cloud Build.

  What is in it is what tpu_vm.py's set-up would ship, and is noted in the work
  directory of each run. Give each state of the code its own tag.
  """
  with shell.scratch() as directory:
    archive = workers.pack(shell, directory)
    shell.run(
      [
        *('gcloud', 'builds', 'submit', archive),
        '--config=launch/cloudbuild.yaml',
        f'--substitutions=_IMAGE={args.image}',
        f'--project={args.project}',
        '--timeout=3600',
      ]
    )


def manifest(shell, args, flags) -> None:
  """Prints the JobSet that apply sends; it depends on nothing but the flags."""
  del shell
  print(manifest_lib.render(_run(args, flags)), end='')


def apply(shell, args, flags) -> None:
  """Starts a run on the slices of the cluster that kubectl is set to.

  After -- come the flags of vit_jax.main. All pods start again together, at
  most --restarts times, when one ends with exit code 75, 76 or 77, by a
  signal, or with its node; any other error ends the run for good.
  """
  text = manifest_lib.render(_run(args, flags))
  shell.run(['kubectl', 'apply', '--filename=-'], stdin=text)


def logs(shell, args, _) -> None:
  """Shows the ends of the pods' logs; each line names its pod."""
  shell.run(
    [
      *('kubectl', 'logs', f'--selector={_LABEL}={args.name}'),
      *('--container=train', '--prefix', f'--tail={args.lines}'),
      '--max-log-requests=1000',
      *(['--follow'] if args.follow else []),
    ]
  )


def status(shell, args, _) -> None:
  """Shows the JobSet with its restarts, and its pods with their nodes."""
  shell.run(['kubectl', 'get', 'jobset', args.name, '--output=wide'])
  shell.run(
    [
      'kubectl',
      'get',
      'pods',
      f'--selector={_LABEL}={args.name}',
      '--output=wide',
    ]
  )


def delete(shell, args, _) -> None:
  """Ends the run; its pods get SIGTERM and time to save.

  `apply` with the same work directory goes on from there. The nodes stay, and
  cost money.
  """
  shell.run(['kubectl', 'delete', 'jobset', args.name])


def delete_nodes(shell, args, _) -> None:
  """Gives the slices back."""
  names = _pools(args, _slice(args))
  shell_lib.confirm(
    f'Delete the node pools {", ".join(names)}?',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  for name in names:
    shell.run(
      [
        *('gcloud', 'container', 'node-pools', 'delete', name),
        f'--cluster={args.cluster}',
        *_place(args),
        '--quiet',
      ]
    )


def delete_cluster(shell, args, _) -> None:
  """Deletes the cluster with all that is in it. Ends the costs."""
  shell_lib.confirm(
    f'Delete the cluster {args.cluster} with all that runs in it?',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  shell.run(
    [
      *('gcloud', 'container', 'clusters', 'delete', args.cluster),
      *_place(args),
      '--quiet',
    ]
  )


def _place(args) -> list[str]:
  return [f'--location={args.zone}', f'--project={args.project}']


def _slice(args) -> topology.Slice:
  return manifest_lib.check_slice(
    topology.parse(args.accelerator), args.num_slices
  )


def _pools(args, wanted) -> list[str]:
  return [
    f'{wanted.generation.name}-{wanted.topology}-{i}'
    for i in range(args.num_slices)
  ]


def _run(args, flags) -> manifest_lib.Run:
  for variable in args.env:
    if '=' not in variable:
      raise ValueError(f'--env={variable}: expected NAME=VALUE.')
  return manifest_lib.Run(
    name=shell_lib.check_name(args.name),
    wanted=topology.parse(args.accelerator),
    num_slices=args.num_slices,
    image=args.image,
    flags=flags,
    spot=args.spot,
    restarts=args.restarts,
    grace_seconds=args.grace_seconds,
    service_account=args.service_account,
    bucket=args.bucket,
    variables=args.env,
  )


_RUN = ['name', 'image', 'accelerator', 'slices', 'spot', 'pods']
COMMANDS = {
  'create_cluster': (create_cluster, ['cluster', 'jobset', 'yes']),
  'create_nodes': (
    create_nodes,
    ['cluster', 'accelerator', 'slices', 'spot', 'reservation', 'yes'],
  ),
  'build': (build, ['image', 'project']),
  'manifest': (manifest, _RUN),
  'apply': (apply, _RUN),
  'logs': (logs, ['name', 'logs']),
  'status': (status, ['name']),
  'delete': (delete, ['name']),
  'delete_nodes': (
    delete_nodes,
    ['cluster', 'accelerator', 'slices', 'yes'],
  ),
  'delete_cluster': (delete_cluster, ['cluster', 'yes']),
}


def main(words: list[str]) -> None:
  """Runs one command.

  Args:
    words: of the command line, without the program.
  """
  flags_lib.run(
    words,
    doc=__doc__,
    commands=COMMANDS,
    groups=flags_lib.GKE,
    takes_flags=('manifest', 'apply'),
  )


if __name__ == '__main__':
  main(sys.argv[1:])
