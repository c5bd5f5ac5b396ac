"""The schema of the JobSet fields that the manifests here use.

It follows jobset.x-k8s.io_jobsets.yaml of JobSet v0.12.0 (2026-05) and
Kubernetes 1.36. A field maps to its subfields (for a list: the subfields of one
element), to a tuple of its allowed values, or to None if it is not checked.
"""

_META = dict.fromkeys(('name', 'annotations', 'labels', 'namespace'))
_CONTAINER = dict.fromkeys(
  (
    *('args', 'command', 'env', 'envFrom', 'image', 'imagePullPolicy'),
    *('lifecycle', 'livenessProbe', 'name', 'ports', 'readinessProbe'),
    *('resources', 'restartPolicy', 'securityContext', 'startupProbe'),
    *('volumeDevices', 'volumeMounts', 'workingDir'),
  )
)
_POD = {
  **dict.fromkeys(
    (
      *('activeDeadlineSeconds', 'affinity', 'hostIPC', 'hostNetwork'),
      *('hostPID', 'hostname', 'imagePullSecrets', 'nodeSelector'),
      *('priorityClassName', 'schedulerName', 'securityContext'),
      *('serviceAccountName', 'subdomain', 'terminationGracePeriodSeconds'),
      *('tolerations', 'topologySpreadConstraints', 'volumes'),
    )
  ),
  'containers': _CONTAINER,
  'initContainers': _CONTAINER,
  'dnsPolicy': ('ClusterFirstWithHostNet', 'ClusterFirst', 'Default', 'None'),
  'restartPolicy': ('Never', 'OnFailure'),
}
_JOB = {
  **dict.fromkeys(
    (
      *('activeDeadlineSeconds', 'backoffLimit', 'backoffLimitPerIndex'),
      *('completions', 'managedBy', 'maxFailedIndexes', 'parallelism'),
      *('podReplacementPolicy', 'successPolicy', 'suspend'),
      'ttlSecondsAfterFinished',
    )
  ),
  'completionMode': ('Indexed', 'NonIndexed'),
  'podFailurePolicy': {
    'rules': {
      'action': ('Count', 'FailIndex', 'FailJob', 'Ignore'),
      'onExitCodes': {
        'containerName': None,
        'operator': ('In', 'NotIn'),
        'values': None,
      },
      'onPodConditions': {'type': None, 'status': None},
    },
  },
  'template': {'metadata': _META, 'spec': _POD},
}
JOBSET = {
  'apiVersion': ('jobset.x-k8s.io/v1alpha2',),
  'kind': ('JobSet',),
  'metadata': _META,
  'spec': {
    **dict.fromkeys(
      (
        *('coordinator', 'managedBy', 'startupPolicy', 'successPolicy'),
        *('suspend', 'ttlSecondsAfterFinished', 'volumeClaimPolicies'),
      )
    ),
    'failurePolicy': {
      'maxRestarts': None,
      'restartStrategy': None,
      'rules': {
        'name': None,
        'action': (
          *('FailJobSet', 'RestartJobSet', 'RestartJobSetAndIgnoreMaxRestarts'),
          *('RestartJob', 'RestartJobAndIgnoreMaxRestarts'),
        ),
        'onJobFailureReasons': (
          *('BackoffLimitExceeded', 'DeadlineExceeded', 'FailedIndexes'),
          *('MaxFailedIndexesExceeded', 'PodFailurePolicy'),
        ),
        'onJobFailureMessagePatterns': None,
        'targetReplicatedJobs': None,
      },
    },
    'network': {
      'enableDNSHostnames': None,
      'publishNotReadyAddresses': None,
      'subdomain': None,
    },
    'replicatedJobs': {
      'dependsOn': None,
      'groupName': None,
      'name': None,
      'replicas': None,
      'template': {'metadata': _META, 'spec': _JOB},
    },
  },
}


def problems(value, schema=None, where='') -> list[str]:
  """Returns the unknown fields and values, each with its path."""
  schema = JOBSET if schema is None and not where else schema
  if isinstance(value, list):
    return [p for one in value for p in problems(one, schema, where)]
  if schema is None:
    return []
  if isinstance(schema, tuple):
    return [] if value in schema else [f'{where}: {value!r}']
  if not isinstance(value, dict):
    return [f'{where}: {value!r} is no object']
  found = []
  for key, one in value.items():
    place = f'{where}.{key}'
    if key in schema:
      found += problems(one, schema[key], place) if schema[key] else []
    else:
      found.append(f'{place}: no such field')
  return found
