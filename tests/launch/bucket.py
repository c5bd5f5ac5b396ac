"""gcloud's answers on a bucket and on the accounts that may use it."""

COMPUTE = 'serviceAccount:123-compute@developer.gserviceaccount.com'
POD = (
  'principal://iam.googleapis.com/projects/123/locations/global/'
  'workloadIdentityPools/my-project.svc.id.goog/subject/ns/default/sa/default'
)
DESCRIBE = 'gcloud storage buckets describe gs://bucket'
POLICY = 'gcloud storage buckets get-iam-policy gs://bucket --format=json'
PROJECT_POLICY = 'gcloud projects get-iam-policy my-project --format=json'
NUMBER = "gcloud projects describe my-project '--format=value(projectNumber)'"
ROLE = (
  'gcloud iam roles describe roles/storage.{} '
  "'--format=value(includedPermissions)'"
)
RIGHTS = {
  'roles/storage.objectUser': 'storage.folders.get;storage.objects.create;'
  'storage.objects.delete;storage.objects.get;storage.objects.list',
  'roles/storage.legacyBucketReader': 'storage.buckets.get;'
  'storage.objects.list',
  'roles/storage.objectViewer': 'storage.objects.get;storage.objects.list',
  'roles/editor': 'storage.buckets.list;tpu.nodes.create',
}
# The commands that check a bucket whose policy grants both roles, in order.
QUESTIONS = [
  DESCRIBE,
  POLICY,
  PROJECT_POLICY,
  ROLE.format('legacyBucketReader'),
  ROLE.format('objectUser'),
]


def let_in(cloud, *members: str) -> None:
  """Makes the bucket grant `members` both roles that a run needs."""
  cloud.answer('gcloud projects describe my-project', '123\n')
  cloud.answer('gcloud config get core/project', 'my-project\n')
  for role, rights in RIGHTS.items():
    cloud.answer(f'gcloud iam roles describe {role} ', f'{rights}\n')
  grant(
    cloud,
    *('roles/storage.objectUser', 'roles/storage.legacyBucketReader'),
    members=members,
  )


def grant(cloud, *roles: str, members, command=POLICY, **others) -> None:
  """Sets the policy that a command reads.

  Args:
    cloud: the stand-in that answers the command.
    roles: the roles to grant.
    members: the members that get these roles.
    command: the command that reads the policy.
    others: further fields of each binding, such as a condition.
  """
  bindings = [dict(role=r, members=[*members], **others) for r in roles]
  cloud.answer(command, {'bindings': bindings})
