"""The flags of the launch programs, and the objects that are made from them."""

import argparse
import pathlib
from collections.abc import Mapping

from vit_jax import topology
from vit_jax.launch import queued_resource

# Flag name -> keyword arguments of `add_argument`. One group of flags; one or
# more commands take it.
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
    help='Print the commands, ready to paste into a shell, and run nothing.',
  ),
}
YES: Flags = {
  'yes': dict(action='store_true', help='Do not ask for confirmation.'),
}
LOCK: Flags = {
  'lock': dict(
    default='tpu',
    help='Versions to install: the name of a file in launch/locks'
    ' (%(default)s), which may be your own; none: the newest versions that'
    ' setup.py allows.',
  ),
}
ACCELERATOR: Flags = {
  'accelerator': dict(
    required=True,
    help='The slice: an accelerator type (v3-512) or generation and topology'
    ' (v3:16x16). python -m vit_jax.topology SLICE describes a slice.',
  ),
}
FLEX_START = dict(
  action='store_true',
  help='Wait in a queue for a slice that is cheaper than on demand and is not'
  ' preempted, for at most seven days.',
)
PREFLIGHT: Flags = {
  'no_preflight': dict(
    action='store_true',
    help='Do not check first that the bucket exists and that the run may use'
    ' it.',
  ),
}
TPU_VM: Mapping[str, Flags] = {
  'common': PROJECT | DRY_RUN,
  'preflight': PREFLIGHT,
  'create': {
    'workdir': dict(
      default='',
      help='Work directory of the future run: check first that its bucket'
      " exists and that the machines' account may use it.",
    ),
  },
  'yes': YES,
  'accelerator': ACCELERATOR,
  'lock': LOCK,
  'setup': {
    'workdir': dict(
      default='',
      help='Work directory of a run that continues here: install exactly the'
      ' Python and the versions that the run recorded'
      ' (WORKDIR/requirements.txt) instead of those of --lock. Without such a'
      ' record, install those of --lock.',
    ),
  },
  'name': {
    'name': dict(
      required=True, help='Name of the queued resource and of its TPU VM.'
    ),
    'zone': dict(
      help='Zone, such as us-central2-b; default: $CLOUDSDK_COMPUTE_ZONE.',
    ),
    'internal_ip': dict(
      action='store_true',
      help='Create the machines without external addresses, and connect to'
      ' their internal ones (from inside the network). The set-up then needs'
      ' Cloud NAT.',
    ),
  },
  'request': {
    'spot': dict(
      action='store_true',
      help='A spot slice: much cheaper, but Google may preempt it at any time.'
      ' Without this flag the slice is on demand.',
    ),
    'reserved': dict(
      action='store_true', help="A slice of the project's reservation."
    ),
    'flex_start': FLEX_START,
    'max_run_duration': dict(
      default='7d',
      help='With --flex_start: delete the slice after this time (%(default)s,'
      ' which is the maximum).',
    ),
    'runtime_version': dict(
      default='',
      help='Image of the machines; default: the image of the TPU generation.',
    ),
    'valid_until': dict(
      default='', help='Give up waiting after this time, such as 6h.'
    ),
    'network': dict(
      default='', help="Network; default: the project's `default`."
    ),
    'subnetwork': dict(default='', help='Subnetwork of the network.'),
    'service_account': dict(
      default='',
      help='Account of the machines, which must be allowed to write to the work'
      " directory; default: Compute Engine's default account.",
    ),
    'price_per_chip_hour': dict(
      type=float,
      help='Price to compute the costs with; gcloud knows no prices. See'
      f' {queued_resource.PRICES}.',
    ),
  },
  'run': {
    'restarts': dict(
      type=int,
      default=20,
      help='How often in a row a worker restarts the program (%(default)s). An'
      ' attempt of at least two hours resets the count, unless it got stuck.',
    ),
    'restart_pause': dict(
      type=int, default=30, help='Seconds before a restart (%(default)s).'
    ),
    'env': dict(
      action='append',
      default=[],
      metavar='NAME=VALUE',
      help="Environment variable of the run, such as LIBTPU_INIT_ARGS='...';"
      ' may be given several times. Do not pass secrets: it is printed here and'
      ' visible to everyone with access to the machines.',
    ),
  },
  'logs': {
    'worker': dict(
      default='0', help='Number of the worker, or all (%(default)s).'
    ),
    'lines': dict(
      type=int, default=50, help='Lines to show of each log (%(default)s).'
    ),
    'follow': dict(action='store_true', help='Also show new lines.'),
  },
  'watch': {
    'poll': dict(
      type=float, default=60, help='Seconds between polls (%(default)s).'
    ),
    'new_versions': dict(
      action='store_true',
      help='Install the versions of --lock, even if the run has recorded other'
      ' versions.',
    ),
    'replace_after': dict(
      type=int,
      default=5,
      help='Replace the slice after this many failed attempts in a row'
      ' (%(default)s).',
    ),
    'replacements': dict(
      type=int,
      default=3,
      help='Maximum number of such replacements, because the cause may not be'
      ' the slice (%(default)s).',
    ),
    'delete_when_done': dict(
      action='store_true',
      help='Delete the slice when the run has finished without an error.',
    ),
  },
}


def lock(args: argparse.Namespace) -> str:
  """Returns the lock file's name that --lock gives, or `none`.

  Raises:
    ValueError: there is no such file; the message lists the choices.
  """
  names = sorted(file.stem for file in _LOCKS.glob('*.txt'))
  if args.lock not in (*names, 'none'):
    raise ValueError(
      f'--lock={args.lock}: there is no launch/locks/{args.lock}.txt. Choose'
      f' one of {", ".join(names)}, or none.'
    )
  return args.lock


def accelerator(args: argparse.Namespace) -> topology.Slice:
  """Returns the slice of --accelerator.

  Raises:
    ValueError: there is no such slice, or only GKE offers it.
  """
  wanted = topology.parse(args.accelerator)
  if not wanted.accelerator_type:
    raise ValueError(
      f'--accelerator={args.accelerator}: Google offers no Cloud TPU VMs of'
      ' this generation; use launch/gke.py.'
    )
  return wanted


def target(args: argparse.Namespace) -> queued_resource.Target:
  """Returns the queued resource that the flags name."""
  return queued_resource.Target(
    name=args.name,
    zone=args.zone,
    project=args.project,
    internal_ip=args.internal_ip,
  )


def request(args: argparse.Namespace) -> queued_resource.Request:
  """Returns the request for a slice that the flags describe.

  Raises:
    ValueError: there is no such slice, or two flags exclude each other.
  """
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
  """Returns the `NAME=VALUE` arguments of start.sh."""
  return [
    f'RESTARTS={args.restarts}',
    f'RESTART_PAUSE={args.restart_pause}',
    *args.env,
  ]
