"""The certificate of a finished run, `certificate.json` in its directory.

It holds what the run was (config, code, versions, data), what came of it (the
final metrics, digests of all final arrays) and the fingerprint of the state in
each row of metrics that was saved. Digests of the files tie it to them.
`vit_jax.replay --certificate` checks all of this, and makes a part of the run
again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections
from etils import epath

from vit_jax import checkpoint as checkpoint_lib
from vit_jax import config as config_lib
from vit_jax import results
from vit_jax.checkpoint import fingerprint, record
from vit_jax.workdir import environment, files, metrics

FILE = 'certificate.json'
# What has digests of its arrays -> the folder of its checkpoint.
_PARTS = {'state': checkpoint_lib.FOLDER, 'weights': checkpoint_lib.FINAL}
_FILES = (config_lib.FILE, metrics.FILE, files.DATA)
_REMEDY = 'get it from where the run was made'


def write(workdir: epath.Path, config: ml_collections.ConfigDict) -> None:
  """Writes the certificate of a run that has written everything else.

  Args:
    workdir: the run's directory.
    config: the complete config.
  """
  step = config.total_steps
  content = {
    'version': 1,
    'step': step,
    'config': config.to_dict(),
    'launches': environment.read(workdir),
    'data': files.read_object(workdir / files.DATA, _REMEDY),
    'metrics': metrics.repeatable(results.final_metrics(workdir)),
    'fingerprints': {
      str(at): value for at, value in sorted(fingerprints(workdir).items())
    },
    **{part: _arrays(workdir, part, step) for part in _PARTS},
    'files': _digests(workdir),
  }
  # As they are read again: with lists in place of tuples.
  content = json.loads(json.dumps(content))
  path = workdir / FILE
  files.write_json(path, content | {'checksum': fingerprint.checksum(content)})


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
  if content.pop('checksum', None) != fingerprint.checksum(content):
    raise ValueError(f'{path} is not what was written: {_REMEDY}.')
  return content


def differences(
  content: Mapping[str, Any], workdir: epath.Path
) -> Iterator[str]:
  """Yields a phrase for each thing that a run's directory has otherwise.

  Args:
    content: see `read`.
    workdir: the directory; all of its final weights are read.
  """
  found = _digests(workdir)
  for name, digest in content['files'].items():
    if found[name] != digest:
      yield f'{name} is another file'
  now = metrics.repeatable(results.final_metrics(workdir))
  for name, value in content['metrics'].items():
    if now.get(name) != value:
      yield f'{name} was {value} at the end, and is {now.get(name)}'
  # The record says which arrays were saved, and reading compares them with it.
  for part in _PARTS:
    then = content[part]
    try:
      digests = _arrays(workdir, part, content['step'])
    except ValueError as error:
      yield f'{part}: {error}'
      continue
    for name in sorted(digests.keys() | then):
      if digests.get(name) != then.get(name):
        yield f'{part}: {name} is another array'
  try:
    checkpoint_lib.read_params(workdir / checkpoint_lib.FINAL)
  except ValueError as error:
    yield str(error)


def fingerprints(workdir: epath.Path) -> dict[int, int]:
  """Returns step -> the number of its state (`fingerprint.number`)."""
  return {
    row['step']: int(row[metrics.FINGERPRINT])
    for row in metrics.read(workdir)
    if metrics.FINGERPRINT in row
  }


def _arrays(workdir: epath.Path, part: str, step: int) -> dict[str, str]:
  """Returns the digests of a part's arrays; DamagedError if it has none."""
  return record.read(workdir / _PARTS[part] / str(step)).digests


def _digests(workdir: epath.Path) -> dict[str, str]:
  return {
    name: hashlib.sha256(files.content(workdir / name)).hexdigest()
    for name in _FILES
  }
