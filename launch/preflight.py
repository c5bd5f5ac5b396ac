"""Checks, before a slice is rented, whether a run can write to its bucket.

The check does not see grants on a folder or an organization, to a group, or
under a condition, so it may report a permission as missing that the run has.
"""

from vit_jax.launch.shell import CommandError, Shell

# The permissions that a run needs on the bucket. Of the usual roles, only those
# for buckets include the first; those for objects include the others.
NEEDED = (
  'storage.buckets.get',
  'storage.objects.create',
  'storage.objects.delete',
  'storage.objects.get',
  'storage.objects.list',
)


def check(shell: Shell, workdir: str, project: str, account: str) -> None:
  """Checks that the bucket exists and that the machines may use it.

  Args:
    shell: runs gcloud.
    workdir: the run's work directory; checked only if it is gs://.
    project: project whose grants count in addition to the bucket's own.
    account: the machines' service account; '': Compute Engine's default.

  Raises:
    ValueError: there is no bucket, or permissions are missing; the message
      gives the commands that grant them.
  """
  if not workdir.startswith('gs://'):
    return
  bucket = '/'.join(workdir.split('/')[:3])
  try:
    shell.read(['gcloud', 'storage', 'buckets', 'describe', bucket])
  except CommandError as error:
    raise ValueError(
      f'--workdir={workdir}: the bucket {bucket} does not exist, or you may not'
      ' read it. Nothing was rented. Create it in the region of the TPUs'
      ' (launch/README.md, "A bucket"), or pass --no_preflight.'
    ) from error
  try:
    member = f'serviceAccount:{account or _default_account(shell, project)}'
    missing = _missing(shell, bucket, project, member)
  except CommandError as error:
    shell.say(
      f'permissions on {bucket} could not be read and were not checked'
      f' ({error}).'
    )
    return
  if missing and not shell.dry_run:
    grants = '\n'.join(
      f'  gcloud storage buckets add-iam-policy-binding {bucket}'
      f' --role=roles/storage.{role} --member={member}'
      for role in ('objectUser', 'legacyBucketReader')
    )
    raise ValueError(
      f'{member} seems to lack {", ".join(missing)} on {bucket}, without which'
      ' a run ends at once. Nothing was rented. Pass --no_preflight if a group,'
      ' a folder or a condition grants them. Otherwise grant them with:\n'
      f'{grants}'
    )


def _default_account(shell, project) -> str:
  number = shell.read(
    [
      *('gcloud', 'projects', 'describe', project),
      '--format=value(projectNumber)',
    ]
  )
  return f'{number.strip()}-compute@developer.gserviceaccount.com'


def _missing(shell, bucket, project, member) -> list[str]:
  """Returns the permissions that the bucket and the project do not grant."""
  on_bucket, on_project = (
    shell.read_json(['gcloud', *words])
    for words in (
      ('storage', 'buckets', 'get-iam-policy', bucket),
      ('projects', 'get-iam-policy', project),
    )
  )
  members = {member, 'allUsers', 'allAuthenticatedUsers'}
  found = _roles(on_project, members)
  # A bucket may grant a role to everyone with one of these project roles.
  members |= {
    f'project{role.capitalize()}:{project}'
    for role in ('viewer', 'editor', 'owner')
    if f'roles/{role}' in found
  }
  found |= _roles(on_bucket, members)
  if shell.dry_run:
    found = {'roles/storage.objectUser'}
  rights: set[str] = set()
  for role in sorted(found):
    kind, _, rest = role.partition('/')
    words = [role]
    if kind != 'roles':  # Such as projects/P/roles/X.
      owner, _, name = rest.partition('/roles/')
      words = [name, f'--{kind.removesuffix("s")}={owner}']
    text = shell.read(
      [
        *('gcloud', 'iam', 'roles', 'describe', *words),
        '--format=value(includedPermissions)',
      ]
    )
    rights.update(text.strip().split(';'))
  return [right for right in NEEDED if right not in rights]


def _roles(policy, members) -> set[str]:
  return {
    binding['role']
    for binding in (policy or {}).get('bindings', [])
    if members & {*binding.get('members', ())} and not binding.get('condition')
  }
