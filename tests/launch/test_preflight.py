"""Guards: no slice is rented for a run that may not write to its bucket."""

import pytest

from tests.launch import bucket
from tests.launch.slice_b16 import QUEUE, QUOTED, TPU, call, queue_row
from vit_jax.launch import preflight
from vit_jax.launch import shell as shell_lib

WORKDIR = 'gs://bucket/runs/b16'
BOTH = ('roles/storage.objectUser', 'roles/storage.legacyBucketReader')


def check(workdir=WORKDIR, account=bucket.COMPUTE):
  preflight.check(
    shell_lib.Shell(False), workdir, 'my-project', lambda: account
  )


def refused(**others):
  with pytest.raises(ValueError, match='Nothing was rented') as error:
    check(**others)
  return str(error.value)


def test_the_preflight_asks_these_questions(cloud):
  check()
  assert cloud.lines == bucket.QUESTIONS


def test_a_missing_bucket_is_refused(cloud):
  cloud.answer('gcloud storage buckets describe', code=1)
  message = refused()
  assert f'={WORKDIR}: the bucket gs://bucket does not exist' in message
  assert 'Nothing was rented' in message


def test_the_role_object_user_alone_is_not_enough(cloud):
  """The role lacks storage.buckets.get, which saving and restoring need."""
  bucket.grant(cloud, BOTH[0], members=[bucket.COMPUTE])
  message = refused()
  assert 'seems to lack storage.buckets.get on gs://bucket' in message
  assert message.count('\n') == 2
  for role in BOTH:
    assert (
      'gcloud storage buckets add-iam-policy-binding gs://bucket'
      f' --role={role} --member={bucket.COMPUTE}'
    ) in message


@pytest.mark.parametrize('member', [bucket.COMPUTE, 'allAuthenticatedUsers'])
def test_grants_of_the_project_count(cloud, member):
  bucket.grant(cloud, members=[])
  bucket.grant(cloud, *BOTH, members=[member], command=bucket.PROJECT_POLICY)
  check()


def test_bucket_grants_to_project_roles_count(cloud):
  bucket.grant(cloud, *BOTH, members=['projectEditor:my-project'])
  assert 'seems to lack' in refused()
  bucket.grant(
    cloud,
    'roles/editor',
    members=[bucket.COMPUTE],
    command=bucket.PROJECT_POLICY,
  )
  check()


@pytest.mark.parametrize(
  'role, words',
  [
    ('projects/p/roles/own', 'own --project=p'),
    ('organizations/7/roles/own', 'own --organization=7'),
  ],
)
def test_permissions_of_custom_roles_are_read(cloud, role, words):
  bucket.grant(cloud, role, members=[bucket.COMPUTE])
  cloud.answer(
    f'gcloud iam roles describe {words} ', ';'.join(preflight.NEEDED) + '\n'
  )
  check()


def test_unreadable_policies_are_not_an_error(cloud, capfd):
  cloud.answer(bucket.POLICY, code=1)
  check()
  assert 'permissions on gs://bucket could not' in capfd.readouterr().out


# In tpu_vm.py (test_gke.py tests it in gke.py) --------------------------------


def fails(line):
  with pytest.raises(SystemExit) as error:
    call(line)
  return error.value.code


CREATE = f'create --name=b16 --accelerator=v4-32 --yes --workdir={WORKDIR}'
WATCH = f'watch --name=b16 --accelerator=v4-32 --yes --poll=0 -- {QUOTED}'


def test_create_with_a_work_directory(offered):
  call(CREATE)
  describe, *others = bucket.QUESTIONS
  assert offered.lines[-7:-1] == [describe, bucket.NUMBER, *others]
  assert ' queued-resources create ' in offered.lines[-1]


@pytest.mark.parametrize('line', [CREATE, WATCH])
def test_no_slice_is_requested_without_a_bucket(offered, archive, line):
  offered.answer('gcloud storage buckets describe', code=1)
  # Without the check, `watch` would request the slice, which then fails.
  offered.answer(QUEUE, [], [queue_row('b16', 'FAILED')])
  assert 'does not exist' in fails(line)
  assert not any(f'{TPU} queued-resources c' in line for line in offered.lines)


def test_an_existing_slice_needs_no_check(cloud, archive):
  cloud.answer(QUEUE, [queue_row('b16', 'ACTIVE')])
  cloud.answer('gcloud compute tpus tpu-vm list', [])
  assert 'there is no TPU VM b16' in fails(WATCH)
  assert not any('storage' in line for line in cloud.lines)
