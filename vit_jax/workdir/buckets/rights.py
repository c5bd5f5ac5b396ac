"""Checks before a run that it has all permissions that it needs on a bucket."""

import secrets

import fsspec
import jax
from etils import epath

from vit_jax.runtime import distributed
from vit_jax.workdir import buckets


def check(workdir: epath.PathLike) -> None:
  """Tries each kind of request that a run makes; leaves nothing behind.

  All processes must call this. Process 0 checks, and all raise the same error.
  Without this check, a missing permission ends a run late, such as when it
  first deletes a checkpoint.

  Args:
    workdir: the run's work directory; only one in a bucket is checked.

  Raises:
    ValueError: a permission is missing; the message has the service's answer,
      which names it, and the roles that grant all permissions.
    StoreError: the bucket did not answer.
  """
  if not buckets.is_bucket(workdir):
    return
  problem = ''
  if jax.process_index() == 0:
    problem = _problem(workdir)
  if problem := distributed.broadcast(problem):
    raise ValueError(f'--workdir={workdir}: {problem}')


def _problem(workdir: epath.PathLike) -> str:
  bucket, _ = buckets.split(workdir)
  try:
    buckets.register()
    gcs = fsspec.filesystem('gs')
    # Orbax reads the bucket's metadata to delete a checkpoint.
    gcs.call('GET', 'b/{}', bucket)
    gcs.call('GET', 'b/{}/o', bucket, maxResults=1)
    probe = epath.Path(workdir) / f'.{secrets.token_hex(8)}'
    for content in (b'1', b'2'):  # Replacing needs the permission to delete.
      probe.write_bytes(content)
    probe.read_bytes()
    probe.unlink()
  except ImportError as error:
    return f'{error}.'
  except FileNotFoundError:
    return f'there is no bucket gs://{bucket}.'
  except Exception as error:  # gcsfs raises errors of several types.
    refused = str(getattr(error, 'code', '')) in ('401', '403')
    if not refused and not str(error).startswith('Forbidden'):
      raise
    return (
      f'a permission is missing: {" ".join(str(error).split())}. A run needs'
      ' roles/storage.objectUser and roles/storage.legacyBucketReader on'
      f' gs://{bucket}.'
    )
  return ''
