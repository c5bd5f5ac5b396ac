"""Guards repeated augmentation: which rows have copies of which records."""

import collections
import types

import numpy as np
import pytest

from tests import tiny_run
from tests.data.test_batches import CROP, WHOLE, FakeView, join, train
from vit_jax import sharding
from vit_jax.training import program
from vit_jax.training import train as train_lib


def labels(records, batch, repeats, count, **kwargs):
  """Returns the record of each row of `count` batches: [count, batch]."""
  batches = train(
    FakeView(records),
    count,
    **{'batch_size': batch, 'repeats': repeats, 'preprocess': WHOLE},
    num_classes=records,
    **kwargs,
  )
  return np.stack([batch['label'] for batch in batches])


@pytest.mark.parametrize(
  'batch, repeats, expected',
  [
    # The order is 2 3 1 0 4, and then 3 0 1 2 4.
    (6, 2, [[2, 3, 1, 2, 3, 1], [0, 4, 3, 0, 4, 3], [0, 1, 2, 0, 1, 2]]),
    (7, 3, [[2, 3, 1, 2, 3, 2, 3], [1, 0, 4, 1, 0, 0, 4]]),
    (2, 3, [[2, 2], [2, 3], [3, 3], [1, 1]]),
  ],
)
def test_order_is_frozen(batch, repeats, expected):
  found = labels(5, batch, repeats, len(expected))
  assert found.tolist() == expected


# (records, batch, repeats); batches end where the order of all records ends.
CASES = [
  *[(32, 8, 2), (24, 12, 3), (64, 16, 4), (12, 36, 3), (24, 64, 8)],
  # `repeats` does not divide the batch.
  *[(64, 16, 3), (40, 10, 3), (32, 32, 5), (35, 7, 2), (44, 11, 3)],
]


@pytest.mark.parametrize('records, batch, repeats', CASES)
def test_copies_are_in_one_batch_and_apart(records, batch, repeats):
  count = records * repeats // batch
  assert count * batch == records * repeats
  found = labels(records, batch, repeats, count)
  # All records come equally often.
  assert set(collections.Counter(found.ravel()).values()) == {repeats}
  split = 0
  for rows in found:
    copies = collections.Counter(rows)
    whole = [record for record in copies if copies[record] == repeats]
    # Only the first and the last of a batch can lie in two.
    assert len(copies) - len(whole) <= (2 if batch % repeats else 0)
    split += len(copies) - len(whole)
    # Also across the ends, since the last row is the partner of the first.
    assert (rows != np.roll(rows, 1)).all()
    for devices in range(repeats, batch + 1):
      if batch % devices == 0:
        for part in rows.reshape(devices, -1):
          assert len(set(part)) == len(part)
  assert split <= 2 * (count - 1)
  # The order of the records is that without copies.
  [order] = labels(records, records, 1, 1)
  where = {record: place for place, record in enumerate(order)}
  for step, rows in enumerate(found):
    places = np.sort([where[record] for record in rows])
    turns = np.arange(step * batch, (step + 1) * batch)
    np.testing.assert_array_equal(places, turns // repeats)


def test_copies_have_random_numbers_of_their_own():
  rows = join(train(FakeView(30), 6, batch_size=15, repeats=3, preprocess=CROP))
  assert collections.Counter(rows['label']) == dict.fromkeys(range(30), 3)
  images = {
    record: {rows['image'][i].tobytes() for i in np.flatnonzero(own)}
    for record, own in ((r, rows['label'] == r) for r in range(30))
  }
  # 5 x 5 crops, mirrored or not: three copies differ in 94% of records.
  assert np.mean([len(each) == 3 for each in images.values()]) > 0.75


@pytest.mark.gate
def test_a_run_repeats_images(tmp_path, monkeypatch):
  rows = []

  def put_batch(batch, mesh):
    rows.extend(image.tobytes() for image in batch['image'])
    raise tiny_run.Death  # Before the first step.

  compiled = types.SimpleNamespace(result=lambda: None)
  monkeypatch.setattr(program.Program, 'compile', lambda _: compiled)
  monkeypatch.setattr(sharding.batch, 'put_batch', put_batch)
  config = tiny_run.tiny_config({'data.repeats': 2})
  with pytest.raises(tiny_run.Death):
    train_lib.train_and_evaluate(config, tmp_path)
  assert {*collections.Counter(rows).values()} == {2}
  assert len(rows) == 16
