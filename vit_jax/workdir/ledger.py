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
import hashlib
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath
from flax import traverse_util

from vit_jax.runtime import json_text
from vit_jax.workdir import buckets, environment, files, metrics

_LIBRARIES = 'jax', 'jaxlib', 'libtpu', 'jax-cuda12-plugin', 'jax-cuda13-plugin'
# Keys, or their beginnings, that change nothing of a step's work, or that only
# the data tell. A key that is new here makes steps differ. Of the mesh, which
# may say -1, the sizes that come out count.
_NO_PART = (
  *('seed', 'total_steps', 'epochs', 'schedule.', 'init.', 'evals.', 'guard.'),
  *('checkpoint.', 'log.', 'profile.', 'data.', 'distill.teacher'),
  *('model.head_bias', 'model.head_stddev'),
  *('mesh.data', 'mesh.fsdp', 'mesh.tensor'),
)
_PATIENCE = 60.0  # Seconds for a bucket: the run itself is over.


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
  text = json.dumps(rest, sort_keys=True)
  return {
    'model': config['model.name'],
    'image_size': list(config['image_size']),
    'batch_size': config['data.batch_size'],
    'dtype': config['model.dtype'],
    'accumulation_steps': config['accumulation_steps'],
    'digest': hashlib.sha256(text.encode()).hexdigest()[:12],
    'device': device,
    'devices': math.prod(mesh.values()),
  }


def opened(path: epath.PathLike) -> epath.Path:
  """Returns the path of a ledger; makes the file if it is a local one.

  Raises:
    OSError: its folder does not exist, or it cannot be written.
    ValueError: it is no regular file.
  """
  path = files.absolute(path)
  files.check_regular(path)
  if not buckets.is_store(path):
    open(path, 'ab').close()
  return path


def read(path: epath.Path) -> list[dict[str, Any]]:
  """Returns the lines, oldest first; skips damaged ones with a warning."""
  found = []
  for number, text in enumerate(files.content(path).splitlines(), start=1):
    try:
      one = json_text.loads(text)
      times = one['predicted_ms'] or 1, one['measured_ms'] or 1
      sound = isinstance(one['config'], str)
      if not sound or not all(0 < t < math.inf for t in times):
        raise ValueError('it has no name, or a time that is none.')
      found.append(one)
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
    path: see `opened`.
    step: see `key`.
    versions: of libraries, by name.
    **more: `what`, `config`, `predicted_ms` and `measured_ms`.
  """
  versions = {name: versions[name] for name in _LIBRARIES if name in versions}
  now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
  line = json.dumps({'time': now, **more, **step, 'versions': versions}) + '\n'
  try:
    old = files.content(path)
    # A command that died may have left a part of a line.
    data = (b'' if old.endswith(b'\n') or not old else b'\n') + line.encode()
    if buckets.is_store(path):
      files.write_shared(path, old + data)
    else:
      with open(path, 'ab') as file:
        file.write(data)
  except Exception as error:  # Each client of a store has its own errors.
    logging.warning('%s could not get this line: %s%s', path, line, error)


def ratios(lines: Sequence[Mapping[str, Any]], device: str) -> list[float]:
  """Returns measured over predicted times on a device, the least first.

  Of each work directory the newest run counts, among those with both times.
  """
  newest = {
    one['config']: one['measured_ms'] / one['predicted_ms']
    for one in lines
    if (one.get('what'), one.get('device')) == ('run', device)
    and one['measured_ms']
    and one['predicted_ms']
  }
  return sorted(newest.values())


@contextlib.contextmanager
def recording(
  path: epath.PathLike,
  workdirs: Sequence[epath.Path],
  platform: str,
  device: str,
) -> Iterator[None]:
  """Adds a line for each run that does its last step inside.

  Enter this in process 0 only. Runs on CPUs get no line, since no plan is for
  them. When the runs are over, errors are only warnings.

  Args:
    path: see `opened`, also for what this raises before the runs.
    workdirs: the work directories of the runs.
    platform: JAX's name of the platform.
    device: the name of a device, see `plan.chips.name_of`.
  """
  path = opened(path)
  if platform not in ('tpu', 'gpu'):
    logging.info('%s gets no line: no plan is for a %s.', path, platform)
    workdirs = ()
  launches = [len(environment.read(workdir)) for workdir in workdirs]
  try:
    yield
  finally:  # If a later stage fails, the earlier ones have ended.
    for workdir, known in zip(workdirs, launches, strict=True):
      try:
        with buckets.at_most(_PATIENCE):
          _add_run(path, workdir, known, device)
      except Exception as error:
        logging.warning('%s gets no line of %s: %s', path, workdir, error)


def _add_run(
  path: epath.Path, workdir: epath.Path, known: int, device: str
) -> None:
  """Adds a run's line if a launch after the `known` first ones finished it."""
  launches = environment.read(workdir)
  done = files.content(workdir / 'DONE')
  if not launches[known:] or not done or launches[-1]['step'] >= int(done):
    return
  speeds = _speeds(launches, metrics.read(workdir))
  if not speeds:
    raise ValueError('it has too few rows of metrics; lower log.every.')
  config = json_text.loads((workdir / 'config.json').read_bytes())
  config = traverse_util.flatten_dict(config, sep='.')
  step, plans = key(config, launches[-1]['mesh'], device), [None]
  own = step | {'what': 'plan'}
  with contextlib.suppress(Exception):  # `append` then shows the line.
    plans += [one['predicted_ms'] for one in read(path) if one | own == one]
  append(
    *(path, step, launches[-1]),
    what='run',
    config=str(workdir),
    predicted_ms=plans[-1],
    measured_ms=1e3 * config['data.batch_size'] / statistics.median(speeds),
  )


def _speeds(
  launches: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, float]]
) -> list[float]:
  """Returns images a second, without the first interval of each launch.

  Only launches with the same devices and code as the last one count.
  """
  found, same = [], {'time': '', 'step': 0}
  for index, one in enumerate(launches):
    # A later launch has replaced the rows after its start.
    end = min([x['step'] for x in launches[index + 1 :]], default=math.inf)
    if one | same == launches[-1] | same:
      mine = [row for row in rows if one['step'] < row['step'] <= end]
      speeds = [x['images_per_sec'] for x in mine if 'images_per_sec' in x]
      found += speeds[1:]
  return found
