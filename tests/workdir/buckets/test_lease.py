"""Guards: only one run at a time has a directory in a bucket."""

import json
import os
import platform
import time

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import ownership
from vit_jax.workdir.buckets import lease

RUN = epath.Path('gs://bucket/run')
NAME = 'run/owner.json'


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(lease, 'EVERY', 0.3)
  monkeypatch.setattr(lease, 'STALE', 2.0)


def _write_other_lease():
  owner = {'host': 'other', 'process': 7, 'since': '2026-01-01 00:00:00 UTC'}
  (RUN / 'owner.json').write_text(json.dumps(owner))


def test_the_lease_is_renewed_and_returned(bucket):
  with ownership.held(RUN) as check:
    assert json.loads(bucket.read(NAME))['process'] == os.getpid()
    first = bucket.generation(NAME)
    time.sleep(1)
    check()
    assert bucket.generation(NAME) != first
  assert bucket.names() == []


def test_a_live_owner_is_named(bucket):
  who = f'process {os.getpid()} on {platform.node()}, since 2'
  with ownership.held(RUN) as check:
    with (
      pytest.raises(ValueError, match=f'run is in use by {who}.*another --wor'),
      ownership.held(RUN),
    ):
      pass
    check()  # The refused run did not change the lease.
  assert bucket.names() == []


def test_a_dead_owner_is_waited_for(bucket):
  _write_other_lease()
  begin = time.monotonic()
  with ownership.held(RUN) as check:
    assert 2 < time.monotonic() - begin < 8
    check()
    assert json.loads(bucket.read(NAME))['process'] == os.getpid()


# The first is noticed by the next write, the second in the background.
@pytest.mark.parametrize(('every', 'stale'), [(60, 2.0), (0.3, 60)])
def test_a_run_that_lost_the_lease_cannot_go_on(
  bucket, monkeypatch, every, stale
):
  monkeypatch.setattr(lease, 'EVERY', every)
  monkeypatch.setattr(lease, 'STALE', stale)
  with ownership.held(RUN) as check:
    _write_other_lease()
    check()  # No request is needed soon after a sign of life.
    time.sleep(1.1)
    for _ in range(2):
      with pytest.raises(errors.TakenOverError, match='process 7 on other'):
        check()
  # The end does not delete the other run's lease, either.
  assert json.loads(bucket.read(NAME))['process'] == 7


def test_a_lost_answer_to_a_write_does_no_harm(bucket, monkeypatch):
  write = lease.Lease._write

  def write_twice(self, replacing):
    write(self, replacing)
    return write(self, replacing)

  monkeypatch.setattr(lease.Lease, '_write', write_twice)
  with ownership.held(RUN) as check:
    time.sleep(1)
    check()
  assert bucket.names() == []


@pytest.mark.parametrize(
  'right',
  [
    *('buckets.get', 'objects.create'),
    *('objects.get', 'objects.delete'),
  ],
)
def test_a_missing_right_is_named_before_a_run_begins(bucket, right):
  bucket.denied = {f'storage.{right}'}
  with (
    pytest.raises(ValueError, match=f'does not have storage.{right}'),
    ownership.held(RUN),
  ):
    pass
  # Without the right to delete, the lease of this run cannot be returned.
  assert bucket.names() == [NAME] * (right == 'objects.delete')


def test_a_lease_that_was_not_taken_in_full_is_returned(bucket, monkeypatch):
  write = lease.Lease._write

  def write_once(self, replacing):
    if replacing != '0':
      raise errors.StoreError('no answer')
    return write(self, replacing)

  monkeypatch.setattr(lease.Lease, '_write', write_once)
  with pytest.raises(errors.StoreError), ownership.held(RUN):
    pass
  assert bucket.names() == []


def test_a_missing_bucket_is_named(bucket):
  with (
    pytest.raises(ValueError, match='there is no bucket gs://another'),
    ownership.held(epath.Path('gs://another/run')),
  ):
    pass
