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
