"""Guards: no slice is rented for a run that may not write to its bucket."""

import pytest

from tests.launch import conftest
from tests.launch.conftest import ACCOUNT, ROLES, RUN, call
from vit_jax.launch import gke, preflight
from vit_jax.launch import shell as shell_lib

DESCRIBE = 'gcloud storage buckets describe'
GKE = f'run --name=b --cluster=c --image=i --accelerator=v6e-16 -- {RUN}'
CREATE = 'create --name=b16 --accelerator=v4-8 --yes --workdir=gs://bucket/b'
WATCH = f'watch --name=b16 --accelerator=v4-8 --yes --poll=0 -- {RUN}'


def check(account=''):
  shell = shell_lib.Shell(False)
  preflight.check(shell, 'gs://bucket/runs', 'my-project', account)


@pytest.mark.parametrize('account', ['', ACCOUNT.partition(':')[2]])
def test_the_preflight_asks_these_questions(cloud, account):
  check(account)
  role = 'gcloud iam roles describe roles/storage.{}'
  role += " '--format=value(includedPermissions)'"
  assert [line for line in cloud.lines if 'projectNumber' not in line] == [
    'gcloud storage buckets describe gs://bucket',
    'gcloud storage buckets get-iam-policy gs://bucket --format=json',
    'gcloud projects get-iam-policy my-project --format=json',
    role.format('legacyBucketReader'),
    role.format('objectUser'),
  ]


def test_missing_permissions_are_named_with_the_remedy(cloud):
  """objectUser lacks storage.buckets.get, which saving and restoring need."""
  cloud.grant('roles/storage.objectUser')
  with pytest.raises(ValueError, match='seems to lack') as error:
    check()
  for role in ROLES:
    assert (
      'gcloud storage buckets add-iam-policy-binding gs://bucket'
      f' --role={role} --member={ACCOUNT}'
    ) in str(error.value)
  cloud.grant(*ROLES, condition={'title': 'x'})
  with pytest.raises(ValueError, match='seems to lack'):
    check()


@pytest.mark.parametrize('member', [ACCOUNT, 'allAuthenticatedUsers'])
def test_grants_of_the_project_count(cloud, member):
  cloud.grant()
  cloud.grant(*ROLES, member=member, on='projects')
  check()


def test_bucket_grants_to_project_roles_count(cloud):
  cloud.grant(*ROLES, member='projectEditor:my-project')
  with pytest.raises(ValueError, match='seems to lack'):
    check()
  cloud.grant('roles/editor', on='projects')
  check()


@pytest.mark.parametrize(
  'role, words',
  [
    ('projects/p/roles/own', 'own --project=p'),
    ('organizations/7/roles/own', 'own --organization=7'),
  ],
)
def test_permissions_of_custom_roles_are_read(cloud, role, words):
  cloud.grant(role)
  rights = ';'.join(preflight.NEEDED)
  cloud.answer(f'gcloud iam roles describe {words} ', rights)
  check()


def test_unreadable_policies_are_not_an_error(cloud, capsys):
  cloud.answer('gcloud projects get-iam-policy', code=1)
  check()
  assert 'were not checked' in capsys.readouterr().out


@pytest.mark.parametrize(
  'line, program',
  [(CREATE, conftest.tpu_vm), (WATCH, conftest.tpu_vm), (GKE, gke)],
)
def test_nothing_is_rented_without_a_bucket(cloud, line, program):
  cloud.answer(DESCRIBE, code=1)
  assert 'does not exist' in call(line, program)
  assert cloud.acts == []


@pytest.mark.parametrize('line', [f'{CREATE} --no_preflight', WATCH])
def test_what_needs_no_check(cloud, line):
  """Neither does a slice that is there already."""
  cloud.slice('ACTIVE', node='')
  call(line)
  assert not any('storage' in line for line in cloud.lines)
