"""The launch programs' flags, and what they mean together."""

import argparse
import pathlib
from collections.abc import Mapping

from vit_jax import topology
from vit_jax.launch import queued_resource
from vit_jax.launch import shell as shell_lib

# Name -> what `add_argument` takes. A group belongs to one or more commands.
Flags = dict[str, dict[str, object]]

_LOCKS = pathlib.Path(__file__).with_name('locks')

PROJECT: Flags = {
  'project': dict(
    help='Google Cloud project; default: $CLOUDSDK_CORE_PROJECT.',
  ),
}
DRY_RUN: Flags = {
  'dry_run': dict(
    action='store_true',
    help='Print the commands, ready to be pasted, and run nothing.',
  ),
}
YES: Flags = {
  'yes': dict(action='store_true', help='Do not ask for confirmation.'),
}
LOCK: Flags = {
  'lock': dict(
    default='tpu',
    help='What is installed: a file of launch/locks by its name (%(default)s),'
    ' which may be one of yours; none: the newest versions that setup.py'
    ' allows.',
  ),
}
ACCELERATOR: Flags = {
  'accelerator': dict(
    required=True,
    help='The slice: an accelerator type (v3-512) or generation and topology'
    ' (v3:16x16). python -m vit_jax.topology explains one.',
  ),
}
FLEX_START = dict(
  action='store_true',
  help='Cheaper than on demand, after a wait, for at most seven days, and not'
  ' taken away before.',
)
PREFLIGHT: Flags = {
  'no_preflight': dict(
    action='store_true',
    help='Do not look first whether the bucket is there and lets the run in.',
  ),
}
TPU_VM: Mapping[str, Flags] = {
  'common': PROJECT | DRY_RUN,
  'preflight': PREFLIGHT,
  'create': {
    'workdir': dict(
      default='',
      help='Of the run that is to come: looks first whether its bucket is'
      " there and lets the machines' account in.",
    ),
  },
  'yes': YES,
  'accelerator': ACCELERATOR,
  'lock': LOCK,
  'setup': {
    'workdir': dict(
      default='',
      help='Of a run that is to go on here: installs exactly the versions and'
      ' the Python that it recorded (WORKDIR/requirements.txt), if it has,'
      ' instead of those of --lock.',
    ),
  },
  'name': {
    'name': dict(required=True, help='Of the queued resource and its TPU VM.'),
    'zone': dict(
      help='Such as us-central2-b; default: $CLOUDSDK_COMPUTE_ZONE.',
    ),
    'internal_ip': dict(
      action='store_true',
      help='The machines have no external addresses: created so, and reached'
      ' so (from inside the network). They then need Cloud NAT for set-up.',
    ),
  },
  'request': {
    'spot': dict(
      action='store_true',
      help='Much cheaper, and may be taken away at any time; without it the'
      ' slice is on demand.',
    ),
    'reserved': dict(
      action='store_true', help="From the project's reservation."
    ),
    'flex_start': FLEX_START,
    'max_run_duration': dict(
      default='7d',
      help='With --flex_start: given back after this long (%(default)s, the'
      ' most there is).',
    ),
    'runtime_version': dict(
      default='', help="Image of the machines; default: the generation's."
    ),
    'valid_until': dict(
      default='', help='Give up waiting after this long, such as 6h.'
    ),
    'network': dict(default='', help="Default: the project's `default`."),
    'subnetwork': dict(default='', help='Of the network.'),
    'service_account': dict(
      default='',
      help="The machines' identity, which must be allowed to write to the work"
      " directory; default: Compute Engine's default account.",
    ),
    'price_per_chip_hour': dict(
      type=float,
      help='To show what it costs; gcloud knows no prices. See'
      f' {queued_resource.PRICES}.',
    ),
  },
  'run': {
    'restarts': dict(
      type=int,
      default=20,
      help='How often in a row a worker starts the program again (%(default)s).'
      ' An attempt of two hours that did not get stuck starts the count anew.',
    ),
    'restart_pause': dict(
      type=int, default=30, help='Seconds before that (%(default)s).'
    ),
    'env': dict(
      action='append',
      default=[],
      metavar='NAME=VALUE',
      help="Environment variable of the run, such as LIBTPU_INIT_ARGS='...';"
      ' may be given several times. Not for secrets: it is printed here, and'
      ' whoever may look at the machines sees it.',
    ),
  },
  'logs': {
    'worker': dict(
      default='0', help='Number of the worker, or all; default 0.'
    ),
    'lines': dict(type=int, default=50, help='From each (%(default)s).'),
    'follow': dict(action='store_true', help='Go on with what is added.'),
  },
  'watch': {
    'poll': dict(
      type=float, default=60, help='Seconds between looks (%(default)s).'
    ),
    'new_versions': dict(
      action='store_true',
      help='Install what --lock says, also where the run has recorded other'
      ' versions.',
    ),
    'replace_after': dict(
      type=int,
      default=5,
      help='A slice on which so many attempts in a row failed is given back for'
      ' a new one (%(default)s).',
    ),
    'replacements': dict(
      type=int,
      default=3,
      help='At most so many of these, for it may not be the slice'
      ' (%(default)s).',
    ),
    'delete_when_done': dict(
      action='store_true', help='Give the slice back when the run has ended.'
    ),
  },
}


def lock(args: argparse.Namespace) -> str:
  """The lock file of --lock, by name, or `none`.

  Raises:
    ValueError: there is none of that name; lists the choices.
  """
  names = sorted(file.stem for file in _LOCKS.glob('*.txt'))
  if args.lock not in (*names, 'none'):
    raise ValueError(
      f'--lock={args.lock}: there is no launch/locks/{args.lock}.txt. Choose'
      f' one of {", ".join(names)}, or none.'
    )
  return args.lock


def accelerator(args: argparse.Namespace) -> topology.Slice:
  """The slice of --accelerator, which Cloud TPU VMs must have.

  Raises:
    ValueError: there is no such slice, or only on GKE.
  """
  wanted = topology.parse(args.accelerator)
  if not wanted.accelerator_type:
    raise ValueError(
      f'--accelerator={args.accelerator}: Cloud TPU VMs of that generation are'
      ' not offered; use launch/gke.py.'
    )
  return wanted


def target(args: argparse.Namespace) -> queued_resource.Target:
  """Which queued resource is meant, and where.

  Raises:
    ValueError: the name is none.
  """
  return queued_resource.Target(
    name=shell_lib.check_name(args.name),
    zone=args.zone,
    project=args.project,
    internal_ip=args.internal_ip,
  )


def request(args: argparse.Namespace) -> queued_resource.Request:
  """What is asked for."""
  wanted = accelerator(args)
  kinds = ('spot', 'reserved', 'flex_start')
  given = [f'--{name}' for name in kinds if getattr(args, name)]
  if len(given) > 1:
    raise ValueError(f'{" and ".join(given)} exclude each other.')
  options = {
    'network': args.network,
    'subnetwork': args.subnetwork,
    'service-account': args.service_account,
  }
  return queued_resource.Request(
    wanted=wanted,
    runtime_version=args.runtime_version or wanted.generation.runtime_version,
    spot=args.spot,
    reserved=args.reserved,
    flex_start=args.max_run_duration if args.flex_start else '',
    valid_until=args.valid_until,
    options=tuple(f'--{k}={v}' for k, v in options.items() if v),
  )


def variables(args: argparse.Namespace) -> list[str]:
  """`NAME=VALUE` for start.sh."""
  return [
    f'RESTARTS={args.restarts}',
    f'RESTART_PAUSE={args.restart_pause}',
    *args.env,
  ]
