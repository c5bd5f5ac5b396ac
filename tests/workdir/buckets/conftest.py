"""Provides an empty fake bucket, `gs://bucket`, to each test."""

import fsspec
import pytest
from etils.epath import backend


@pytest.fixture(scope='session')
def server():
  """Returns one server for all tests, as TensorStore reads its URL once."""
  pytest.importorskip('gcsfs')
  pytest.importorskip('gcp_storage_emulator')
  from tests.workdir.buckets import fake

  bucket = fake.Bucket()
  yield bucket
  bucket.close()


@pytest.fixture
def bucket(server, monkeypatch):
  """Returns an empty, working bucket; clears all caches of this process."""
  from orbax.checkpoint import test_utils

  from vit_jax.workdir import buckets
  from vit_jax.workdir.buckets import filesystem

  buckets.register()
  server.reset()
  for name, value in server.environment().items():
    monkeypatch.setenv(name, value)
  for protocol in ('gs', 'gcs'):
    monkeypatch.setitem(fsspec.config.conf, protocol, {'token': 'anon'})
  monkeypatch.setattr(buckets, 'patience', 10.0)
  monkeypatch.setattr(filesystem, '_LONGEST_PAUSE', 0.2)
  filesystem.FileSystem.clear_instance_cache()
  backend.fsspec_backend._get_filesystem.cache_clear()
  test_utils.gcs_utils.get_bucket.cache_clear()
  yield server
  server.reset()
