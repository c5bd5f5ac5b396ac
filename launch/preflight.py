"""Checks, before a slice is rented, whether a run can write to its bucket.

The check does not see grants on a folder or an organization, to a group, or
under a condition, so it may report a permission as missing that the run has.
"""

from collections.abc import Callable

from vit_jax.launch import shell as shell_lib

# The permissions that a run needs on the bucket. Of the usual roles, only those
# for buckets include the first; those for objects include the others.
NEEDED = (
  'storage.buckets.get',
  'storage.objects.create',
  'storage.objects.delete',
  'storage.objects.get',
  'storage.objects.list',
)


def compute_account(shell: shell_lib.Shell, project: str) -> str:
  """Returns Compute Engine's default account, the machines' default."""
  number = _number(shell, project)
  return f'serviceAccount:{number}-compute@developer.gserviceaccount.com'


def pod_account(shell: shell_lib.Shell, project: str, name: str) -> str:
  """Returns the IAM member that pods of GKE act as.

  Args:
    shell: runs gcloud.
    project: project of the cluster.
    name: the Kubernetes service account, in the default namespace.
  """
  return (
    'principal://iam.googleapis.com/projects/'
    f'{_number(shell, project)}/locations/global/workloadIdentityPools/'
    f'{project}.svc.id.goog/subject/ns/default/sa/{name}'
  )


def project_of_gcloud(shell: shell_lib.Shell) -> str:
  """Returns gcloud's current project, which $CLOUDSDK_CORE_PROJECT may set.

  Raises:
    ValueError: gcloud has no current project.
  """
  found = shell.read(['gcloud', 'config', 'get', 'core/project']).strip()
  if not found and not shell.dry_run:
    raise ValueError(
      'gcloud is set to no project, so the project grants of the run cannot be'
      ' checked: set $CLOUDSDK_CORE_PROJECT, or pass --no_preflight.'
    )
  return found or 'PROJECT'


def check(
  shell: shell_lib.Shell,
  workdir: str,
  project: str,
  find_account: Callable[[], str],
) -> None:
  """Checks that the bucket exists and that the account may use it.

  Args:
    shell: runs gcloud.
    workdir: the run's work directory; checked only if it is gs://.
    project: project whose grants count in addition to the bucket's own.
    find_account: returns the account to check as an IAM member, such as
      `serviceAccount:NAME`.

  Raises:
    ValueError: there is no bucket, or permissions are missing; the message
      gives the commands that grant them.
  """
  if not workdir.startswith('gs://'):
    return
  bucket = '/'.join(workdir.split('/')[:3])
  try:
    shell.read(['gcloud', 'storage', 'buckets', 'describe', bucket])
  except shell_lib.CommandError as error:
    raise ValueError(
      f'--workdir={workdir}: the bucket {bucket} does not exist, or you may not'
      ' read it. Nothing was rented. Create it in the region of the TPUs'
      ' (launch/README.md, "A bucket"), or pass --no_preflight.'
    ) from error
  try:
    account = find_account()
    missing = _missing(shell, bucket, project, account)
  except shell_lib.CommandError as error:
    shell.say(
      f'permissions on {bucket} could not be read and were not checked'
      f' ({error}).'
    )
    return
  if missing and not shell.dry_run:
    grants = '\n'.join(
      f'  gcloud storage buckets add-iam-policy-binding {bucket}'
      f' --role=roles/storage.{role} --member={account}'
      for role in ('objectUser', 'legacyBucketReader')
    )
    raise ValueError(
      f'{account} seems to lack {", ".join(missing)} on {bucket}, without which'
      ' a run ends at once. Nothing was rented. Pass --no_preflight if a group,'
      ' a folder or a condition grants them. Otherwise grant them with:\n'
      f'{grants}'
    )


def _missing(shell, bucket, project, account) -> list[str]:
  """Returns the permissions that the bucket and the project do not grant."""
  policies = [
    shell.read_json(['gcloud', *words])
    for words in (
      ('storage', 'buckets', 'get-iam-policy', bucket),
      ('projects', 'get-iam-policy', project),
    )
  ]
  members = {account, 'allUsers', 'allAuthenticatedUsers'}
  found = _roles(policies[1], members)
  # A bucket may grant a role to everyone with one of these project roles.
  members |= {
    f'project{role.capitalize()}:{project}'
    for role in ('viewer', 'editor', 'owner')
    if f'roles/{role}' in found
  }
  found |= _roles(policies[0], members)
  if shell.dry_run:
    found = {'roles/storage.objectUser'}
  rights: set[str] = set()
  for role in sorted(found):
    text = shell.read(
      [
        *('gcloud', 'iam', 'roles', 'describe', *_role(role)),
        '--format=value(includedPermissions)',
      ]
    )
    rights.update(text.strip().split(';'))
  return [right for right in NEEDED if right not in rights]


def _role(role) -> list[str]:
  """Returns gcloud's arguments for `roles/X` or `projects/P/roles/X`."""
  kind, _, rest = role.partition('/')
  if kind == 'roles':
    return [role]
  owner, _, name = rest.partition('/roles/')
  return [name, f'--{kind.removesuffix("s")}={owner}']


def _roles(policy, members) -> set[str]:
  bindings = policy.get('bindings', []) if policy else []
  return {
    binding['role']
    for binding in bindings
    if members & {*binding.get('members', ())} and not binding.get('condition')
  }


def _number(shell, project) -> str:
  return (
    shell.read(
      [
        *('gcloud', 'projects', 'describe', project),
        '--format=value(projectNumber)',
      ]
    ).strip()
    or 'NUMBER'
  )
