"""Requests, looks at and deletes a slice of Cloud TPU: a queued resource."""

import dataclasses
import shlex
from collections.abc import Sequence

from vit_jax import topology
from vit_jax.launch.shell import Shell

_TPU = ('gcloud', 'compute', 'tpus')


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

  def own(self, command: str) -> str:
    """Returns the line of a command of tpu_vm.py for it."""
    words = ('python', 'launch/tpu_vm.py', command, f'--name={self.name}')
    return shlex.join([*words, *self.place])

  def delete(self, shell: Shell) -> None:
    """Deletes the queued resource and its TPU VM.

    Raises:
      CommandError: it may be left.
    """
    # --force also deletes the TPU VM, which otherwise must be deleted first.
    shell.run(
      [
        *(*_TPU, 'queued-resources', 'delete', self.name, *self.place),
        *('--force', '--quiet'),
      ]
    )

  def states(self, shell: Shell) -> tuple[str | None, str, str]:
    """Returns the states of the request and the VM, and the VM's health.

    The first is None if there is no request of that name. The others are '' if
    there is no VM.
    """
    queue = self._find(shell, 'queued-resources')
    node = self._find(shell, 'tpu-vm') or {}
    state = None if queue is None else queue.get('state', {}).get('state', '')
    return state, node.get('state', ''), node.get('health', '')

  def _find(self, shell, kind):
    rows = shell.read_json([*_TPU, kind, 'list', *self.place])
    return next(
      (row for row in rows if row['name'].rpartition('/')[2] == self.name), None
    )


def create_command(
  target: Target, wanted: topology.Slice, args
) -> Sequence[str]:
  """Returns the gcloud command that requests a slice.

  Args:
    target: the name and place of the slice.
    wanted: the slice.
    args: the parsed flags. `args.more` has gcloud's own, such as --spot.

  Raises:
    ValueError: Google offers no such slice as TPU VMs.
  """
  if not wanted.accelerator_type:
    raise ValueError(
      f'--accelerator={args.accelerator}: Google offers no Cloud TPU VMs of'
      ' this generation; use launch/gke.py.'
    )
  # Only gcloud's alpha commands have flex-start.
  flex = any(word.startswith('--provisioning-model') for word in args.more)
  program = ('gcloud', 'alpha', *_TPU[1:]) if flex else _TPU
  return [
    *(*program, 'queued-resources', 'create', target.name, *target.place),
    f'--node-id={target.name}',
    f'--accelerator-type={wanted.accelerator_type}',
    f'--runtime-version={wanted.generation.runtime_version}',
    *(['--internal-ips'] if target.internal_ip else []),
    *args.more,  # The last of two equal flags counts.
  ]


def cost(wanted: topology.Slice) -> str:
  """Returns a text on the chip-hours of an hour and a day."""
  return (
    f'{wanted.accelerator_type} ({wanted}): {wanted.chips} chips,'
    f' {wanted.cores} TensorCores, {wanted.hosts} machine(s).\n'
    f'It costs {wanted.chips:,} chip-hours an hour and {24 * wanted.chips:,} a'
    ' day, from ACTIVE until it is deleted, used or not. Prices:'
    ' https://cloud.google.com/tpu/pricing'
  )
