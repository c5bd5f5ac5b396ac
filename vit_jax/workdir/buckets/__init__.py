"""Work directories in Google Cloud Storage, `gs://BUCKET/PATH`.

They are to be as safe as on a local disk. `filesystem` waits for a service that
does not answer, `preflight` asks for what a run needs before it begins,
`parts` keeps files that grow, which a bucket does not have, and `lease` does
what a lock does elsewhere. Without a bucket none of this is imported.
"""

import os

# Seconds for which each request is tried again. A run has its own limit,
# `checkpoint.timeout`.
patience = 60.0


def register() -> None:
  """Makes `gs://` what `filesystem` has, once it is used."""
  try:
    import fsspec
  except ImportError:  # Where only `vit_jax.launch` is used.
    return
  for protocol in ('gs', 'gcs'):
    fsspec.register_implementation(
      protocol,
      'vit_jax.workdir.buckets.filesystem.FileSystem',
      clobber=True,
      errtxt='gs:// paths need gcsfs: pip install "vit-paper-jax[gcs]"',
    )


def is_store(path: str | os.PathLike) -> bool:
  """Whether a path is in an object store, where no file can be appended to."""
  return '://' in os.fspath(path)


def is_bucket(path: str | os.PathLike) -> bool:
  """Whether a path is in Google Cloud Storage."""
  return os.fspath(path).startswith('gs://')


def split(path: str | os.PathLike) -> tuple[str, str]:
  """`gs://bucket/a/b` -> `('bucket', 'a/b')`."""
  bucket, _, name = os.fspath(path).removeprefix('gs://').partition('/')
  return bucket, name
