"""Guards: metrics in a bucket lose nothing, whatever the service does."""

import contextlib
import time

import pytest
from etils import epath

from vit_jax.runtime import errors
from vit_jax.workdir import buckets, metrics

RUN = epath.Path('gs://bucket/run')


@pytest.fixture(autouse=True)
def quick(monkeypatch):
  monkeypatch.setattr(metrics, '_UPLOAD_EVERY', 0.2)
  monkeypatch.setattr(metrics, '_SHORT_PATIENCE', 0.5)


def _writer(start_step=0, **kwargs):
  kwargs = {'tensorboard': False} | kwargs
  return metrics.MetricWriter(str(RUN), start_step=start_step, **kwargs)


def _steps():
  return [row['step'] for row in metrics.read(RUN)]


def test_rows_are_uploaded_from_time_to_time(bucket):
  writer = _writer()
  writer.write(1, {'a': 0.5})
  assert _steps() == []
  time.sleep(0.2)
  writer.write(2, {'a': 0.25})
  assert _steps() == [1, 2]
  writer.write(3, {'a': 0.25})
  assert _steps() == [1, 2]
  writer.flush()
  assert _steps() == [1, 2, 3]
  before = bucket.generation('run/metrics.jsonl')
  writer.close()  # Nothing is new.
  assert bucket.generation('run/metrics.jsonl') == before
  assert bucket.names() == ['run/metrics.jsonl']
  # The next launch resumes from step 1.
  writer = _writer(start_step=1)
  writer.write(2, {'a': 0.75})
  writer.close()
  assert metrics.read(RUN) == [{'step': 1, 'a': 0.5}, {'step': 2, 'a': 0.75}]


def test_tensorboard_s_file_is_uploaded(bucket):
  writer = _writer(tensorboard=True)
  writer.write(1, {'name': 0.5})
  writer.close()
  (name,) = [n for n in bucket.names() if 'tfevents' in n]
  assert b'name' in bucket.read(name)


def test_an_outage_neither_ends_the_run_nor_loses_rows(
  bucket, monkeypatch, caplog
):
  monkeypatch.setattr(buckets, 'patience', 1.0)
  writer = _writer()
  time.sleep(0.2)
  bucket.fail(60)
  writer.write(1, {'a': 0.5})
  assert 'The run goes on, and tries again' in caplog.text
  # But a checkpoint is not ahead of its rows.
  with pytest.raises(errors.StoreError, match='no answer for'):
    writer.flush()
  bucket.fail(0)
  writer.close()
  assert _steps() == [1]


def test_a_run_that_was_taken_over_writes_nothing_more(bucket):
  def check():
    raise errors.TakenOverError('gs://bucket/run was taken over by 7')

  writer = _writer(check=check)
  time.sleep(0.2)
  for end in (lambda: writer.write(1, {'a': 0.5}), writer.close):
    with pytest.raises(errors.TakenOverError, match='taken over by 7'):
      end()
  assert bucket.read('run/metrics.jsonl') == b''


def test_an_outage_does_not_delay_the_end_after_an_error(bucket):
  writer = _writer()
  writer.write(1, {'a': 0.5})
  bucket.fail(60)
  begin = time.monotonic()
  with pytest.raises(ZeroDivisionError), contextlib.closing(writer):
    1 / 0  # noqa: B018
  assert time.monotonic() - begin < 8
