"""Work directories in Google Cloud Storage, `gs://BUCKET/PATH`.

They are as safe as on a local disk. `filesystem` retries requests while the
service does not answer. `lease` replaces file locks. gcsfs is imported only if
a bucket is used.
"""

import contextlib
import contextvars
import math
import os
from collections.abc import Iterator

# Seconds for which each request is tried again. A run sets this to its
# `checkpoint.timeout`.
patience = 60.0
_own_patience = contextvars.ContextVar('own_patience', default=math.inf)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
  """Lowers the patience inside, for requests of this thread only."""
  token = _own_patience.set(seconds)
  try:
    yield
  finally:
    _own_patience.reset(token)


def limit() -> float:
  """Returns the patience with a request of this thread, in seconds."""
  # fsspec carries the context of the thread into its own thread.
  return min(patience, _own_patience.get())


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
