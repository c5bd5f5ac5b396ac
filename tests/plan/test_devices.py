"""Guards: slices have the right devices, and a mesh is checked against them."""

import jax
import pytest

from vit_jax import config as config_lib
from vit_jax.plan import devices


@pytest.mark.parametrize(
  'text, count, chips, cores, device',
  [
    ('v3:16x16', 512, 256, 512, 'TensorCore'),
    ('v3-512', 512, 256, 512, 'TensorCore'),
    ('v4:2x2x2', 8, 8, 16, 'chip of 2 TensorCores'),
    ('v5p-16', 8, 8, 16, 'chip of 2 TensorCores'),
    ('v5e:2x4', 8, 8, 8, 'chip'),
    ('2xv5e:16x16', 512, 512, 512, 'chip'),
    ('tpu7x:2x2x1', 8, 4, 8, 'TensorCore'),
  ],
)
def test_slices(text, count, chips, cores, device):
  target = devices.parse(text)
  assert target.devices == count
  assert target.chips == chips
  assert target.cores == cores
  assert target.device == device


@pytest.mark.parametrize(
  'text, message',
  [
    ('v3:3x3', r"'v3:3x3' is not a known TPU slice.* v3:2x2, v3-8"),
    ('2xv9:2x2', r"'v9:2x2' is not a known TPU slice"),
    ('0xv3:2x2', 'number of slices must be at least one'),
  ],
)
def test_unknown_slices(text, message):
  with pytest.raises(ValueError, match=message):
    devices.parse(text)


def test_the_mesh_section_over_given_devices():
  config = config_lib.default()
  config.mesh.fsdp = 2
  config.mesh.shard = 'optimizer'
  config.mesh.reduce_dtype = 'float32'
  layout = devices.layout(config, jax.devices()[:4])
  assert dict(layout.mesh.shape) == {'data': 2, 'fsdp': 2, 'tensor': 1}
  assert (layout.shard, layout.gather) == ('optimizer', 'step')
  config.mesh.fsdp = 3
  with pytest.raises(ValueError, match='fsdp=3'):
    devices.layout(config, jax.devices()[:4])
  # A mesh of fewer devices than there are takes the first ones.
  config.mesh.data, config.mesh.fsdp = 2, 1
  assert (
    list(devices.layout(config, jax.devices()).mesh.devices.flat)
    == (jax.devices()[:2])
  )


def test_without_the_compiler(monkeypatch):
  monkeypatch.setattr(devices, 'have_compiler', lambda: False)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[plan\]"'):
    devices.compile_only(devices.parse('v3:2x2'))


def _mesh(batch_size=64, **axes):
  config = config_lib.default()
  config.data.batch_size = batch_size
  config.mesh.update(axes)
  return config


def test_meshes_that_suit_a_slice():
  for slice_, axes in (
    ('v3:2x2', {}),
    ('v3:2x2', {'data': 1, 'fsdp': -1}),
    ('v3:2x2', {'tensor': 2, 'batch_size': 4}),
    ('2xv5e:2x2', {'data': 2, 'fsdp': -1}),
    ('2xv5e:2x2', {'data': -1, 'fsdp': -1}),
  ):
    devices.check(_mesh(**axes), devices.parse(slice_))


@pytest.mark.parametrize(
  'slice_, axes, message',
  [
    ('v3:2x2', {'fsdp': 3}, 'mesh.fsdp=3'),
    ('v3:2x2', {'data': 4}, 'uses 4 of the 8 devices of v3:2x2: plan a'),
    ('v3:2x2', {'batch_size': 60}, 'batch_size=60 must be .* of 8 device'),
    (
      '2xv5e:2x2',
      {'data': 1, 'fsdp': -1},
      r'mesh.data=1 x mesh.fsdp=8 .*2 slices.*; give --config.mesh.data=-1',
    ),
    (
      '2xv5e:2x2',
      {'data': -1, 'fsdp': 8},
      r'give --config.mesh.data=-1 --config.mesh.fsdp=-1\.',
    ),
  ],
)
def test_meshes_that_do_not_suit_a_slice(slice_, axes, message):
  with pytest.raises(ValueError, match=message):
    devices.check(_mesh(**axes), devices.parse(slice_))
