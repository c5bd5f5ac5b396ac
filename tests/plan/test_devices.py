"""Slices by name, and what a device of them is."""

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


def test_names():
  assert str(devices.parse('v3-512')) == 'v3:16x16'
  assert str(devices.parse('2xv5litepod-256')) == '2xv5e:16x16'
  assert str(devices.parse('1xv5e:2x2')) == 'v5e:2x2'


def test_a_chip_whose_cores_are_one_device():
  core, chip = devices.parse('v3:2x2').chip, devices.parse('v4:2x2x1').chip
  assert (core.peak_flops, chip.peak_flops) == (61.6e12, 2 * 137.6e12)
  assert chip.hbm_usable_bytes == 30.5 * 2**30
  assert chip.hbm_bytes_per_second == 1200e9
  # 25 Gbit/s a chip.
  assert chip.network_bytes_per_second == 3.125e9
  assert core.network_bytes_per_second == 3.125e9 / 2
  assert (chip.device, chip.devices_per_chip) == ('chip', 1)
  assert chip.clock_mhz == 1050
  # v5p's figures are of a chip as they are.
  assert devices.parse('v5p:2x2x1').chip.peak_flops == 458.8e12


@pytest.mark.parametrize(
  'text, message',
  [
    ('v3:3x3', r"'v3:3x3' is no TPU slice.* v3-8 \(v3:2x2\), v3-32"),
    ('2xv9:2x2', r"'v9:2x2' is no TPU slice"),
    ('0xv3:2x2', 'at least one slice'),
  ],
)
def test_unknown_slices(text, message):
  with pytest.raises(ValueError, match=message):
    devices.parse(text)


def test_slices_of_a_generation():
  found = devices.of_generation('v3')
  assert [str(t) for t in found[:3]] == ['v3:2x2', 'v3:4x4', 'v3:4x8']
  counts = [t.chips for t in devices.of_generation('v5p')]
  assert counts == sorted(counts)
  with pytest.raises(ValueError, match='choose one of v2, v3, v4, v5e'):
    devices.of_generation('v9')


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
  # Fewer than there are: the first ones.
  config.mesh.data, config.mesh.fsdp = 2, 1
  assert (
    list(devices.layout(config, jax.devices()).mesh.devices.flat)
    == (jax.devices()[:2])
  )


def test_without_the_compiler(monkeypatch):
  monkeypatch.setattr(devices, 'have_compiler', lambda: False)
  with pytest.raises(ValueError, match=r'pip install "vit_jax\[plan\]"'):
    devices.compile_only(devices.parse('v3:2x2'))
