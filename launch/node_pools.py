"""Creates and deletes the node pools of GKE; each slice is one node pool."""

import shlex
from typing import Any

from vit_jax import topology
from vit_jax.launch import manifest
from vit_jax.launch import shell as shell_lib


def create_nodes(shell, args, _) -> None:
  """Makes a node pool for each slice, with one node per machine of the slice.

  It makes the pools that are missing, so repeat the command after a failure.
  The nodes count against the quota of Compute Engine (IAM & Admin > Quotas,
  "TPU"), not against that of the Cloud TPU API.
  """
  wanted = _slice(args)
  capacity = _capacity(args, wanted)
  missing = [
    pool for pool in _pools(args, wanted) if not _is_there(shell, args, pool)
  ]
  if not missing:
    return
  shell.say(
    f'{len(missing)} x {wanted}: {len(missing) * wanted.chips:,}'
    ' chip-hours an hour, until the pools are deleted.'
  )
  shell_lib.confirm('Create them?', yes=args.yes, dry_run=args.dry_run)
  flags = [
    f'--node-locations={args.zone}',
    f'--machine-type={wanted.machine_type}',
    *capacity,
    '--workload-metadata=GKE_METADATA',
  ]
  if _needs_policy(wanted):
    flags.append(f'--placement-policy={_policy(args, wanted).name}')
  elif wanted.hosts > 1:
    flags.append(f'--tpu-topology={wanted.topology}')
  if args.node_service_account:
    flags += [
      f'--service-account={args.node_service_account}',
      '--scopes=cloud-platform',
    ]
  with shell.making(delete_line(args, 'delete_nodes')):
    if _needs_policy(wanted):
      _create_policy(shell, _policy(args, wanted), wanted)
    for pool in missing:
      shell.run(pool.command('create', *flags))


def delete_nodes(shell, args, _) -> None:
  """Deletes the node pools, and so the slices.

  It tries each of them. If one may be left, the command says so and ends with
  exit code 1.
  """
  wanted = _slice(args)
  pools = _pools(args, wanted)
  shell_lib.confirm(
    f'Delete {", ".join(map(str, pools))}?',
    yes=args.yes,
    dry_run=args.dry_run,
  )
  shell.remove(pools)
  if _needs_policy(wanted):
    policy = _policy(args, wanted)
    try:
      shell.remove([policy])
    except shell_lib.CommandError:
      shell.say(
        f'The {policy} stays. This is correct while other pools of the same'
        ' topology use it; it costs nothing.'
      )


def cluster(args) -> shell_lib.Thing:
  """Returns the cluster."""
  place = (f'--location={args.zone}', f'--project={args.project}')
  return shell_lib.Thing(
    'cluster', ('container', 'clusters'), args.cluster, place
  )


def look(shell: shell_lib.Shell, thing: shell_lib.Thing) -> dict[str, Any]:
  """Returns what GKE says of a cluster or node pool; {} if it is not there.

  Raises:
    CommandError: whether it is there is unknown.
    ValueError: it is there, but it can't be used.
  """
  found = shell.look(thing)
  if found is None:
    return {}
  status = found.get('status', '')
  if status in ('ERROR', 'STOPPING'):
    raise ValueError(
      f'the {thing} is there, but it is {status}. When it is deleted, repeat'
      f' the command:\n  {shlex.join(thing.command("delete"))}'
    )
  shell.say(f'The {thing} is there already ({status}), and stays as it is.')
  return found


def delete_line(args, command: str) -> str:
  """Returns the line that deletes what was made with the same flags."""
  names = ('cluster', 'accelerator', 'num_slices', 'zone', 'project')
  flags = [f'--{n}={getattr(args, n)}' for n in names if hasattr(args, n)]
  return shlex.join(['python', 'launch/gke.py', command, *flags])


def _slice(args) -> topology.Slice:
  return manifest.check_slice(topology.parse(args.accelerator), args.num_slices)


def _capacity(args, wanted) -> list[str]:
  """Returns gcloud's flags for the number and the kind of the nodes.

  Raises:
    ValueError: the flags ask for two kinds at once, or for several flex-start
      slices.
  """
  kinds = ('spot', 'flex_start', 'reservation')
  given = [f'--{name}' for name in kinds if getattr(args, name)]
  if len(given) > 1:
    raise ValueError(f'{" and ".join(given)} exclude each other.')
  if args.flex_start:
    if args.num_slices > 1:
      raise ValueError(
        f'--flex_start with --num_slices={args.num_slices}: one slice would'
        ' wait, at full cost, for the others. Only a queue (Kueue), which this'
        ' program does not set up, starts several together. Use XPK, as'
        ' launch/README.md describes.'
      )
    # The pool grows from zero nodes to all nodes at once when pods need them.
    return [
      '--num-nodes=0',
      *('--flex-start', '--enable-autoscaling', '--min-nodes=0'),
      *(f'--max-nodes={wanted.hosts}', '--location-policy=ANY'),
      *('--reservation-affinity=none', '--no-enable-autorepair'),
    ]
  found = [f'--num-nodes={wanted.hosts}']
  if args.spot:
    found.append('--spot')
  if args.reservation:
    found += [
      f'--reservation={args.reservation}',
      '--reservation-affinity=specific',
    ]
  return found


def _pools(args, wanted) -> list[shell_lib.Thing]:
  place = (f'--cluster={args.cluster}', *cluster(args).place)
  return [
    shell_lib.Thing(
      'node pool',
      ('container', 'node-pools'),
      f'{wanted.generation.name}-{wanted.topology}-{i}',
      place,
      holder=cluster(args),
    )
    for i in range(args.num_slices)
  ]


def _is_there(shell, args, pool) -> bool:
  found = look(shell, pool)
  config = found.get('config', {})
  for name, key in (('spot', 'spot'), ('flex_start', 'flexStart')):
    if found and bool(config.get(key)) != getattr(args, name):
      have = 'without' if getattr(args, name) else 'with'
      raise ValueError(
        f'the {pool} is there already, {have} --{name}. Use it as it is, or'
        f' delete it first:\n  {shlex.join(pool.command("delete"))}'
      )
  return bool(found)


def _needs_policy(wanted) -> bool:
  # For older generations, --tpu-topology of the pool gives the topology.
  return wanted.generation.name == 'tpu7x' and wanted.hosts > 1


def _policy(args, wanted) -> shell_lib.Thing:
  region = args.zone.rpartition('-')[0]
  return shell_lib.Thing(
    'placement policy',
    ('compute', 'resource-policies'),
    f'{args.cluster}-{wanted.topology}',
    (f'--region={region}', f'--project={args.project}'),
  )


def _create_policy(shell, policy, wanted) -> None:
  # The pools share the policy, and it remains if creating a pool failed.
  if shell.look(policy) is None:
    shell.run(
      [
        *('gcloud', *policy.kind, 'create', 'workload-policy', policy.name),
        '--type=HIGH_THROUGHPUT',
        f'--accelerator-topology={wanted.topology}',
        *policy.place,
      ]
    )
