"""The JobSet of a run, as YAML for kubectl."""

import dataclasses
import json
import pathlib
import string
from collections.abc import Sequence

from vit_jax import topology
from vit_jax.launch import shell as shell_lib

_TEMPLATE = pathlib.Path(__file__).with_name('jobset.yaml')
_CODES = pathlib.Path(__file__).with_name('worker') / 'restartable_codes'
# The exit codes after which a restart can help, as in launch/worker/run.sh. 129
# to 159 are deaths by signal, except 130, which is a deliberate Ctrl-C.
RESTARTABLE = (
  *map(int, _CODES.read_text().split()),
  129,
  *range(131, 160),
)
# The restartable codes that are not the run's fault: it received SIGTERM (75),
# or lost or did not find another pod (76, 134). 77 counts; otherwise a run that
# always hangs would restart forever.
NOT_COUNTED = (75, 76, 134)
BUCKET_MOUNT = '/bucket'
# Seconds for which the slices of a run wait for each other.
SLICES_TIMEOUT = 3600


@dataclasses.dataclass(frozen=True)
class Run:
  """The contents of a manifest.

  Attributes:
    name: name of the JobSet.
    wanted: the type of each slice.
    num_slices: number of slices, each of which is a node pool.
    image: the image with the code (launch/Dockerfile).
    flags: flags of vit_jax.main.
    spot: whether to run on spot nodes only.
    flex_start: whether to run on flex-start nodes only.
    restarts: maximum number of restarts of all pods; exit codes of NOT_COUNTED
      and lost nodes do not count.
    grace_seconds: seconds for the save after SIGTERM.
    service_account: the Kubernetes service account of the pods, which must be
      allowed to write to the work directory.
    bucket: bucket to mount at /bucket with Cloud Storage FUSE; '': none.
    variables: `NAME=VALUE` environment variables.
    host_network: whether the pods use the nodes' network, and so their account.
    huge_pages: whether to turn on transparent huge pages on the nodes, on the
      generations where they help.
  """

  name: str
  wanted: topology.Slice
  num_slices: int
  image: str
  flags: Sequence[str]
  spot: bool = False
  flex_start: bool = False
  restarts: int = 100
  grace_seconds: int = 300
  service_account: str = 'default'
  bucket: str = ''
  variables: Sequence[str] = ()
  host_network: bool = False
  huge_pages: bool = True


def render(run: Run) -> str:
  """Returns the manifest as YAML.

  Raises:
    ValueError: GKE does not offer the slice, or a flag is missing or wrong
      (also see `shell.check_run`).
  """
  wanted = check_slice(run.wanted, run.num_slices)
  workdir = shell_lib.check_run(run.flags)
  if not workdir.startswith('gs://'):
    raise ValueError(
      f'--workdir={workdir} is a directory of one pod, which is lost with it,'
      ' or a mounted bucket, where saving is not safe.'
      ' Expected --workdir=gs://BUCKET/PATH, which needs no mount.'
    )
  if run.spot and run.flex_start:
    raise ValueError('--spot and --flex_start exclude each other.')
  if run.bucket and run.host_network:
    raise ValueError(
      f'--bucket={run.bucket} is mounted with the identity of the pod, but with'
      ' --host_network a pod has no identity of its own. Drop one of the two'
      ' flags; data can be read from gs:// without a mount.'
    )
  env = [variable.partition('=') for variable in run.variables]
  return string.Template(_TEMPLATE.read_text()).substitute(
    name=run.name,
    restarts=run.restarts,
    num_slices=run.num_slices,
    hosts=wanted.hosts,
    not_counted=list(NOT_COUNTED),
    restartable=list(RESTARTABLE),
    service_account=run.service_account,
    grace_seconds=run.grace_seconds,
    gke_accelerator=wanted.gke_accelerator,
    topology=wanted.topology,
    image=_quote(run.image),
    args=json.dumps([_literal(flag) for flag in _program_flags(run)]),
    workdir=_quote(_literal(workdir)),
    env=''.join(
      _lines(14, f'- name: {key}', f'  value: {_quote(_literal(value))}')
      for key, _, value in env
    ),
    chips_per_host=wanted.chips_per_host,
    capacity=_capacity(run),
    network=_network(run.host_network),
    huge_pages=_huge_pages(run, wanted),
    **_bucket(run.bucket),
  )


