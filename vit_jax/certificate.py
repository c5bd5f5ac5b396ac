"""The certificate of a finished run, `certificate.json` in its directory.

It says what came of the run (the final metrics, digests of all final arrays and
the fingerprint of the state in each row of metrics that was saved) and what the
run was (config, launches with code and versions, data). Digests of the files
tie it to them. `vit_jax.replay --certificate` checks all of this, and makes a
part of the run again. The certificate is no signature: who may write to the
directory can write another one.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.checkpoint import record
from vit_jax.runtime import distributed, json_text
from vit_jax.workdir import environment, files, metrics

FILE = 'certificate.json'
# What has digests of its arrays -> the folder of its checkpoint.
_PARTS = {'state': checkpoint_lib.FOLDER, 'weights': checkpoint_lib.FINAL}
_FILES = (config_lib.FILE, metrics.FILE, files.DATA)
_REMEDY = 'get it from where the run was made'


def write(workdir: epath.Path) -> None:
  """Writes the certificate of a run that has written everything else."""
  content = _content(workdir)
  checksum = {'checksum': json_text.checksum(content)}
  files.write_json(workdir / FILE, content | checksum)


def read(path: epath.PathLike) -> dict[str, Any]:
  """Reads a certificate.

  Raises:
    ValueError: it does not exist, or is not what was written.
  """
  path = files.absolute(path)
  if not path.exists():
    raise ValueError(
      f'There is no certificate at {path}: a run writes {FILE} to its directory'
      ' when it has finished.'
    )
  content = files.read_object(path, _REMEDY)
  if content.pop('checksum', None) != json_text.checksum(content):
    raise ValueError(f'{path} is not what was written: {_REMEDY}.')
  return content


def differences(
  content: Mapping[str, Any], workdir: epath.Path
) -> Iterator[str]:
  """Yields sentences on what a run's directory has otherwise.

  Args:
    content: see `read`.
    workdir: the directory; its last state and its final weights are read.
  """
  now = _content(workdir)
  if found := distributed.differences(now, content, 'now', 'certified'):
    yield f'{found.strip()}.'
  for part in _PARTS:
    try:
      checkpoint_lib.verify(_path(workdir, part, now['step']))
    except ValueError as error:
      yield str(error)


def fingerprints(workdir: epath.Path) -> dict[int, int]:
  """Returns step -> the number of its state (`fingerprint.number`)."""
  return {
    row['step']: int(row[metrics.FINGERPRINT])
    for row in metrics.read(workdir)
    if metrics.FINGERPRINT in row
  }


def _content(workdir: epath.Path) -> dict[str, Any]:
  """Returns a certificate without its checksum, as JSON values."""
  config = files.read_object(workdir / config_lib.FILE, _REMEDY)
  step = config['total_steps']
  data = workdir / files.DATA
  return {
    'version': 1,
    'step': step,
    'metrics': metrics.repeatable(results.final_metrics(workdir)),
    **{part: _digests(_path(workdir, part, step)) for part in _PARTS},
    'fingerprints': {
      str(at): value for at, value in sorted(fingerprints(workdir).items())
    },
    'config': config,
    'launches': environment.read(workdir),
    'data': files.read_object(data, _REMEDY) if data.exists() else {},
    'files': {
      name: hashlib.sha256(files.content(workdir / name)).hexdigest()
      for name in _FILES
    },
  }


def _path(workdir: epath.Path, part: str, step: int) -> epath.Path:
  return workdir / _PARTS[part] / str(step)


def _digests(path: epath.Path) -> dict[str, str]:
  """Returns the digests of a checkpoint's arrays; {} without a record."""
  try:
    return record.read(path).digests
  except checkpoint_lib.DamagedError:
    return {}
