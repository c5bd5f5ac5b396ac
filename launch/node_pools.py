"""Creates and deletes the node pools of GKE; each slice is one node pool."""

from vit_jax import topology
from vit_jax.launch import manifest
from vit_jax.launch import shell as shell_lib


def create_nodes(shell, args, _) -> None:
  """Makes a node pool for each slice, with one node per machine of the slice.

  The nodes count against the quota of Compute Engine (IAM & Admin > Quotas,
  "TPU"), not against that of the Cloud TPU API.
  """
  wanted = _slice(args)
  capacity = _capacity(args, wanted)
  shell.say(
    f'{args.num_slices} x {wanted}: {args.num_slices * wanted.chips:,}'
    ' chip-hours an hour, until the pools are deleted.'
  )
  shell_lib.confirm('Create them?', yes=args.yes, dry_run=args.dry_run)
  placed = _needs_policy(wanted)
  if placed:
    _create_policy(shell, args, wanted)
  for name in _pools(args, wanted):
    command = [
      *('gcloud', 'container', 'node-pools', 'create', name),
      f'--cluster={args.cluster}',
      *place(args),
      f'--node-locations={args.zone}',
      f'--machine-type={wanted.machine_type}',
      *capacity,
      '--workload-metadata=GKE_METADATA',
    ]
    if placed:
      command.append(f'--placement-policy={_policy(args, wanted)}')
    elif wanted.hosts > 1:
      command.append(f'--tpu-topology={wanted.topology}')
    if args.node_service_account:
      command += [
        f'--service-account={args.node_service_account}',
        '--scopes=cloud-platform',
      ]
    shell.run(command)


def delete_nodes(shell, args, _) -> None:
  """Deletes the node pools, and so the slices."""
  wanted = _slice(args)
  names = _pools(args, wanted)
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
        *place(args),
        '--quiet',
      ]
    )
  if _needs_policy(wanted):
    _delete_policy(shell, args, wanted)


def place(args) -> list[str]:
  """Returns gcloud's flags for the location of the cluster."""
  return [f'--location={args.zone}', f'--project={args.project}']


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


def _pools(args, wanted) -> list[str]:
  return [
    f'{wanted.generation.name}-{wanted.topology}-{i}'
    for i in range(args.num_slices)
  ]


def _needs_policy(wanted) -> bool:
  # For older generations, --tpu-topology of the pool gives the topology.
  return wanted.generation.name == 'tpu7x' and wanted.hosts > 1


def _policy(args, wanted) -> str:
  return f'{args.cluster}-{wanted.topology}'


def _region(args) -> list[str]:
  region = args.zone.rpartition('-')[0]
  return [f'--region={region}', f'--project={args.project}']


def _policy_exists(shell, args, wanted) -> bool:
  rows = shell.read_json(
    [
      *('gcloud', 'compute', 'resource-policies', 'list'),
      f'--project={args.project}',
      f'--filter=name={_policy(args, wanted)}',
    ]
  )
  # The region is a URL, and other regions may have a policy of the same name.
  region = args.zone.rpartition('-')[0]
  return any(row.get('region', '').rpartition('/')[2] == region for row in rows)


def _create_policy(shell, args, wanted) -> None:
  # The pools share the policy, and it remains if creating a pool failed.
  if _policy_exists(shell, args, wanted):
    return
  shell.run(
    [
      *('gcloud', 'compute', 'resource-policies', 'create'),
      *('workload-policy', _policy(args, wanted)),
      '--type=HIGH_THROUGHPUT',
      f'--accelerator-topology={wanted.topology}',
      *_region(args),
    ]
  )


def _delete_policy(shell, args, wanted) -> None:
  if not shell.dry_run and not _policy_exists(shell, args, wanted):
    return
  name = _policy(args, wanted)
  try:
    shell.run(
      [
        *('gcloud', 'compute', 'resource-policies', 'delete', name),
        *_region(args),
        '--quiet',
      ]
    )
  except shell_lib.CommandError as error:
    shell.say(
      f'The placement policy {name} stays ({error}). This is correct while'
      ' other pools of the same topology use it; it costs nothing.'
    )
