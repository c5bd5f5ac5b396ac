"""The flags of launch/gke.py."""

from collections.abc import Mapping

from vit_jax.launch import flags

GKE: Mapping[str, flags.Flags] = {
  'common': flags.DRY_RUN,
  'preflight': flags.PREFLIGHT,
  'yes': flags.YES,
  'accelerator': flags.ACCELERATOR,
  'lock': flags.LOCK,
  'name': {
    'name': dict(required=True, help='Name of the run and of its JobSet.')
  },
  'cluster': {
    **flags.PROJECT,
    'cluster': dict(required=True, help='Name of the cluster.'),
    'zone': dict(
      help='Zone of the cluster and of its TPUs; default:'
      ' $CLOUDSDK_COMPUTE_ZONE.'
    ),
  },
  'new_cluster': {
    'jobset_version': dict(
      default='v0.12.0',
      help='Release of JobSet (%(default)s); apply needs v0.10.0 or newer.',
    ),
    'network': dict(
      default='',
      help='Network, such as one with large frames for several slices; default:'
      " the project's `default`.",
    ),
    'subnetwork': dict(default='', help='Subnetwork of the network.'),
    'exclusion_days': dict(
      type=int,
      default=90,
      help='Days during which GKE upgrades no nodes, because an upgrade ends'
      ' their pods (%(default)s); 0: GKE may upgrade at any time.',
    ),
  },
  'slices': {
    'num_slices': dict(
      type=int, default=1, help='Number of slices (%(default)s).'
    ),
  },
  'spot': {
    'spot': dict(
      action='store_true',
      help='Spot nodes: much cheaper, but Google may preempt them at any time.',
    ),
    'flex_start': flags.FLEX_START,
  },
  'new_nodes': {
    'reservation': dict(default='', help='Use nodes of this reservation.'),
  },
  'identity': {
    'node_service_account': dict(
      default='',
      help='Account of the nodes, and with --host_network also of the run;'
      " default: Compute Engine's default account.",
    ),
  },
  'project': flags.PROJECT,
  'image': {
    'image': dict(
      required=True,
      help='The image: REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG',
    ),
  },
  'pods': {
    'restarts': dict(
      type=int,
      default=100,
      help='Maximum number of restarts of all pods (%(default)s), not counting'
      ' those after lost nodes and exit codes 75 and 76.',
    ),
    'grace_seconds': dict(
      type=int,
      default=300,
      help='Seconds between SIGTERM and SIGKILL, for the save (%(default)s).',
    ),
    'service_account': dict(
      default='default',
      help='Kubernetes service account of the pods (%(default)s), which must be'
      ' allowed to write to the work directory.',
    ),
    'bucket': dict(
      default='',
      help='Bucket to mount at /bucket with Cloud Storage FUSE, for reading'
      ' data; the work directory must be gs://.',
    ),
    'host_network': dict(
      action='store_true',
      help="Let the pods use the nodes' network, which is faster between"
      ' slices. They then also use the account of the nodes instead of'
      ' --service_account.',
    ),
    'no_huge_pages': dict(
      action='store_true',
      help='Do not turn on huge pages on the nodes (v5e and later), for'
      ' clusters that refuse privileged containers.',
    ),
    'env': flags.TPU_VM['run']['env'],
  },
  'logs': {
    key: settings
    for key, settings in flags.TPU_VM['logs'].items()
    if key != 'worker'
  },
}
