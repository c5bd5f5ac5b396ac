"""Guards: only one run at a time has a directory in a bucket.

This holds however the last run ended.
"""

import json
import os
import platform
import time

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets, ownership
from vit_jax.workdir.buckets import lease

RUN = epath.Path('gs://bucket/run')
NAME = 'run/owner.json'


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  # The clock of the fake service counts whole seconds, so STALE has a few.
  monkeypatch.setattr(lease, 'EVERY', 0.3)
  monkeypatch.setattr(lease, 'STALE', 3.0)


def _held_lease():
  return ownership.held(RUN)


def _write_other_lease(bucket, **values):
  """Writes the lease of another run."""
  owner = {'host': 'other', 'process': 7, 'since': '2026-01-01 00:00:00 UTC'}
  (RUN / 'owner.json').write_text(json.dumps(owner | values))


def test_the_lease_exists_only_while_it_is_held(bucket):
  with _held_lease() as check:
    owner = json.loads(bucket.read(NAME))
    assert owner['host'] == platform.node()
    assert owner['process'] == os.getpid()
    first = bucket.generation(NAME)
    time.sleep(1)
    check()
    assert bucket.generation(NAME) != first
  assert bucket.names() == []
  with _held_lease():
    pass


def test_a_live_owner_is_named(bucket):
  with (
    _held_lease(),
    pytest.raises(
      ValueError,
      match=f'run is in use by process {os.getpid()} on {platform.node()},'
      ' since 2.*another --workdir',
    ),
    _held_lease(),
  ):
    pass
  # The refused run did not change the lease, and its owner has returned it.
  assert bucket.names() == []


def test_a_dead_owner_is_waited_for(bucket, caplog):
  caplog.set_level('INFO', 'absl')
  _write_other_lease(bucket)
  begin = time.monotonic()
  with _held_lease() as check:
    assert 2 < time.monotonic() - begin < 8
    check()
    assert json.loads(bucket.read(NAME))['process'] == os.getpid()
  who = 'process 7 on other, since 2026-01-01 00:00:00 UTC'
  # On a busy machine, the end of an earlier test's run may log, too.
  texts = [t for r in caplog.records if who in (t := r.getMessage())]
  assert len(texts) == 2
  assert texts[0].startswith(f'{RUN} is in use by {who}. Waiting up to ')
  assert texts[1].startswith(f'{RUN} is taken over from {who}: no sign of')


def test_a_run_that_lost_the_lease_cannot_go_on(bucket):
  with _held_lease() as check:
    _write_other_lease(bucket)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
      try:
        check()
      except ValueError:
        break
      time.sleep(0.1)
    with pytest.raises(ValueError, match='by process 7 on other, since 2026'):
      check()
  # The end does not delete the other run's lease, either.
  assert json.loads(bucket.read(NAME))['process'] == 7


def test_a_lost_answer_to_a_write_does_no_harm(bucket, monkeypatch):
  write = lease.Object.write

  def write_twice(self, content, replacing=None):
    write(self, content, replacing)
    return write(self, content, replacing)

  monkeypatch.setattr(lease.Object, 'write', write_twice)
  with _held_lease() as check:
    time.sleep(1)
    check()
  assert bucket.names() == []


def test_check_asks_the_bucket_after_a_long_silence(bucket, monkeypatch):
  monkeypatch.setattr(lease, 'EVERY', 60)
  with _held_lease() as check:
    _write_other_lease(bucket)
    check()  # No request is needed soon after a sign of life.
    time.sleep(1.6)
    with pytest.raises(ValueError, match='was taken over'):
      check()


def test_check_fails_while_the_bucket_does_not_answer(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 0.5)
  with _held_lease() as check:
    bucket.fail(60)
    time.sleep(2)
    with pytest.raises(errors.StoreError):
      check()
    bucket.fail(0)
    time.sleep(2)
    check()
