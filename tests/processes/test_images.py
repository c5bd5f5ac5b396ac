"""Guards: the devices get the same images on any number of processes."""

import collections
import json

import pytest

from tests.processes.launch import launch

# Three epochs of 101 images; epochs end within a batch.
BATCH, STEPS = 24, 13
MESHES = {
  'data': dict(data=-1),
  'fsdp': dict(data=1, fsdp=-1),
  'tensor': dict(data=1, tensor=-1),
  'mixed': dict(data=-1, fsdp=2, tensor=2),
  'resumed': dict(data=-1, start_step=5),
}


def _see(tmp_path, name, processes, devices, **arguments):
  """Returns mesh -> step -> {'image': row -> hashes on all devices}."""
  out = str(tmp_path / name)
  arguments = dict(steps=STEPS, batch_size=BATCH, meshes=MESHES) | arguments
  launch(processes, devices, task='images', out=out, **arguments)
  merged = {
    mesh: [
      {'image': collections.defaultdict(list), 'label': {}}
      for _ in range(arguments['steps'])
    ]
    for mesh in arguments['meshes']
  }
  for i in range(processes):
    with open(f'{out}.{i}.json') as f:
      for mesh, steps in json.load(f).items():
        for step, keys in enumerate(steps):
          for row, digests in keys['image'].items():
            merged[mesh][step]['image'][int(row)] += digests
          for row, digests in keys['label'].items():
            merged[mesh][step]['label'][int(row)] = digests[0]
  return merged


def _rows(steps):
  """Returns each step's images in order; checks that all devices agree."""
  result = []
  for step in steps:
    assert sorted(step['image']) == list(range(BATCH))
    assert all(len(set(digests)) == 1 for digests in step['image'].values())
    result.append([step['image'][row][0] for row in range(BATCH)])
  return result


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """Returns the images of every step with one process and one device."""
  seen = _see(
    *(tmp_path_factory.mktemp('one'), 'one', 1, 1),
    meshes={'data': dict(data=1)},
  )
  return seen['data']


# The number of devices that hold each row: the size of the `tensor` axis.
COPIES = {'data': 1, 'fsdp': 1, 'tensor': 4, 'mixed': 2, 'resumed': 1}


@pytest.mark.gate
def test_images_of_every_step(alone, tmp_path):
  seen = _see(tmp_path, 'seen', 2, 2)
  expected = _rows(alone)
  for mesh, steps in seen.items():
    start = MESHES[mesh].get('start_step', 0)
    steps = steps[: STEPS - start]
    assert _rows(steps) == expected[start:], mesh
    for step, other in zip(steps, alone[start:], strict=True):
      assert step['label'] == other['label']
      copies = {len(digests) for digests in step['image'].values()}
      assert copies == {COPIES[mesh]}, mesh
  flat = [digest for step in expected for digest in step]
  # Each epoch crops an image differently, so almost all images are unique.
  assert len(set(flat)) > 250
