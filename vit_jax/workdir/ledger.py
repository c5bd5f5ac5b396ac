"""A ledger: what plans predict of a step, and what runs on devices measure.

It is a file that the user keeps over many plans and runs. `vit_jax.plan` and
`vit_jax.main` each add lines to it with `--ledger=FILE`, one JSON object each:

  time, what ('plan' or 'run'), config (the plan's name, or the work directory)
  model, image_size, batch_size, dtype, accumulation_steps, digest (of all other
    settings that shape a step), device, devices: see `key`
  versions: of JAX and the compilers
  predicted_ms, measured_ms: of a step; null if unknown
"""

import contextlib
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath
from flax import traverse_util

from vit_jax.runtime import errors, json_text
from vit_jax.workdir import buckets, environment, files, metrics

_LIBRARIES = 'jax', 'jaxlib', 'libtpu', 'jax-cuda12-plugin', 'jax-cuda13-plugin'
# Keys, or their beginnings, that change nothing of a step's work, or that only
# the data tell. A key that is new here makes steps differ. Of the mesh, which
# may say -1, the sizes that come out count.
_NO_PART = (
  *('seed', 'total_steps', 'epochs', 'schedule.', 'init.', 'evals.'),
  *('checkpoint.', 'log.', 'profile.', 'data.', 'distill.teacher'),
  *('guard.max_skipped', 'guard.exit_after'),
  *('model.head_bias', 'model.head_stddev'),
  *('mesh.data', 'mesh.fsdp', 'mesh.tensor'),
)


def key(
  config: Mapping[str, Any], mesh: Mapping[str, int], device: str
) -> dict[str, Any]:
  """Returns the part of a line by which a run finds its plan.

  Args:
    config: the complete config, flat.
    mesh: the size of each axis.
    device: the name of a device, see `plan.chips.name_of`.
  """
  rest = {k: v for k, v in config.items() if not k.startswith(_NO_PART)}
  rest |= {'mesh': dict(mesh), 'max_labels': config['data.max_labels']}
  return {
    'model': config['model.name'],
    'image_size': list(config['image_size']),
    'batch_size': config['data.batch_size'],
    'dtype': config['model.dtype'],
    'accumulation_steps': config['accumulation_steps'],
    'digest': json_text.checksum(rest)[:12],
    'device': device,
    'devices': math.prod(mesh.values()),
  }


def checked(path: epath.PathLike) -> epath.Path:
  """Returns the path of a ledger; ValueError if its folder does not exist."""
  path = files.absolute(path)
  files.check_regular(path)
  if not buckets.is_store(path) and not path.parent.is_dir():
    raise ValueError(f'--ledger={path}: {path.parent} does not exist: make it.')
  return path


def read(path: epath.Path) -> list[dict[str, Any]]:
  """Returns the lines, oldest first; skips damaged ones with a warning."""
  found = []
  for number, text in enumerate(files.content(path).splitlines(), start=1):
    try:
      line = json_text.loads(text)
      float(line['measured_ms'] or 1), float(line['predicted_ms'] or 1)
      found.append(line)
    except (ValueError, TypeError, LookupError) as error:
      logging.warning('%s, line %d, is left out: %s', path, number, error)
  return found


def append(
  path: epath.Path, step: Mapping[str, Any], versions: Mapping[str, str], **more
) -> None:
  """Adds a line; if that fails, warns with the line.

  Several commands may add lines to a local file at the same time. In an object
  store, which cannot append, one of such lines may be lost.

  Args:
    path: see `checked`.
    step: see `key`.
    versions: of libraries, by name.
    **more: `what`, `config`, `predicted_ms` and `measured_ms`.
  """
  versions = {name: versions[name] for name in _LIBRARIES if name in versions}
  now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
  line = json.dumps({'time': now, **more, **step, 'versions': versions}) + '\n'
  try:
    if buckets.is_store(path):
      files.write_shared(path, files.content(path) + line.encode())
    else:
      with open(path, 'ab') as file:
        file.write(line.encode())
  except (OSError, errors.StoreError) as error:
    logging.warning('%s could not get this line: %s%s', path, line, error)


def ratios(lines: Sequence[Mapping[str, Any]], device: str) -> list[float]:
  """Returns measured over predicted times on a device, the least first.

  Of each work directory the newest run counts, among those with both times.
  """
  newest = {
    one['config']: one['measured_ms'] / one['predicted_ms']
    for one in lines
    if one['device'] == device and one['measured_ms'] and one['predicted_ms']
  }
  return sorted(newest.values())


@contextlib.contextmanager
def recording(
  path: epath.PathLike,
  workdirs: Sequence[epath.Path],
  platform: str,
  device: str,
) -> Iterator[None]:
  """Adds a line for each run that finishes inside, with steps to do.

  Enter this in process 0 only. Runs on CPUs get no line: no plan is for them.

  Args:
    path: see `checked`.
    workdirs: the work directories of the runs.
    platform: JAX's name of the platform.
    device: the name of a device, see `plan.chips.name_of`.
  """
  path = checked(path)
  before = {workdir: len(environment.read(workdir)) for workdir in workdirs}
  yield
  if platform == 'cpu':
    logging.info('%s gets no line: no plan is for a CPU.', path)
    return
  for workdir, known in before.items():
    if len(launches := environment.read(workdir)) > known:
      _add_run(path, workdir, launches[-1], device)


def _add_run(
  path: epath.Path,
  workdir: epath.Path,
  launch: Mapping[str, Any],
  device: str,
) -> None:
  """Adds the line of a finished run.

  Its time is the median over the rows of its last launch, but for the first
  row, which includes the warm-up.
  """
  speeds = [
    row['images_per_sec']
    for row in metrics.read(workdir)
    if row['step'] > launch['step'] and 'images_per_sec' in row
  ][1:]
  if not speeds:
    logging.warning('%s gets no line: %s has too few rows.', path, workdir)
    return
  config = files.read_object(workdir / 'config.json', 'bring it back')
  config = traverse_util.flatten_dict(config, sep='.')
  step = key(config, launch['mesh'], device)
  plans = []
  with contextlib.suppress(OSError):  # Then `append` shows the line.
    plans += [
      one['predicted_ms']
      for one in read(path)
      if one['what'] == 'plan' and step.items() <= one.items()
    ]
  append(
    *(path, step, launch),
    what='run',
    config=str(workdir),
    predicted_ms=plans[-1] if plans else None,
    measured_ms=1e3 * config['data.batch_size'] / statistics.median(speeds),
  )
