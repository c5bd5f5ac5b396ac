"""Guards: requests wait for a service that does not answer, but not forever."""

import time

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets

gcsfs = pytest.importorskip('gcsfs')
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
