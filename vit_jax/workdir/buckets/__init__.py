"""Work directories in Google Cloud Storage, `gs://BUCKET/PATH`.

They are as safe as on a local disk. `filesystem` retries requests while the
service does not answer. `lease` replaces file locks. gcsfs is imported only if
a bucket is used.
"""

import os

# Seconds for which each request is tried again. A run sets this to its
# `checkpoint.timeout`.
patience = 60.0


def register() -> None:
  """Makes fsspec use `filesystem` for `gs://`; call this before its first use.

  `files.absolute` does so for a path in a bucket.
  """
  import fsspec

  for protocol in ('gs', 'gcs'):
    fsspec.register_implementation(
      protocol,
      'vit_jax.workdir.buckets.filesystem.FileSystem',
      clobber=True,
    )


def is_store(path: str | os.PathLike) -> bool:
  """Returns whether a path is in an object store, which cannot append."""
  return '://' in os.fspath(path)


def is_bucket(path: str | os.PathLike) -> bool:
  """Returns whether a path is in Google Cloud Storage."""
  return os.fspath(path).startswith('gs://')


def split(path: str | os.PathLike) -> tuple[str, str]:
  """`gs://bucket/a/b` -> `('bucket', 'a/b')`."""
  bucket, _, name = os.fspath(path).removeprefix('gs://').partition('/')
  return bucket, name
