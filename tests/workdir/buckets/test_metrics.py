"""Guards: metrics in a bucket lose nothing, whatever the service does."""

import contextlib
import threading
import time

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets, metrics

RUN = epath.Path('gs://bucket/run')
FILE = RUN / 'metrics.jsonl'


def _writer(start_step=0, tensorboard=False, every=0.1, **kwargs):
  return metrics.MetricWriter(
    str(RUN),
    start_step=start_step,
    tensorboard=tensorboard,
    upload_every=every,
    **kwargs,
  )


def _steps():
  return [row['step'] for row in metrics.read(RUN)]


def _wait_for(condition, seconds=20):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.05)


def test_rows_are_uploaded_in_the_background(bucket):
  writer = _writer()
  writer.write(1, {'a': 0.5})
  _wait_for(lambda: _steps() == [1])
  writer.write(2, {'a': 0.25})
  writer.flush()
  assert bucket.read('run/metrics.jsonl') == (
    b'{"step": 1, "a": 0.5}\n{"step": 2, "a": 0.25}\n'
  )
  before = bucket.uploaded.total()
  writer.flush()  # Nothing is new.
  assert bucket.uploaded.total() == before
  writer.close()
  writer.close()
  assert bucket.names() == ['run/metrics.jsonl']
  # The next launch resumes from step 1.
  writer = _writer(start_step=1)
  writer.write(2, {'a': 0.75})
  writer.close()
  assert metrics.read(RUN) == [{'step': 1, 'a': 0.5}, {'step': 2, 'a': 0.75}]


def test_parts_of_an_earlier_version_are_merged(bucket):
  rows = [f'{{"step": {step}, "a": 0.5}}\n' for step in range(1, 6)]
  FILE.write_text(rows[0])
  # The first part was merged already; a part begins where the last one ends.
  for first, last in ((0, 1), (1, 3), (3, 5)):
    offset = len(''.join(rows[:first]))
    part = RUN / f'metrics/{offset:012d}.jsonl'
    part.write_text(''.join(rows[first:last]))
  assert _steps() == [1, 2, 3, 4, 5]
  _writer(start_step=4).close()
  assert _steps() == [1, 2, 3, 4]
  assert bucket.names() == ['run/metrics.jsonl']


def test_tensorboard_reads_every_row_once(bucket):
  event_pb2 = pytest.importorskip('tensorboardX.proto.event_pb2')
  writer = _writer(tensorboard=True, every=3600)
  for step in range(1, 101):
    writer.write(step, {'a': step / 2})
    if step % 30 == 0:
      writer.flush()
  writer.close()
  (name,) = [n for n in bucket.names() if 'tfevents' in n]
  found, content = [], bucket.read(name)
  while content:
    length = int.from_bytes(content[:8], 'little')
    event = event_pb2.Event.FromString(content[12 : 12 + length])
    found += [(event.step, v.simple_value) for v in event.summary.value]
    content = content[16 + length :]
  assert found == [(step, step / 2) for step in range(1, 101)]


def test_an_outage_neither_ends_the_run_nor_loses_rows(
  bucket, monkeypatch, caplog
):
  monkeypatch.setattr(buckets, 'patience', 0.3)
  writer = _writer()
  writer.write(1, {'a': 0.5})
  bucket.fail(1.5)
  for step in range(2, 10):
    writer.write(step, {'a': 0.5})
    time.sleep(0.01)
  time.sleep(1.5)
  _wait_for(lambda: _steps() == list(range(1, 10)))
  assert 'The run goes on, and tries again' in caplog.text
  # But a checkpoint is not ahead of its rows.
  bucket.fail(60)
  writer.write(10, {'a': 0.5})
  with pytest.raises(errors.StoreError, match='no answer for'):
    writer.flush()
  with pytest.raises(errors.StoreError):
    writer.close()
  bucket.fail(0)


def test_a_revoked_right_is_an_error(bucket):
  writer = _writer(every=3600)
  bucket.denied = {'storage.objects.create'}
  writer.write(1, {'a': 0.5})
  with pytest.raises(
    errors.StoreError, match=r'metrics.jsonl cannot be written: Forbidden'
  ):
    writer.flush()


def test_a_run_that_was_taken_over_writes_nothing_more(bucket):
  def check():
    raise errors.TakenOverError('gs://bucket/run was taken over by 7')

  writer = _writer(check=check)
  writer.write(1, {'a': 0.5})
  _wait_for(lambda: writer._file._taken_over)
  with pytest.raises(errors.TakenOverError, match='taken over by 7'):
    writer.write(2, {'a': 0.5})
  with pytest.raises(errors.TakenOverError, match='taken over by 7'):
    writer.close()
  assert bucket.read('run/metrics.jsonl') == b''


@pytest.mark.parametrize('hangs', [False, True])
def test_an_outage_does_not_delay_the_end(bucket, monkeypatch, caplog, hangs):
  monkeypatch.setattr(metrics, '_LAST_UPLOAD_TIMEOUT', 0.5)
  monkeypatch.setattr(buckets, 'patience', 60.0)
  writer = _writer(every=3600)
  go_on = threading.Event()
  if hangs:
    monkeypatch.setattr(writer._file, '_upload', lambda: go_on.wait(20))
    threading.Thread(target=writer.flush, daemon=True).start()
    _wait_for(writer._file._one.locked)
  writer.write(1, {'a': 0.5})
  bucket.fail(60)
  begin = time.monotonic()
  with pytest.raises(ZeroDivisionError), contextlib.closing(writer):
    1 / 0  # noqa: B018
  assert time.monotonic() - begin < 10
  assert 'for 0.5 s' in caplog.text
  go_on.set()
  bucket.fail(0)
