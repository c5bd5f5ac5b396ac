"""Checks before a run that it has all permissions that it needs on a bucket."""

import secrets

import jax
import orbax.checkpoint as ocp
from etils import epath

from vit_jax.runtime import distributed, errors
from vit_jax.workdir import buckets
from vit_jax.workdir.buckets import objects

_USER = 'roles/storage.objectUser'
# The smallest role that may read a bucket's metadata.
_READER = 'roles/storage.legacyBucketReader'


def check(workdir: epath.PathLike) -> None:
  """Tries each kind of request that a run makes; leaves nothing behind.

  All processes must call this. Process 0 checks, and all raise the same error.
  Without this check, a missing permission ends a run late: Orbax first needs
  `storage.buckets.get` when it deletes a checkpoint.

  Args:
    workdir: the run's work directory; only one in a bucket is checked.

  Raises:
    ValueError: a permission is missing; the message names the bucket, the
      permission and the role that grants it.
    StoreError: the bucket did not answer.
  """
  problem = ''
  if jax.process_index() == 0 and buckets.is_bucket(workdir):
    problem = _problem(workdir)
  if problem := distributed.broadcast(problem):
    raise ValueError(problem)


def _problem(workdir: epath.PathLike) -> str:
  bucket, _ = buckets.split(workdir)
  try:
    probe = objects.Object(epath.Path(workdir) / f'.{secrets.token_hex(8)}')
  except ImportError as error:
    return f'--workdir={workdir}: {error}.'
  missing, answers = {}, []

  def ask(right, role, call):
    try:
      call()
    except Exception as error:
      if not _is_refused(error):
        raise
      missing[right] = role
      answers.append(' '.join(str(error).split())[-200:])

  try:
    ask('storage.objects.list', _USER, probe.list_bucket)
    ask('storage.buckets.get', _READER, probe.look_at_bucket)
    ask('storage.objects.create', _USER, lambda: probe.write(b'1'))
    if 'storage.objects.create' not in missing:
      ask('storage.objects.get', _USER, probe.look)
      # Replacing an object needs the permission to delete it.
      ask('storage.objects.delete', _USER, lambda: probe.write(b'2'))
      if not missing:
        _remember_kind(workdir)
      ask('storage.objects.delete', _USER, probe.delete)
  except FileNotFoundError:
    return f'--workdir={workdir}: there is no bucket gs://{bucket}.'
  if not missing:
    return ''
  roles = ' and '.join(dict.fromkeys(missing.values()))
  return (
    f'--workdir={workdir}: a run needs {", ".join(missing)} on gs://{bucket},'
    f' which {"is" if len(missing) == 1 else "are"} missing ({answers[0]}).\n'
    f'{roles} {"grants" if " " not in roles else "grant"} that: gcloud storage'
    f' buckets add-iam-policy-binding gs://{bucket} --member=ACCOUNT'
    ' --role=ROLE'
  )


def _remember_kind(workdir: epath.PathLike) -> None:
  """Makes Orbax ask for the kind of the bucket, and remember the answer.

  Otherwise Orbax asks when it first deletes a checkpoint, and its client
  retries for two minutes only.

  Args:
    workdir: a directory that is not empty; else Orbax would not ask.
  """
  from google.api_core import exceptions

  try:
    list(ocp.path.step.standard_name_format().find_all(workdir))
  except exceptions.RetryError as error:
    raise errors.StoreError(f'gs://{buckets.split(workdir)[0]}: {error}') from (
      error
    )


def _is_refused(error: Exception) -> bool:
  """Returns whether an error of gcsfs means a refusal (401, 403)."""
  code = str(getattr(error, 'code', ''))
  return code in ('401', '403') or str(error).startswith('Forbidden')
