"""Guards: each process reads its rows, and each device gets its part."""

import types

import numpy as np
import pytest

from vit_jax import sharding
from vit_jax.sharding import batch as batch_lib


def test_rows_of_a_process_with_scattered_devices(monkeypatch):
  # Four devices of a process hold the parts 3 and 1 of four, each part twice.
  parts = [slice(9, 12), slice(3, 6), slice(3, 6), slice(9, 12)]
  fake = types.SimpleNamespace(
    addressable_devices_indices_map=lambda _: {
      i: (p,) for i, p in enumerate(parts)
    }
  )
  monkeypatch.setattr(batch_lib, 'batch_sharding', lambda mesh: fake)
  assert sharding.local_rows(None, 12) == (3, 4, 5, 9, 10, 11)


def test_each_device_gets_the_rows_of_its_mesh_position():
  mesh = sharding.make_mesh(2, 2, 2)
  assert sharding.local_rows(mesh, 12) == tuple(range(12))
  rows = np.arange(24).reshape(8, 3)
  placed = sharding.put_batch({'image': rows}, mesh)['image']
  np.testing.assert_array_equal(placed, rows)
  for shard in placed.addressable_shards:
    # `tensor` peers hold the same two rows.
    part = np.argwhere(mesh.devices == shard.device)[0]
    first = 2 * (2 * part[0] + part[1])
    np.testing.assert_array_equal(shard.data, rows[first : first + 2])


@pytest.mark.parametrize(
  ('sizes', 'size', 'micro', 'message'),
  [
    ((8, 1, 1), 12, 1, 'a=12 .* nearest: 8 or 16'),
    ((2, 2, 2), 6, 1, 'mesh.data x mesh.fsdp = 4; the nearest: 4 or 8'),
    ((2, 4, 1), 8, 2, '2 accumulation steps = 16; .*: 16'),
    ((1, 1, 1), 0, 1, 'a=0'),
  ],
)
def test_batch_size_must_divide(sizes, size, micro, message):
  mesh = sharding.make_mesh(*sizes)
  with pytest.raises(ValueError, match=message):
    sharding.check_batch_size('a', size, mesh, micro)


def test_feed_is_one_batch_ahead():
  taken, waits = [], []

  def batches():
    for i in range(3):
      taken.append(i)
      yield {'label': np.full(8, i)}

  feed = sharding.feed(batches(), sharding.make_mesh(), 3, waits.append)
  for i, batch in enumerate(feed):
    assert batch['label'].tolist() == [i] * 8
    assert len(taken) == min(i + 2, 3)
  assert i == 2
  assert len(waits) == 3
