"""Guards: requests wait for a service that does not answer, but not forever."""

import concurrent.futures
import socket
import time

import fsspec
import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets

gcsfs = pytest.importorskip('gcsfs')
filesystem = pytest.importorskip('vit_jax.workdir.buckets.filesystem')
RUN = epath.Path('gs://bucket/run')


def test_nothing_is_cached(bucket):
  (RUN / 'a').write_bytes(b'\r\n\xff')
  assert (RUN / 'a').read_bytes() == b'\r\n\xff'
  assert [path.name for path in RUN.iterdir()] == ['a']
  # This process sees what other processes delete.
  bucket.storage.delete_file('bucket', 'run/a')
  assert not RUN.exists()


def test_requests_survive_an_outage(bucket, caplog):
  (RUN / 'a').write_text('text')
  bucket.fail(1.5)
  assert (RUN / 'a').read_text() == 'text'
  assert bucket.refused > 3
  assert 'Trying again for up to 10 s.' in caplog.text


def test_requests_fail_after_the_patience(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 0.7)
  bucket.fail(60)
  begin = time.monotonic()
  with pytest.raises(errors.StoreError, match=r'no answer for 0\.7 s') as error:
    (RUN / 'a').write_text('text')
  assert time.monotonic() - begin < 3
  assert error.value.exit_code == 76
  # A missing answer does not mean that the file does not exist.
  with pytest.raises(errors.StoreError):
    RUN.exists()


def test_a_silent_service_is_not_waited_for_longer(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 0.5)
  monkeypatch.setattr(filesystem, '_SILENCE', 0.2)
  with socket.create_server(('127.0.0.1', 0)) as silent:
    url = f'http://127.0.0.1:{silent.getsockname()[1]}'
    monkeypatch.setenv('STORAGE_EMULATOR_HOST', url)
    with pytest.raises(errors.StoreError, match=r'no answer for 0\.5 s'):
      (RUN / 'a').write_text('text')
    # A large object takes its time, but not without a byte.
    with pytest.raises(errors.StoreError, match=r'no answer for 0\.5 s'):
      fsspec.filesystem('gs').cat_file('bucket/run/a')


def test_the_patience_of_one_thread_is_its_own(bucket):
  (RUN / 'a').write_text('text')
  with concurrent.futures.ThreadPoolExecutor() as other, buckets.at_most(0.3):
    bucket.fail(1.5)
    found = other.submit((RUN / 'a').read_text)
    with pytest.raises(errors.StoreError, match=r'no answer for 0\.3 s'):
      (RUN / 'a').read_text()
    assert found.result() == 'text'


@pytest.mark.parametrize('code', [401, '401'])
def test_missing_credentials_are_an_error_of_the_system(
  bucket, monkeypatch, code
):
  async def refused(*_, **__):
    raise gcsfs.retry.HttpError({'code': code, 'message': 'Anonymous caller'})

  monkeypatch.setattr(gcsfs.core.GCSFileSystem, '_request', refused)
  with pytest.raises(OSError, match='run/a: Anonymous caller'):
    (RUN / 'a').read_text()


@pytest.mark.parametrize('retryable', [False, True])
def test_credentials_that_cannot_be_renewed(bucket, monkeypatch, retryable):
  google = pytest.importorskip('google.auth.exceptions')

  async def refused(*_, **__):
    raise google.RefreshError('Reauthentication is needed', retryable=retryable)

  monkeypatch.setattr(buckets, 'patience', 1.0)
  monkeypatch.setattr(gcsfs.core.GCSFileSystem, '_request', refused)
  error = errors.StoreError if retryable else google.RefreshError
  with pytest.raises(error, match='Reauthentication is needed'):
    (RUN / 'a').read_text()
