"""Guards: the manifest has only fields that JobSet and Kubernetes know."""

import copy

import pytest

from tests.launch import jobset_schema
from tests.launch.test_manifest import parts, render

MANIFESTS = [
  dict(),
  dict(accelerator='v4:2x2x4', num_slices=3, spot=True),
  dict(flex_start=True, host_network=True, variables=['A=b']),
  dict(bucket='ours', service_account='trainer', huge_pages=False),
]


@pytest.fixture(autouse=True)
def _root(cloud):
  """Moves to the repository's root, which has the configs."""


@pytest.mark.parametrize('flags', MANIFESTS)
def test_fields(flags):
  assert jobset_schema.problems(render(**flags)) == []


@pytest.mark.parametrize(
  'path, value, problem',
  [
    ('spec.failurePolicies', {}, '.spec.failurePolicies: no such field'),
    ('spec.failurePolicy.rules', [{'action': 'Restart'}], "'Restart'"),
    ('spec.network', 'host', "'host' is no object"),
    ('apiVersion', 'jobset.x-k8s.io/v1', 'jobset.x-k8s.io/v1'),
  ],
)
def test_a_field_that_is_not_recorded_is_noticed(path, value, problem):
  jobset = copy.deepcopy(render())
  *folders, last = path.split('.')
  place = jobset
  for folder in folders:
    place = place[folder]
  place[last] = value
  (found,) = jobset_schema.problems(jobset)
  assert problem in found


@pytest.mark.parametrize('flags', MANIFESTS)
def test_the_job_fits_the_schemas_of_kubernetes(flags):
  """Kubernetes's own schemas check every field."""
  validate = pytest.importorskip(
    'kubernetes_validate', reason='pip install kubernetes-validate'
  )
  job, _, _ = parts(render(**flags))
  manifest = dict(apiVersion='batch/v1', kind='Job', metadata={'name': 'a'})
  validate.validate(manifest | {'spec': job}, '1.36', strict=True)
  job['template']['spec']['hostNetworks'] = True
  with pytest.raises(validate.ValidationError):
    validate.validate(manifest | {'spec': job}, '1.36', strict=True)


@pytest.mark.parametrize('flags', MANIFESTS)
def test_the_jobset_fits_the_models_of_its_api(flags):
  """The models are generated from JobSet's own API."""
  models = pytest.importorskip(
    'kubeflow_trainer_api.models', reason='pip install kubeflow-trainer-api'
  )
  jobset = render(**flags)
  read = models.JobsetV1alpha2JobSet.from_dict(copy.deepcopy(jobset))
  # The model drops fields that it does not know.
  known = read.to_dict()
  for port in parts(known)[2]['ports']:
    del port['protocol']  # The model adds this default.
  assert known == jobset
