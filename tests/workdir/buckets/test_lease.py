"""Guards: only one run at a time has a directory in a bucket.

This holds however the last run ended.
"""

import json
import os
import platform
import threading
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


def _held():
  return ownership.held(RUN)


def _other(bucket, **values):
  """Writes the lease of another run."""
  owner = {'host': 'other', 'process': 7, 'since': '2026-01-01 00:00:00 UTC'}
  (RUN / 'owner.json').write_text(json.dumps(owner | values))


def test_it_is_there_while_it_is_held(bucket):
  with _held() as check:
    owner = json.loads(bucket.read(NAME))
    assert owner['host'] == platform.node()
    assert owner['process'] == os.getpid()
    first = bucket.generation(NAME)
    time.sleep(1)
    check()
    assert bucket.generation(NAME) != first
  assert bucket.names() == []
  with _held():
    pass


def test_a_live_owner_is_named(bucket):
  with (
    _held(),
    pytest.raises(
      ValueError,
      match=f'run is in use by process {os.getpid()} on {platform.node()},'
      ' since 2.*another --workdir',
    ),
    _held(),
  ):
    pass
  # The refused run did not change the lease, and its owner has returned it.
  assert bucket.names() == []


def test_a_dead_owner_is_waited_for(bucket, caplog):
  caplog.set_level('INFO', 'absl')
  _other(bucket)
  begin = time.monotonic()
  with _held() as check:
    assert 2 < time.monotonic() - begin < 8
    check()
    assert json.loads(bucket.read(NAME))['process'] == os.getpid()
  texts = [r.getMessage() for r in caplog.records]
  who = 'process 7 on other, since 2026-01-01 00:00:00 UTC'
  assert len(texts) == 2
  assert texts[0].startswith(f'{RUN} is in use by {who}. Waiting up to ')
  assert texts[1].startswith(f'{RUN} is taken over from {who}: no sign of')


def test_who_looks_dead_after_an_outage_may_not_be(bucket, monkeypatch):
  monkeypatch.setattr(lease, 'STALE', 0.5)
  _other(bucket)
  time.sleep(2)
  late = threading.Timer(0.25, lambda: _other(bucket))
  late.start()
  with pytest.raises(ValueError, match='is in use by process 7 on'), _held():
    pass
  late.join()


def test_who_lost_it_writes_no_more(bucket):
  with _held() as check:
    _other(bucket)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
      try:
        check()
      except ValueError:
        break
      time.sleep(0.1)
    with pytest.raises(ValueError, match='by process 7 on other, since 2026'):
      check()
  # It does not delete the other run's lease, either.
  assert json.loads(bucket.read(NAME))['process'] == 7


def test_an_answer_that_was_lost(bucket, monkeypatch):
  write = lease.objects.Object.write

  def write_twice(self, content, replacing=None):
    write(self, content, replacing)
    return write(self, content, replacing)

  monkeypatch.setattr(lease.objects.Object, 'write', write_twice)
  with _held() as check:
    time.sleep(1)
    check()
  assert bucket.names() == []


def test_a_long_silence_is_asked_about_first(bucket, monkeypatch):
  monkeypatch.setattr(lease, 'EVERY', 60)
  with _held() as check:
    _other(bucket)
    check()  # No request is needed soon after a sign of life.
    time.sleep(1.6)
    with pytest.raises(ValueError, match='was taken over'):
      check()


def test_who_lost_it_in_an_outage_is_told_that(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 0.5)
  with _held() as check:
    bucket.fail(60)
    time.sleep(2)
    with pytest.raises(errors.StoreError):
      check()
    bucket.fail(0)
    _other(bucket)
    time.sleep(2)
    with pytest.raises(errors.TakenOverError, match='by process 7 on other'):
      check()


def test_it_is_renewed_after_any_error(bucket, monkeypatch):
  write = lease.objects.Object.write
  with _held():
    first = bucket.generation(NAME)
    failed = threading.Event()

    def fail(*_):
      failed.set()
      raise RuntimeError('Session is closed')

    with monkeypatch.context() as patch:
      patch.setattr(lease.objects.Object, 'write', fail)
      assert failed.wait(5)
    assert lease.objects.Object.write is write
    end = time.monotonic() + 5
    while bucket.generation(NAME) == first:
      assert time.monotonic() < end
      time.sleep(0.05)


def test_a_sign_of_life_that_hangs_holds_no_end_up(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 60.0)
  monkeypatch.setattr(lease, '_LAST_PATIENCE', 0.5)
  go_on, hangs = threading.Event(), threading.Event()

  def hang(*_):
    hangs.set()
    go_on.wait(20)
    raise OSError

  with monkeypatch.context() as patch:
    with _held():
      patch.setattr(lease.objects.Object, 'write', hang)
      assert hangs.wait(5)
      begin = time.monotonic()
    assert time.monotonic() - begin < 5
  go_on.set()


def test_while_the_bucket_does_not_answer(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 0.5)
  with _held() as check:
    bucket.fail(60)
    time.sleep(2)
    with pytest.raises(errors.StoreError):
      check()
    # The second check does not wait, because the thread has just failed.
    begin = time.monotonic()
    with pytest.raises(errors.StoreError):
      check()
    assert time.monotonic() - begin < 0.4
    bucket.fail(0)
    time.sleep(2)
    check()
