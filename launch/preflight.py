"""Looks, before a slice is rented, whether a run could write to its bucket.

What is granted on a folder or an organization, to a group, or under a
condition is not seen: what is missing may be there all the same.
"""

from collections.abc import Callable

from vit_jax.launch import shell as shell_lib

# What the program asks of the bucket. Of the usual roles only those for
# buckets have the first; those for objects have the others.
NEEDED = (
  'storage.buckets.get',
  'storage.objects.create',
  'storage.objects.delete',
  'storage.objects.get',
  'storage.objects.list',
)


def compute_account(shell: shell_lib.Shell, project: str) -> str:
  """Compute Engine's default account, which machines have unless told."""
  number = _number(shell, project)
  return f'serviceAccount:{number}-compute@developer.gserviceaccount.com'


def pod_account(shell: shell_lib.Shell, project: str, name: str) -> str:
  """What pods of GKE are to the rest of Google Cloud.

  Args:
    shell: asks.
    project: of the cluster.
    name: of the service account in Kubernetes, in the default namespace.
  """
  return (
    'principal://iam.googleapis.com/projects/'
    f'{_number(shell, project)}/locations/global/workloadIdentityPools/'
    f'{project}.svc.id.goog/subject/ns/default/sa/{name}'
  )


def project_of_gcloud(shell: shell_lib.Shell) -> str:
  """The project that gcloud is set to, by $CLOUDSDK_CORE_PROJECT too.

  Raises:
    ValueError: it is set to none.
  """
  found = shell.read(['gcloud', 'config', 'get', 'core/project']).strip()
  if not found and not shell.dry_run:
    raise ValueError(
      'gcloud is set to no project, whose grants are to be looked at: set'
      ' $CLOUDSDK_CORE_PROJECT, or pass --no_preflight.'
    )
  return found or 'PROJECT'


def check(
  shell: shell_lib.Shell,
  workdir: str,
  project: str,
  find_account: Callable[[], str],
) -> None:
  """Checks that the bucket is there and the account may use it.

  Args:
    shell: asks.
    workdir: of the run; looked at only if it is gs://.
    project: whose grants count besides the bucket's own.
    find_account: whose rights these are, as IAM calls it, such as
      `serviceAccount:NAME`.

  Raises:
    ValueError: no bucket, or rights that are missing; says what grants them.
  """
  if not workdir.startswith('gs://'):
    return
  bucket = '/'.join(workdir.split('/')[:3])
  try:
    shell.read(['gcloud', 'storage', 'buckets', 'describe', bucket])
  except shell_lib.CommandError as error:
    raise ValueError(
      f'--workdir={workdir}: the bucket {bucket} is not there, or you may not'
      ' look at it. Nothing was rented. Create it in the region of the TPUs'
      ' (launch/README.md, "The bucket"), or pass --no_preflight.'
    ) from error
  try:
    account = find_account()
    missing = _missing(shell, bucket, project, account)
  except shell_lib.CommandError as error:
    shell.say(f'rights on {bucket} could not be read, nor checked ({error}).')
    return
  if missing and not shell.dry_run:
    grants = '\n'.join(
      f'  gcloud storage buckets add-iam-policy-binding {bucket}'
      f' --role=roles/storage.{role} --member={account}'
      for role in ('objectUser', 'legacyBucketReader')
    )
    raise ValueError(
      f'{account} was not seen to have {", ".join(missing)} on {bucket}, and'
      ' the run would end at once. Nothing was rented. Pass --no_preflight if'
      ' it has them through a group, a folder or a condition; these grant'
      f' all:\n{grants}'
    )


def _missing(shell, bucket, project, account) -> list[str]:
  """The rights that the bucket's and the project's grants do not give."""
  policies = [
    shell.read_json(['gcloud', *words])
    for words in (
      ('storage', 'buckets', 'get-iam-policy', bucket),
      ('projects', 'get-iam-policy', project),
    )
  ]
  members = {account, 'allUsers', 'allAuthenticatedUsers'}
  found = _roles(policies[1], members)
  # A bucket may grant to all who have one of these roles in the project.
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
  """What names it to gcloud: `roles/X`, or `projects/P/roles/X` in pieces."""
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
