"""What a run needs of its bucket, asked for before it begins."""

import secrets

import jax
import orbax.checkpoint as ocp
from etils import epath

from vit_jax import buckets, distributed, errors
from vit_jax.buckets import objects

_USER = 'roles/storage.objectUser'
# The smallest role that may look at a bucket itself.
_READER = 'roles/storage.legacyBucketReader'


def check(workdir: epath.PathLike) -> None:
  """Does once what a run will do again and again; leaves nothing behind.

  All processes must call this; the first one does it, all raise alike. Without
  it, a right that is missing ends a run late: `storage.buckets.get` is first
  needed where Orbax deletes a checkpoint.

  Args:
    workdir: of the run; nothing is asked unless it is in a bucket.

  Raises:
    ValueError: names the bucket, what is missing and what grants it.
    StoreError: no answer.
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
  missing, said = {}, ''
  # In this order: where one fails, what follows may not tell.
  for right, role, ask in (
    ('storage.objects.list', _USER, probe.list_bucket),
    ('storage.buckets.get', _READER, probe.look_at_bucket),
    ('storage.objects.create', _USER, lambda: probe.write(b'1')),
    ('storage.objects.get', _USER, probe.look),
    # To replace an object is to delete it.
    ('storage.objects.delete', _USER, lambda: probe.write(b'2')),
    ('storage.objects.delete', _USER, probe.delete),
  ):
    if role == _USER and 'storage.objects.create' in missing:
      continue
    try:
      ask()
    except FileNotFoundError:
      return f'--workdir={workdir}: there is no bucket gs://{bucket}.'
    except Exception as error:
      if not _is_refused(error):
        raise
      missing[right] = role
      said = said or ' '.join(str(error).split())[-200:]
  if not missing:
    _remember_kind(workdir)
    return ''
  roles = ' and '.join(dict.fromkeys(missing.values()))
  return (
    f'--workdir={workdir}: a run needs {", ".join(missing)} on gs://{bucket},'
    f' which {"is" if len(missing) == 1 else "are"} missing ({said}).\n'
    f'{roles} {"grants" if " " not in roles else "grant"} that: gcloud storage'
    f' buckets add-iam-policy-binding gs://{bucket} --member=ACCOUNT'
    f' --role=ROLE'
  )


def _remember_kind(workdir: epath.PathLike) -> None:
  """Makes Orbax ask now what kind of bucket it is.

  It remembers that, and would ask when it first deletes a checkpoint; its
  client tries again for two minutes only.
  """
  try:
    list(ocp.path.step.standard_name_format().find_all(workdir))
  except exceptions.RetryError as error:
    raise errors.StoreError(f'gs://{buckets.split(workdir)[0]}: {error}') from (
      error
    )


def _is_refused(error: Exception) -> bool:
  """Whether the service said no (401, 403), as gcsfs puts it."""
  code = str(getattr(error, 'code', ''))
  return code in ('401', '403') or str(error).startswith('Forbidden')