def _program_flags(run) -> list[str]:
  """Returns the flags of vit_jax.main, with those that this launch adds."""
  given = {flag.partition('=')[0].lstrip('-') for flag in run.flags}
  if run.num_slices == 1 or 'start_timeout' in given:
    return list(run.flags)
  # The other slices may wait long for capacity. With the program's default of a
  # few minutes, the first slice would restart again and again meanwhile.
  return [*run.flags, f'--start_timeout={SLICES_TIMEOUT}']


def _capacity(run) -> str:
  if run.flex_start:
    return _lines(14, 'cloud.google.com/gke-flex-start: "true"')
  if not run.spot:
    return ''
  return _lines(14, 'cloud.google.com/gke-spot: "true"') + _lines(
    12,
    'tolerations:',
    '- key: cloud.google.com/gke-spot',
    '  operator: Equal',
    '  value: "true"',
    '  effect: NoSchedule',
  )


def _network(host_network) -> str:
  if not host_network:
    return ''
  # Without dnsPolicy, pods on the host network can't find each other by name.
  return _lines(12, 'hostNetwork: true', 'dnsPolicy: ClusterFirstWithHostNet')


def _huge_pages(run, wanted) -> str:
  """Returns the init container that turns on transparent huge pages.

  A node that refuses the setting does not fail the run.
  """
  if not run.huge_pages or wanted.generation.name in ('v2', 'v3', 'v4'):
    return ''
  return _lines(
    12,
    'initContainers:',
    '- name: huge-pages',
    f'  image: {_quote(run.image)}',
    '  command: ["bash", "launch/worker/huge_pages.sh"]',
    '  securityContext:',
    '    privileged: true',
  )


def _bucket(bucket) -> dict[str, str]:
  """Returns the three parts of the template that mount a bucket."""
  if not bucket:
    return dict(annotations='', mount='', volume='')
  return dict(
    annotations=_lines(
      10,
      'metadata:',
      '  annotations:',
      '    gke-gcsfuse/volumes: "true"',
    ),
    mount=_lines(14, '- name: bucket', f'  mountPath: {BUCKET_MOUNT}'),
    volume=_lines(
      12,
      '- name: bucket',
      '  csi:',
      '    driver: gcsfuse.csi.storage.gke.io',
      '    volumeAttributes:',
      f'      bucketName: {_quote(bucket)}',
      '      mountOptions: implicit-dirs',
    ),
  )


def check_slice(wanted: topology.Slice, num_slices: int) -> topology.Slice:
  """Checks that GKE offers the slices, and returns `wanted`.

  Raises:
    ValueError: GKE does not offer them; the message says what it offers.
  """
  if not wanted.gke_accelerator:
    raise ValueError(
      f'{wanted}: GKE does not offer {wanted.generation.name}; use'
      ' launch/tpu_vm.py.'
    )
  if num_slices < 1:
    raise ValueError(f'--num_slices={num_slices} must be at least 1.')
  if num_slices > 1 and (wanted.hosts == 1 or wanted.generation.name == 'v3'):
    raise ValueError(
      f'--num_slices={num_slices} of {wanted}: one run can use several slices'
      ' only if each slice has several machines, and not on v3.'
    )
  return wanted


def _lines(indent: int, *lines: str) -> str:
  return ''.join(f'{" " * indent}{line}\n' for line in lines)


def _literal(text: str) -> str:
  # Kubernetes replaces $(A) in arguments and variables, and takes $$ for $.
  return text.replace('$', '$$')


def _quote(text: str) -> str:
  # JSON strings are YAML strings.
  return json.dumps(text)
