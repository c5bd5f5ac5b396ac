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
      --config.data.data_dir=gs://my-bucket/tfds \\
      --workdir=gs://my-bucket/runs/b16
  python launch/gke.py logs --name=b16 --follow
  python launch/gke.py delete --name=b16
  python launch/gke.py delete_nodes $S

--dry_run prints each command, ready to be pasted, and runs nothing.
COMMAND --help explains one command; launch/README.md explains the rest.
"""

import functools
import os
import pathlib
import sys

if not __package__:  # As `python launch/gke.py`, with nothing installed.
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from vit_jax import topology
from vit_jax.launch import flags as flags_lib
from vit_jax.launch import flags_gke, node_pools, preflight, program, workers
from vit_jax.launch import manifest as manifest_lib
from vit_jax.launch import shell as shell_lib
from vit_jax.runtime import shipped

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
      *node_pools.place(args),
      f'--workload-pool={args.project}.svc.id.goog',
      '--addons=GcsFuseCsiDriver',
      '--release-channel=rapid',
      *('--machine-type=e2-standard-4', '--num-nodes=1'),
      *([f'--network={args.network}'] if args.network else []),
      *([f'--subnetwork={args.subnetwork}'] if args.subnetwork else []),
    ]
  )
  # So that kubectl speaks to it from now on.
  shell.run(
    [
      *('gcloud', 'container', 'clusters', 'get-credentials', args.cluster),
      *node_pools.place(args),
    ]
  )
  url = _JOBSET.format(args.jobset_version)
  shell.run(['kubectl', 'apply', '--server-side', f'--filename={url}'])
  if args.exclusion_days:
    shell.run(
      [
        *('gcloud', 'container', 'clusters', 'update', args.cluster),
        *node_pools.place(args),
        '--add-maintenance-exclusion-name=runs',
        f'--add-maintenance-exclusion-end=+p{args.exclusion_days}d',
        '--add-maintenance-exclusion-scope=no_minor_or_node_upgrades',
      ]
    )


def build(shell, args, _) -> None:
  """Builds the image from the code as it is here, with Cloud Build.

  What is in it is what tpu_vm.py's set-up would ship, and is noted in the work
  directory of each run. Give each state of the code its own tag. The image
  also keeps the versions of all libraries, those of --lock.
  """
  lock = flags_lib.lock(args)
  with shell.scratch() as directory:
    archive = workers.pack(shell, directory)
    shell.run(
      [
        *('gcloud', 'builds', 'submit', archive),
        f'--config={os.path.relpath(shipped.path("launch/cloudbuild.yaml"))}',
        f'--substitutions=_IMAGE={args.image},_LOCK={lock}',
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

  After -- come the flags of vit_jax.main. All pods start again together when
  one ends with exit code 75, 76 or 77, by a signal, or with its node; after 77
  and signals at most --restarts times. Any other error ends the run for good.
  A run of that name, also one that is over, has to be deleted first.
  """
  text = manifest_lib.render(_run(args, flags))
  # To kubectl, sending again what is there already is a success.
  there = shell.read(
    [
      *('kubectl', 'get', 'jobset', args.name),
      *('--ignore-not-found', '--output=name'),
    ]
  )
  if there.strip():
    raise ValueError(
      f'there is a run {args.name!r} in the cluster already, alive or over, and'
      ' nothing would be started. Look at it, then delete it (an unfinished run'
      ' goes on from its work directory), or choose another --name:\n'
      f'  python launch/gke.py status --name={args.name}\n'
      f'  python launch/gke.py delete --name={args.name}'
    )
  if not args.no_preflight:
    _preflight(shell, args, shell_lib.check_run(flags))
  shell.run(['kubectl', 'apply', '--filename=-'], stdin=text)


def _preflight(shell, args, workdir) -> None:
  project = preflight.project_of_gcloud(shell)

  def account():
    if not args.host_network:
      return preflight.pod_account(shell, project, args.service_account)
    if args.node_service_account:
      return f'serviceAccount:{args.node_service_account}'
    return preflight.compute_account(shell, project)

  preflight.check(shell, workdir, project, account)


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
  """Ends the run; its pods get SIGTERM and time to save. Waits for that.

  `apply` with the same work directory goes on from there. The nodes stay, and
  cost money.
  """
  # foreground: the JobSet goes last. Else it goes first, kubectl returns, and
  # the pods are still saving while the nodes are deleted under them.
  shell.run(['kubectl', 'delete', 'jobset', args.name, '--cascade=foreground'])


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
      *node_pools.place(args),
      '--quiet',
    ]
  )


def _run(args, flags) -> manifest_lib.Run:
  return manifest_lib.Run(
    name=shell_lib.check_name(args.name),
    wanted=topology.parse(args.accelerator),
    num_slices=args.num_slices,
    image=args.image,
    flags=flags,
    spot=args.spot,
    flex_start=args.flex_start,
    restarts=args.restarts,
    grace_seconds=args.grace_seconds,
    service_account=args.service_account,
    bucket=args.bucket,
    variables=args.env,
    host_network=args.host_network,
    huge_pages=not args.no_huge_pages,
  )


_RUN = ['name', 'image', 'accelerator', 'slices', 'spot', 'pods']
COMMANDS = {
  'create_cluster': (create_cluster, ['cluster', 'new_cluster', 'yes']),
  'create_nodes': (
    node_pools.create_nodes,
    ['cluster', 'accelerator', 'slices', 'spot', 'new_nodes', 'identity']
    + ['yes'],
  ),
  'build': (build, ['image', 'lock', 'project']),
  'manifest': (manifest, _RUN),
  'apply': (apply, [*_RUN, 'identity', 'preflight']),
  'logs': (logs, ['name', 'logs']),
  'status': (status, ['name']),
  'delete': (delete, ['name']),
  'delete_nodes': (
    node_pools.delete_nodes,
    ['cluster', 'accelerator', 'slices', 'yes'],
  ),
  'delete_cluster': (delete_cluster, ['cluster', 'yes']),
}

# Runs one command: takes the words of the command line without the program.
main = functools.partial(
  program.run,
  doc=__doc__,
  commands=COMMANDS,
  groups=flags_gke.GKE,
  takes_flags=('manifest', 'apply'),
)


if __name__ == '__main__':
  main(sys.argv[1:])
