"""The flags of launch/gke.py."""

from collections.abc import Mapping

from vit_jax.launch import flags

GKE: Mapping[str, flags.Flags] = {
  'common': flags.DRY_RUN,
  'preflight': flags.PREFLIGHT,
  'yes': flags.YES,
  'accelerator': flags.ACCELERATOR,
  'lock': flags.LOCK,
  'name': {'name': dict(required=True, help='Of the run (the JobSet).')},
  'cluster': {
    **flags.PROJECT,
    'cluster': dict(required=True, help='Its name.'),
    'zone': dict(
      help='Of the cluster and its TPUs; default: $CLOUDSDK_COMPUTE_ZONE.'
    ),
  },
  'new_cluster': {
    'jobset_version': dict(
      default='v0.12.0',
      help='Release of JobSet (%(default)s); apply needs v0.10.0 or newer.',
    ),
    'network': dict(
      default='',
      help='Such as one with large frames, for several slices; default: the'
      " project's `default`.",
    ),
    'subnetwork': dict(default='', help='Of the network.'),
    'exclusion_days': dict(
      type=int,
      default=90,
      help='For so long GKE upgrades no nodes, which would end their pods'
      ' (%(default)s); 0: it may at any time.',
    ),
  },
  'slices': {
    'num_slices': dict(type=int, default=1, help='How many (%(default)s).'),
  },
  'spot': {
    'spot': dict(
      action='store_true',
      help='Much cheaper nodes, which may be taken away at any time.',
    ),
    'flex_start': flags.FLEX_START,
  },
  'new_nodes': {
    'reservation': dict(default='', help='Nodes from this reservation.'),
  },
  'identity': {
    'node_service_account': dict(
      default='',
      help="The nodes' identity, and with --host_network that of the run;"
      " default: Compute Engine's default account.",
    ),
  },
  'project': flags.PROJECT,
  'image': {
    'image': dict(
      required=True, help='REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG'
    ),
  },
  'pods': {
    'restarts': dict(
      type=int,
      default=100,
      help='Of all pods together (%(default)s), not counting those after lost'
      ' nodes and exit codes 75 and 76.',
    ),
    'grace_seconds': dict(
      type=int,
      default=300,
      help='Between SIGTERM and SIGKILL, for the save (%(default)s).',
    ),
    'service_account': dict(
      default='default',
      help="The pods' identity in Kubernetes (%(default)s), which must be"
      ' allowed to write to the work directory.',
    ),
    'bucket': dict(
      default='',
      help='Mounted at /bucket with Cloud Storage FUSE, for data to be read;'
      ' the work directory must be gs://.',
    ),
    'host_network': dict(
      action='store_true',
      help="The pods use the nodes' network, which is faster between slices,"
      ' and with it the identity of the nodes instead of --service_account.',
    ),
    'no_huge_pages': dict(
      action='store_true',
      help='Leave the memory settings of the nodes (v5e and later) alone, for'
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
