"""The JobSet of a run, as YAML for kubectl."""

import dataclasses
import json
import pathlib
import string
from collections.abc import Iterable, Sequence

from vit_jax import topology
from vit_jax.launch import shell as shell_lib

_TEMPLATE = pathlib.Path(__file__).with_name('jobset.yaml')
_CODES = pathlib.Path(__file__).with_name('worker') / 'restartable_codes'
# As in launch/worker/run.sh: what another start can mend. 129 to 159 are
# deaths by signal, but for 130: Ctrl-C, which somebody pressed.
RESTARTABLE = (
  *map(int, _CODES.read_text().split()),
  129,
  *range(131, 160),
)
# Of these, what is no failure of the run: it was told to stop (75), or waits
# for another pod (76). A run that hangs each time (77) must not do so for ever.
NOT_COUNTED = (75, 76)
BUCKET_MOUNT = '/bucket'
# Seconds that the slices of a run wait for each other.
SLICES_TIMEOUT = 3600


@dataclasses.dataclass(frozen=True)
class Run:
  """What a manifest says.

  Attributes:
    name: of the JobSet.
    wanted: each slice.
    num_slices: how many of them, each a node pool.
    image: with the code (launch/Dockerfile).
    flags: of vit_jax.main.
    spot: on spot nodes only.
    flex_start: on flex-start nodes only.
    restarts: of all pods together, at most, after what counts.
    grace_seconds: for the save after SIGTERM.
    service_account: of Kubernetes; must be allowed to write to the work
      directory.
    bucket: mounted at /bucket with Cloud Storage FUSE; '': none.
    variables: `NAME=VALUE` of the environment.
    host_network: the pods use the nodes' network, and with it their identity.
    huge_pages: where they help, set the nodes to transparent huge pages.
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
  """The manifest.

  Raises:
    ValueError: GKE does not offer the slice, or the run's flags can't be
      right (`shell.check_run`).
  """
  wanted = check_slice(run.wanted, run.num_slices)
  workdir = shell_lib.check_run(run.flags)
  if not workdir.startswith('gs://'):
    raise ValueError(
      f'--workdir={workdir} is a directory of one pod, or a mounted bucket,'
      ' where a save fails: it renames a directory. Expected'
      ' --workdir=gs://BUCKET/PATH, which needs no mount.'
    )
  if run.spot and run.flex_start:
    raise ValueError('--spot and --flex_start exclude each other.')
  if run.bucket and run.host_network:
    raise ValueError(
      f'--bucket={run.bucket} is mounted as the pod, which with --host_network'
      ' has no identity of its own. Leave out one of them; data can be read'
      ' from gs:// without a mount.'
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
    args=json.dumps(_program_flags(run)),
    workdir=_quote(workdir),
    env=_token(key for key, *_ in env)
    + ''.join(
      _lines(14, f'- name: {key}', f'  value: {_quote(value)}')
      for key, _, value in env
    ),
    chips_per_host=wanted.chips_per_host,
    capacity=_capacity(run),
    network=_network(run.host_network),
    huge_pages=_huge_pages(run, wanted),
    **_bucket(run.bucket),
  )


def _token(given: Iterable[str]) -> str:
  """What only the pods of this JobSet know, and all of its slices."""
  if 'VIT_JAX_LAUNCH_TOKEN' in given:
    return ''
  return _lines(
    14,
    '- name: VIT_JAX_LAUNCH_TOKEN',
    '  valueFrom:',
    '    fieldRef:',
    # JobSet sets this label since April 2025; before that, the token is ''.
    "      fieldPath: metadata.labels['jobset.sigs.k8s.io/jobset-uid']",
  )


def _program_flags(run) -> list[str]:
  """The flags of vit_jax.main, with what only this launch knows."""
  given = {flag.partition('=')[0].lstrip('-') for flag in run.flags}
  if run.num_slices == 1 or 'start_timeout' in given:
    return list(run.flags)
  # A slice that is there waits for the others, which may wait for capacity;
  # with the program's few minutes it would use up the restarts meanwhile.
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
  # The second line, so that the pods still find each other by name.
  return _lines(12, 'hostNetwork: true', 'dnsPolicy: ClusterFirstWithHostNet')


def _huge_pages(run, wanted) -> str:
  """Sets the node before the run starts; a node that refuses is no failure."""
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
  """The template's three places that a mounted bucket needs."""
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
  """Refuses what GKE does not have.

  Raises:
    ValueError: says what it has.
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
      f'--num_slices={num_slices} of {wanted}: several slices work together'
      ' only if each has several machines, and not on v3.'
    )
  return wanted


def _lines(indent: int, *lines: str) -> str:
  return ''.join(f'{" " * indent}{line}\n' for line in lines)


def _quote(text: str) -> str:
  # JSON strings are YAML strings.
  return json.dumps(text)
