"""Cloud TPU's queued resources: what can be had, requested, and given back."""

import dataclasses
from collections.abc import Iterator

from vit_jax import topology
from vit_jax.launch import shell as shell_lib

_TPU = ('gcloud', 'compute', 'tpus')
PRICES = 'https://cloud.google.com/tpu/pricing'


@dataclasses.dataclass(frozen=True)
class Target:
  """A queued resource, which has one TPU VM ("node") of the same name."""

  name: str
  zone: str
  project: str
  internal_ip: bool = False

  @property
  def place(self) -> list[str]:
    return [f'--zone={self.zone}', f'--project={self.project}']


@dataclasses.dataclass(frozen=True)
class Request:
  """What is asked for.

  Attributes:
    wanted: the slice.
    runtime_version: the image of its machines.
    spot: cheap, and taken away with half a minute's notice.
    reserved: from a reservation of the project.
    flex_start: given back after this long, such as `7d`; '': not flex-start.
    valid_until: give up waiting after this long, such as `6h`; '': never.
    options: further flags of `gcloud ... queued-resources create`.
  """

  wanted: topology.Slice
  runtime_version: str
  spot: bool = False
  reserved: bool = False
  flex_start: str = ''
  valid_until: str = ''
  options: tuple[str, ...] = ()


def create_command(target: Target, request: Request) -> list[str]:
  command = [
    # Flex-start is in gcloud's alpha commands only.
    *(('gcloud', 'alpha', *_TPU[1:]) if request.flex_start else _TPU),
    'queued-resources',
    'create',
    target.name,
    *target.place,
    f'--node-id={target.name}',
    f'--accelerator-type={request.wanted.accelerator_type}',
    f'--runtime-version={request.runtime_version}',
  ]
  if request.spot:
    command.append('--spot')
  if request.reserved:
    command.append('--reserved')
  if request.flex_start:
    command += [
      '--provisioning-model=flex-start',
      f'--max-run-duration={request.flex_start}',
    ]
  if request.valid_until:
    command.append(f'--valid-until-duration={request.valid_until}')
  if target.internal_ip:
    command.append('--internal-ips')
  return [*command, *request.options]


def delete_command(target: Target) -> list[str]:
  # --force: with its TPU VM, which would otherwise have to go first.
  return [
    *_TPU,
    *('queued-resources', 'delete', target.name),
    *target.place,
    '--force',
    '--quiet',
  ]


def states(shell: shell_lib.Shell, target: Target) -> dict[str, str]:
  """The state of each queued resource of the zone, by name."""
  rows = shell.read_json([*_TPU, 'queued-resources', 'list', *target.place])
  return {_last(row): row.get('state', {}).get('state', '') for row in rows}


def node(shell: shell_lib.Shell, target: Target) -> dict[str, str]:
  """State and health of the TPU VM; {} if there is none."""
  rows = shell.read_json([*_TPU, 'tpu-vm', 'list', *target.place])
  for row in rows:
    if _last(row) == target.name:
      return {key: row.get(key, '') for key in ('state', 'health')}
  return {}


def _last(row) -> str:
  return row['name'].rpartition('/')[2]


def offered(shell: shell_lib.Shell, zone: str, project: str) -> list[str]:
  """The accelerator types of a zone; [] in a dry run."""
  return shell.read(
    [
      *_TPU,
      *('accelerator-types', 'list', f'--zone={zone}'),
      *(f'--project={project}', '--format=value(type)'),
    ]
  ).split()


def zones(shell: shell_lib.Shell, project: str) -> list[str]:
  """The zones with TPUs; a placeholder in a dry run."""
  found = shell.read(
    [
      *_TPU,
      *('locations', 'list', f'--project={project}'),
      '--format=value(locationId)',
    ]
  ).split()
  return ['ZONE'] if shell.dry_run else sorted(found)


def quotas(
  shell: shell_lib.Shell, zone: str, project: str
) -> Iterator[tuple[str, str]]:
  """Yields the project's TPU limits in a zone: what is limited, and to what.

  Raises:
    CommandError: the project's quotas can't be read.
  """
  rows = shell.read_json(
    [
      *('gcloud', 'beta', 'quotas', 'info', 'list'),
      *('--service=tpu.googleapis.com', f'--project={project}'),
    ]
  )
  for row in rows:
    for part in row.get('dimensionsInfos', []):
      if zone in part.get('applicableLocations', []):
        name = row.get('quotaDisplayName') or row.get('quotaId', '')
        yield name, part.get('details', {}).get('value', '?')


def check(shell: shell_lib.Shell, target: Target, request: Request) -> None:
  """Answers what decides whether and when a request succeeds.

  Prints the quotas and the zone's other requests.

  Raises:
    ValueError: the zone does not offer the slice, or the name is taken.
  """
  wanted = request.wanted.accelerator_type
  found = offered(shell, target.zone, target.project)
  if not shell.dry_run and wanted not in found:
    raise ValueError(
      f'{target.zone} does not offer {wanted}. It has:'
      f' {", ".join(sorted(found)) or "no TPUs"}. Which zones offer it:\n'
      f'  python launch/tpu_vm.py zones --accelerator={wanted}'
      f' --project={target.project}'
    )
  try:
    for name, value in quotas(shell, target.zone, target.project):
      print(f'quota in {target.zone}: {value:>8} {name}')
  except shell_lib.CommandError as error:
    print(f'quotas could not be read ({error}); see IAM & Admin > Quotas.')
  others = states(shell, target)
  for name, state in others.items():
    print(f'queued resource in {target.zone}: {name} {state}')
  if target.name in others:
    raise ValueError(
      f'there is a queued resource {target.name!r} already'
      f' ({others[target.name]}). Delete it or choose another --name.'
    )


def cost(wanted: topology.Slice, price: float | None) -> str:
  """What an hour and a day cost, in chip-hours, and in money if known.

  Args:
    wanted: the slice.
    price: of a chip for an hour.
  """
  lines = [
    f'{wanted.accelerator_type} ({wanted}): {wanted.chips} chips,'
    f' {wanted.cores} TensorCores, {wanted.hosts} machine(s).',
    f'It costs {wanted.chips:,} chip-hours an hour and {24 * wanted.chips:,} a'
    ' day, from ACTIVE until it is deleted, used or not.',
  ]
  if price is None:
    lines.append(
      f'gcloud knows no prices; see {PRICES} and pass --price_per_chip_hour.'
    )
  else:
    lines.append(
      f'At {price:g} a chip-hour: {price * wanted.chips:,.2f} an hour,'
      f' {24 * price * wanted.chips:,.2f} a day.'
    )
  return '\n'.join(lines)
