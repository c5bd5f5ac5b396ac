"""Runs vit_jax on TPU slices of Google Kubernetes Engine (GKE).

  create_cluster   make a cluster and install JobSet in it
  create_nodes     make a node pool for each slice; it costs money until deleted
  build            build an image of the local code in the cloud
  manifest         print the JobSet that apply would send
  apply            start a run
  logs             show the logs of the run
  status           show the run, its pods and their restarts
  delete           end the run; it saves first
  delete_nodes     delete the slices
  delete_cluster   delete the cluster and everything in it

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

--dry_run prints each command, ready to paste into a shell, and runs nothing.
COMMAND --help explains one command; launch/README.md explains the rest.
"""

import functools
import os
import pathlib
import sys

# `python launch/gke.py` must work without an installed package.
if not __package__:
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from vit_jax import topology
from vit_jax.launch import flags as flags_lib
from vit_jax.launch import flags_gke, node_pools, preflight, program, workers
from vit_jax.launch import manifest as manifest_lib
from vit_jax.launch import shell as shell_lib
from vit_jax.runtime import installed

_JOBSET = 'https://github.com/kubernetes-sigs/jobset/releases/download/{}/manifests.yaml'
# The label that the JobSet's controller puts on all pods of a run.
_LABEL = 'jobset.sigs.k8s.io/jobset-name'


def create_cluster(shell, args, _) -> None:
  """Makes a cluster with one small machine, and installs JobSet in it.

  It makes what is missing, so repeat the command after a failure.

  The cluster can mount buckets (Cloud Storage FUSE). Its pods have their own
  identity (Workload Identity); launch/README.md explains how to grant it access
  to the bucket.
  """
  shell_lib.confirm(
    f'Create the cluster {args.cluster}? It costs money until deleted.',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  cluster = node_pools.cluster(args)
  found = node_pools.look(shell, cluster)
  with shell.making(node_pools.delete_line(args, 'delete_cluster')):
    if not found:
      shell.run(
        cluster.command(
          'create',
          f'--workload-pool={args.project}.svc.id.goog',
          '--addons=GcsFuseCsiDriver',
          '--release-channel=rapid',
          *('--machine-type=e2-standard-4', '--num-nodes=1'),
          *([f'--network={args.network}'] if args.network else []),
          *([f'--subnetwork={args.subnetwork}'] if args.subnetwork else []),
        )
      )
    # From now on, kubectl uses the new cluster.
    shell.run(cluster.command('get-credentials'))
    url = _JOBSET.format(args.jobset_version)
    shell.run(['kubectl', 'apply', '--server-side', f'--filename={url}'])
    window = found.get('maintenancePolicy', {}).get('window', {})
    if args.exclusion_days and 'runs' not in window.get(
      'maintenanceExclusions', {}
    ):
      shell.run(
        cluster.command(
          'update',
          '--add-maintenance-exclusion-name=runs',
          f'--add-maintenance-exclusion-end=+p{args.exclusion_days}d',
          '--add-maintenance-exclusion-scope=no_minor_or_node_upgrades',
        )
      )


def build(shell, args, _) -> None:
  """Builds an image of the local code with Cloud Build.

  The image contains the files that `tpu_vm.py setup` would ship; each run
  records them in its work directory. Give each state of the code its own tag.
  The image also fixes the versions of all libraries, those of --lock.
  """
  lock = flags_lib.lock(args)
  with shell.scratch() as directory:
    archive = workers.pack(shell, directory)
    shell.run(
      [
        *('gcloud', 'builds', 'submit', archive),
        f'--config={os.path.relpath(installed.path("launch/cloudbuild.yaml"))}',
        f'--substitutions=_IMAGE={args.image},_LOCK={lock}',
        f'--project={args.project}',
        '--timeout=3600',
      ]
    )


def manifest(shell, args, flags) -> None:
  """Prints the JobSet that apply sends; it depends only on the flags."""
  del shell
  print(manifest_lib.render(_run(args, flags)), end='')


def apply(shell, args, flags) -> None:
  """Starts a run on the slices of kubectl's current cluster.

  The flags of vit_jax.main follow --. All pods restart together when one of
  them ends with exit code 75, 76 or 77 or by a signal, or when its node is
  lost. Restarts after 77 and signals are limited by --restarts. Any other error
  ends the run for good. If there is already a run of that name, even a finished
  one, delete it first.
  """
  text = manifest_lib.render(_run(args, flags))
  # `kubectl apply` succeeds, and starts nothing, if the JobSet exists already.
  there = shell.read(
    [
      *('kubectl', 'get', 'jobset', args.name),
      *('--ignore-not-found', '--output=name'),
    ]
  )
  if there.strip():
    raise ValueError(
      f'there is a run {args.name!r} in the cluster already, active or'
      ' finished, so nothing was started. Check its status, then delete it (an'
      ' unfinished run can later resume from its work directory), or choose'
      ' another --name:\n'
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
  """Shows the last lines of the pods' logs; each line names its pod."""
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
  """Ends the run: its pods get SIGTERM, and the command waits for their save.

  `apply` with the same work directory resumes the run. The nodes remain and
  cost money.
  """
  # With `foreground`, kubectl returns after all pods have ended. Otherwise it
  # returns while they still save, and a following `delete_nodes` would delete
  # their nodes.
  shell.run(
    [
      *('kubectl', 'delete', 'jobset', args.name),
      *('--cascade=foreground', '--ignore-not-found'),
    ]
  )


def delete_cluster(shell, args, _) -> None:
  """Deletes the cluster and everything in it. This ends the costs."""
  shell_lib.confirm(
    f'Delete the cluster {args.cluster} and everything that runs in it?',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  shell.remove([node_pools.cluster(args)])


def _run(args, flags) -> manifest_lib.Run:
  return manifest_lib.Run(
    name=args.name,
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

# Runs one command. Its argument is the command line without the program's name.
main = functools.partial(
  program.run,
  doc=__doc__,
  commands=COMMANDS,
  groups=flags_gke.GKE,
  takes_flags=('manifest', 'apply'),
)


if __name__ == '__main__':
  main(sys.argv[1:])
