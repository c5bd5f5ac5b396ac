"""Lists, requests and deletes the queued resources of Cloud TPU."""

import dataclasses
import shlex
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

  @property
  def delete(self) -> str:
    """The command that deletes it."""
    words = ('python', 'launch/tpu_vm.py', 'delete', f'--name={self.name}')
    return shlex.join([*words, *self.place])


@dataclasses.dataclass(frozen=True)
class Request:
  """A request for a slice.

  Attributes:
    wanted: the slice.
    runtime_version: the image of its machines.
    spot: whether it is a spot slice, which Google may preempt with about 30
      seconds' notice.
    reserved: whether it comes from a reservation of the project.
    flex_start: the time after which a flex-start slice is deleted, such as
      `7d`; '': not flex-start.
    valid_until: the time after which to give up waiting, such as `6h`; '':
      never.
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
  """Returns the gcloud command that requests the slice."""
  command = [
    # Only gcloud's alpha commands have flex-start.
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


def delete(shell: shell_lib.Shell, target: Target) -> None:
  """Deletes the queued resource and its TPU VM, if they are there.

  Raises:
    CommandError: one of them may be left.
  """
  kinds = (
    # --force also deletes the TPU VM, which otherwise must be deleted first.
    ('queued resource', 'queued-resources', ('--force',)),
    ('TPU VM', 'tpu-vm', ()),
  )
  shell.remove(
    [
      shell_lib.Thing(what, (*_TPU[1:], kind), target.name, target.place, force)
      for what, kind, force in kinds
    ]
  )


def states(shell: shell_lib.Shell, target: Target) -> dict[str, str]:
  """Returns the state of each queued resource in the target's zone, by name."""
  return {name: _state(row) for name, row in _rows(shell, target).items()}


def node(shell: shell_lib.Shell, target: Target) -> dict[str, str]:
  """Returns `state` and `health` of the TPU VM; {} if there is none."""
  rows = shell.read_json([*_TPU, 'tpu-vm', 'list', *target.place])
  for row in rows:
    if _last(row) == target.name:
      return {key: row.get(key, '') for key in ('state', 'health')}
  return {}


def _rows(shell, target) -> dict[str, dict]:
  rows = shell.read_json([*_TPU, 'queued-resources', 'list', *target.place])
  return {_last(row): row for row in rows}


def _state(row) -> str:
  return row.get('state', {}).get('state', '')


def _last(row) -> str:
  return row['name'].rpartition('/')[2]


def offered(shell: shell_lib.Shell, zone: str, project: str) -> list[str]:
  """Returns the accelerator types that a zone offers; [] in a dry run."""
  return shell.read(
    [
      *_TPU,
      *('accelerator-types', 'list', f'--zone={zone}'),
      *(f'--project={project}', '--format=value(type)'),
    ]
  ).split()


def zones(shell: shell_lib.Shell, project: str) -> list[str]:
  """Returns the zones with TPUs; a placeholder in a dry run."""
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
  """Yields the project's TPU quotas in a zone, each as (name, limit).

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


def check(shell: shell_lib.Shell, target: Target, request: Request) -> bool:
  """Checks a request, and prints the quotas and the zone's queued resources.

  Returns:
    Whether the slice is there already, or on its way.

  Raises:
    ValueError: the zone does not offer the slice, or the name is taken.
  """
  wanted = request.wanted.accelerator_type
  found = offered(shell, target.zone, target.project)
  if not shell.dry_run and wanted not in found:
    raise ValueError(
      f'{target.zone} does not offer {wanted}. It offers:'
      f' {", ".join(sorted(found)) or "no TPUs"}. To list the zones that offer'
      f' {wanted}:\n'
      f'  python launch/tpu_vm.py zones --accelerator={wanted}'
      f' --project={target.project}'
    )
  try:
    for name, value in quotas(shell, target.zone, target.project):
      print(f'quota in {target.zone}: {value:>8} {name}')
  except shell_lib.CommandError as error:
    print(f'quotas could not be read ({error}); see IAM & Admin > Quotas.')
  rows = _rows(shell, target)
  for name, row in rows.items():
    print(f'queued resource in {target.zone}: {name} {_state(row)}')
  if target.name not in rows:
    return False
  row = rows[target.name]
  parts = row.get('tpu', {}).get('nodeSpec', [])
  types = {part['node']['acceleratorType'] for part in parts} - {wanted}
  lost = _state(row) in ('SUSPENDING', 'SUSPENDED', 'FAILED', 'DELETING')
  if lost or types or ('spot' in row) != request.spot:
    raise ValueError(
      f'there is a queued resource {target.name!r} already, which is'
      f' {_state(row)} or not what is asked for. Choose another --name, or'
      f' delete it:\n  {target.delete}'
    )
  return True


def cost(wanted: topology.Slice, price: float | None) -> str:
  """Returns a text on the costs per hour and day, in chip-hours and money.

  Args:
    wanted: the slice.
    price: price of a chip-hour; None: the text gives no money.
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
