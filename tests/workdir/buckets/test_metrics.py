"""Guards: metrics in a bucket lose nothing, whatever the service does."""

import contextlib
import threading
import time

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets, metrics

RUN = epath.Path('gs://bucket/run')


def _writer(start_step=0, every=0.1, **kwargs):
  kwargs = {'tensorboard': False} | kwargs
  return metrics.MetricWriter(
    str(RUN), start_step=start_step, upload_every=every, **kwargs
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
  before = bucket.generation('run/metrics.jsonl')
  writer.close()  # Nothing is new.
  assert bucket.generation('run/metrics.jsonl') == before
  assert bucket.names() == ['run/metrics.jsonl']
  # The next launch resumes from step 1.
  writer = _writer(start_step=1)
  writer.write(2, {'a': 0.75})
  writer.close()
  assert metrics.read(RUN) == [{'step': 1, 'a': 0.5}, {'step': 2, 'a': 0.75}]


def test_parts_of_an_earlier_version_are_merged(bucket):
  rows = [f'{{"step": {step}, "a": 0.5}}\n' for step in range(1, 6)]
  (RUN / metrics.FILE).write_text(rows[0])
  # The first part was merged already; a part begins where the last one ends.
  for first, last in ((0, 1), (1, 3), (3, 5)):
    offset = len(''.join(rows[:first]))
    part = RUN / f'metrics/{offset:012d}.jsonl'
    part.write_text(''.join(rows[first:last]))
  assert _steps() == [1, 2, 3, 4, 5]
  _writer(start_step=4).close()
  assert _steps() == [1, 2, 3, 4]
  assert bucket.names() == ['run/metrics.jsonl']


def test_tensorboard_s_file_is_uploaded(bucket):
  writer = _writer(tensorboard=True, every=3600)
  writer.write(1, {'name': 0.5})
  writer.close()
  (name,) = [n for n in bucket.names() if 'tfevents' in n]
  assert b'name' in bucket.read(name)


def test_an_outage_neither_ends_the_run_nor_loses_rows(
  bucket, monkeypatch, caplog
):
  monkeypatch.setattr(buckets, 'patience', 0.3)
  writer = _writer()
  bucket.fail(1.5)
  for step in range(1, 10):
    writer.write(step, {'a': 0.5})
  _wait_for(lambda: 'The run goes on, and tries again' in caplog.text)
  time.sleep(1.5)
  _wait_for(lambda: _steps() == list(range(1, 10)))
  # But a checkpoint is not ahead of its rows.
  bucket.fail(60)
  writer.write(10, {'a': 0.5})
  with pytest.raises(errors.StoreError, match='no answer for'):
    writer.flush()
  bucket.fail(0)
  writer.close()
  assert _steps() == list(range(1, 11))


def test_a_run_that_was_taken_over_writes_nothing_more(bucket):
  def check():
    raise errors.TakenOverError('gs://bucket/run was taken over by 7')

  writer = _writer(check=check)
  writer.write(1, {'a': 0.5})
  with pytest.raises(errors.TakenOverError, match='taken over by 7'):
    _wait_for(lambda: writer.write(2, {'a': 0.5}))
  with pytest.raises(errors.TakenOverError, match='taken over by 7'):
    writer.close()
  assert bucket.read('run/metrics.jsonl') == b''


def test_an_outage_does_not_delay_the_end_after_an_error(bucket, monkeypatch):
  monkeypatch.setattr(metrics, '_LAST_UPLOAD_TIMEOUT', 0.5)
  writer = _writer(every=3600)
  writer.write(1, {'a': 0.5})
  bucket.fail(60)

  def upload():
    with contextlib.suppress(errors.StoreError):
      writer.flush()

  threading.Thread(target=upload, daemon=True).start()  # It hangs.
  begin = time.monotonic()
  with pytest.raises(ZeroDivisionError), contextlib.closing(writer):
    1 / 0  # noqa: B018
  assert time.monotonic() - begin < 10
  bucket.fail(0)
