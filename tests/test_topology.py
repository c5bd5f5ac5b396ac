"""Guards: TPU slices have the names, sizes and machines of Google's tables."""

import pytest

from vit_jax import topology

# Columns: accelerator type, topology, chips, TensorCores, JAX devices, hosts.
TABLE = [
  ('v2-512', 'v2:16x16', 256, 512, 512, 64),
  ('v3-8', 'v3:2x2', 4, 8, 8, 1),
  ('v3-512', 'v3:16x16', 256, 512, 512, 64),
  ('v4-8', 'v4:2x2x1', 4, 8, 4, 1),
  ('v4-4096', 'v4:8x16x16', 2048, 4096, 2048, 512),
  ('v5litepod-1', 'v5e:1x1', 1, 1, 1, 1),
  ('v5litepod-8', 'v5e:2x4', 8, 8, 8, 1),
  ('v5litepod-16', 'v5e:4x4', 16, 16, 16, 4),
  ('v5p-8', 'v5p:2x2x1', 4, 8, 4, 1),
  ('v5p-12288', 'v5p:16x16x24', 6144, 12288, 6144, 1536),
  ('v6e-8', 'v6e:2x4', 8, 8, 8, 1),
  ('v6e-256', 'v6e:16x16', 256, 256, 256, 64),
  ('', 'tpu7x:2x2x1', 4, 8, 8, 1),
  ('', 'tpu7x:4x4x4', 64, 128, 128, 16),
]


@pytest.mark.parametrize('row', TABLE, ids=[row[1] for row in TABLE])
def test_facts(row):
  found = topology.parse(row[1])
  assert (
    found.accelerator_type,
    str(found),
    found.chips,
    found.cores,
    found.devices,
    found.hosts,
  ) == row
  if row[0]:
    assert topology.parse(row[0]) == found


def test_both_names_of_every_slice_are_accepted():
  every = topology.slices()
  assert len(every) == len(set(map(str, every))) == 70
  for found in every:
    assert topology.parse(str(found)) is not found
    assert topology.parse(str(found)) == found
    assert topology.parse(found.accelerator_type or str(found)) == found
    assert found.chips == found.hosts * found.chips_per_host


def test_v5e_has_two_names():
  for name in ('v5e-16', 'v5litepod:4x4'):
    assert str(topology.parse(name)) == 'v5e:4x4'
  assert str(topology.parse('tpu7x-16')) == 'tpu7x:2x2x2'


@pytest.mark.parametrize('text', ['v3-500', 'v3:16x15', '', 'a100-8', 'v3'])
def test_the_error_for_an_unknown_slice_lists_its_generation(text):
  with pytest.raises(
    ValueError, match=r'not a known TPU.*v3:16x16, v3-512'
  ) as e:
    topology.parse(text)
  assert ('v4' in str(e.value)) == (text in ('', 'a100-8'))


def test_the_command_prints_the_facts(capsys):
  topology.main(['v3-512', 'tpu7x:2x2x1'])
  first, second = capsys.readouterr().out.split('\n\n')
  assert 'hosts             64 with 4 chip(s) each' in first
  assert 'TPU VM image      tpu-ubuntu2204-base' in first
  assert 'accelerator type  none (GKE only)\n' in second
