"""Guards: requests wait for a service that does not answer, but not forever."""

import time

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets

gcsfs = pytest.importorskip('gcsfs')
RUN = epath.Path('gs://bucket/run')


def test_files_and_folders(bucket):
  assert not RUN.exists()
  content = bytes(range(256)) + b'\r\n\n'
  (RUN / 'a').write_bytes(content)
  assert (RUN / 'a').read_bytes() == content
  assert [path.name for path in RUN.iterdir()] == ['a']
  # Nothing is cached: this process sees what other processes delete.
  bucket.storage.delete_file('bucket', 'run/a')
  assert not RUN.exists()


def test_requests_survive_an_outage(bucket, caplog):
  (RUN / 'a').write_text('text')
  bucket.fail(1.5)
  begin = time.monotonic()
  assert (RUN / 'a').read_text() == 'text'
  assert time.monotonic() - begin > 1.4
  assert bucket.refused > 3
  texts = [record.getMessage() for record in caplog.records]
  assert len(texts) == 2
  assert texts[0].startswith('gs://bucket/run/a: no answer (HttpError: ')
  assert texts[0].endswith('Trying again for up to 10 s.')
  assert texts[1].startswith('The bucket answers again, after ')


def test_requests_fail_after_the_patience(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 0.7)
  bucket.fail(60)
  begin = time.monotonic()
  with pytest.raises(
    errors.StoreError, match=r'^gs://bucket/run/a: no answer for 0.7 s \(Http'
  ) as error:
    (RUN / 'a').write_text('text')
  assert time.monotonic() - begin < 3
  assert error.value.exit_code == 76
  # A missing answer does not mean that the file does not exist.
  with pytest.raises(errors.StoreError):
    RUN.exists()
  with pytest.raises(errors.StoreError):
    RUN.is_dir()


@pytest.mark.parametrize('retryable', [False, True])
def test_credentials_that_cannot_be_renewed(bucket, monkeypatch, retryable):
  google = pytest.importorskip('google.auth.exceptions')
  tries = []

  async def refused(*_, **__):
    tries.append(None)
    raise google.RefreshError('Reauthentication is needed', retryable=retryable)

  monkeypatch.setattr(buckets, 'patience', 1.0)
  monkeypatch.setattr(gcsfs.core.GCSFileSystem, '_request', refused)
  error = errors.StoreError if retryable else google.RefreshError
  with pytest.raises(error, match='Reauthentication is needed'):
    (RUN / 'a').read_text()
  # Only a retryable error is tried again.
  assert (len(tries) > 3) == retryable
