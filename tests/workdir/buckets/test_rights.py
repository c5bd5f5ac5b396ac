"""Guards: every missing right on a bucket is named before a run begins."""

import pytest

from vit_jax.workdir.buckets import rights


def test_check_passes_if_all_rights_are_granted(bucket):
  rights.check('gs://bucket/run')
  assert bucket.names() == []
  rights.check('/a/folder')


@pytest.mark.parametrize(
  'right',
  [
    *('storage.buckets.get', 'storage.objects.list', 'storage.objects.create'),
    *('storage.objects.get', 'storage.objects.delete'),
  ],
)
def test_a_missing_right_is_named(bucket, right):
  bucket.denied = {right}
  with pytest.raises(ValueError, match='--workdir=gs://bucket/run') as error:
    rights.check('gs://bucket/run')
  first, second = str(error.value).split('\n')
  assert f'The caller does not have {right}.' in first
  assert 'roles/storage.objectUser and roles/storage.legacy' in second
  assert 'gcloud storage buckets add-iam-policy-binding gs://bucket' in second


def test_a_missing_bucket_is_named(bucket):
  with pytest.raises(ValueError, match='there is no bucket gs://another'):
    rights.check('gs://another/run')
