"""Guards: every missing right on a bucket is named before a run begins."""

import pytest

from vit_jax.workdir.buckets import rights


def test_check_passes_if_all_rights_are_granted(bucket):
  rights.check('gs://bucket/run')
  assert bucket.names() == []
  assert bucket.requests['write'] == 2
  assert bucket.requests['bucket'] == 2  # Orbax asks once, too.
  rights.check('/a/folder')


@pytest.mark.parametrize(
  ('right', 'role'),
  [
    ('storage.buckets.get', 'roles/storage.legacyBucketReader'),
    ('storage.objects.list', 'roles/storage.objectUser'),
    ('storage.objects.create', 'roles/storage.objectUser'),
    ('storage.objects.get', 'roles/storage.objectUser'),
    ('storage.objects.delete', 'roles/storage.objectUser'),
  ],
)
def test_a_missing_right_is_named(bucket, right, role):
  bucket.denied = {right}
  with pytest.raises(ValueError, match='gs://bucket/run') as error:
    rights.check('gs://bucket/run')
  first, second = str(error.value).split('\n')
  assert first == (
    f'--workdir=gs://bucket/run: a run needs {right} on gs://bucket, which is'
    f' missing ({first.partition("missing (")[2]}'
  )
  assert f'The caller does not have {right}.' in first
  assert second.startswith(f'{role} grants that: gcloud storage buckets add-')


def test_all_missing_rights_are_one_error(bucket):
  bucket.denied = {'storage.buckets.get', 'storage.objects.create'}
  with pytest.raises(
    ValueError,
    match=r'needs storage\.buckets\.get, storage\.objects\.create on gs://b',
  ):
    rights.check('gs://bucket/run')


def test_a_missing_bucket_is_named(bucket):
  with pytest.raises(ValueError, match='there is no bucket gs://another'):
    rights.check('gs://another/run')
