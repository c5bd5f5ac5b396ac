"""Guards: slices and GPUs have the right devices; a mesh is checked first."""

import pytest

from vit_jax import config as config_lib
from vit_jax.plan import chips, devices


@pytest.mark.parametrize(
  'text, count, chips_, cores, device',
  [
    ('v3:16x16', 512, 256, 512, 'TensorCore'),
    ('v4:2x2x2', 8, 8, 16, 'chip of 2 TensorCores'),
    ('2xv5e:16x16', 512, 512, 512, 'chip'),
    ('tpu7x:2x2x1', 8, 4, 8, 'TensorCore'),
    ('h100x8', 8, 8, None, 'GPU'),
    ('a100', 1, 1, None, 'GPU'),
  ],
)
def test_targets(text, count, chips_, cores, device):
  target = devices.parse(text)
  assert devices.parse(str(target)) == target
  assert (target.devices, target.chips) == (count, chips_)
  assert (target.cores, target.device) == (cores, device)


@pytest.mark.parametrize(
  'text, message',
  [
    ('v3:3x3', 'v3:2x2, v3-8'),
    ('2xv9:2x2', 'v9:2x2'),
    ('0xv3:2x2', 'not a known'),
    ('h100x9', 'h100x1 to h100x8'),
    ('h100x0', 'h100x1 to h100x8'),
  ],
)
def test_unknown_targets_are_refused_with_the_choices(text, message):
  with pytest.raises(ValueError, match=message):
    devices.parse(text)


def test_a_generation_has_its_slices_by_size():
  sizes = [target.chips for target in devices.of_generation('v5e')]
  assert sizes == sorted(sizes)
  assert [str(t) for t in devices.of_generation('h200')] == [
    *('h200x1', 'h200x2', 'h200x4', 'h200x8')
  ]
  with pytest.raises(ValueError, match='v2, v3'):
    devices.of_generation('v9')


@pytest.mark.parametrize(
  'kind, peak',
  [
    ('TPU v4', 275.2e12),
    ('TPU v5 lite', 196.6e12),
    ('NVIDIA L40S', 362e12),
    ('NVIDIA L4', 121e12),
    ('cpu', None),
  ],
)
def test_peaks_of_this_machines_devices(kind, peak):
  assert chips.peak_flops(kind) == peak


@pytest.mark.parametrize('name', sorted(chips.CHIPS))
def test_links_go_along_the_dimensions_of_a_slice(name):
  shape = str(devices.of_generation(name)[-1]).partition(':')[2].split('x')
  assert chips.CHIPS[name].torus_dimensions == len(shape)


def test_usable_memory_of_gpus_is_what_jax_allocates(monkeypatch):
  whole = chips.GPUS['h100'].memory_bytes
  for given, share in (('', 0.75), ('.5', 0.5)):
    monkeypatch.setenv('XLA_PYTHON_CLIENT_MEM_FRACTION', given)
    usable = devices.parse('h100').chip.hbm_usable_bytes
    assert usable == int(share * whole)


@pytest.mark.parametrize(
  'text, extra', [('v3:2x2', 'plan'), ('h100x8', 'cuda')]
)
def test_without_the_compiler_the_error_says_what_to_install(
  monkeypatch, text, extra
):
  monkeypatch.setattr(devices, 'have_compiler', lambda: False)
  monkeypatch.setattr(devices, 'gpu_compiler', lambda: None)
  with pytest.raises(ValueError, match=rf'"vit-paper-jax\[{extra}\]"'):
    devices.compile_only(devices.parse(text))


def _mesh(batch_size=64, **axes):
  config = config_lib.default()
  config.data.batch_size = batch_size
  config.mesh.update(axes)
  return config


@pytest.mark.parametrize(
  'slice_, axes',
  [
    ('v3:2x2', {}),
    ('v3:2x2', {'data': 1, 'fsdp': -1}),
    ('v3:2x2', {'tensor': 2, 'batch_size': 4}),
    ('2xv5e:2x2', {'data': 2, 'fsdp': -1}),
    ('2xv5e:2x2', {'data': -1, 'fsdp': -1}),
  ],
)
def test_meshes_that_suit_a_slice(slice_, axes):
  devices.check(_mesh(**axes), devices.parse(slice_))


@pytest.mark.parametrize(
  'slice_, axes, message',
  [
    ('v3:2x2', {'fsdp': 3}, 'mesh.fsdp=3'),
    ('v3:2x2', {'data': 4}, '4 of the 8 devices'),
    ('v3:2x2', {'batch_size': 60}, 'batch_size=60'),
    ('2xv5e:2x2', {'data': 1, 'fsdp': -1}, '2 slices.*--config.mesh.data=-1'),
    ('2xv5e:2x2', {'data': -1, 'fsdp': 8}, '--config.mesh.fsdp=-1'),
  ],
)
def test_meshes_that_do_not_suit_a_slice(slice_, axes, message):
  with pytest.raises(ValueError, match=message):
    devices.check(_mesh(**axes), devices.parse(slice_))
