"""Guards: growing files in a bucket lose nothing and upload little."""

import contextlib
import errno
import json
import threading
import time

import pytest
from etils import epath
from tensorboardX import event_file_writer

from vit_jax.runtime import errors
from vit_jax.workdir import buckets, metrics
from vit_jax.workdir.buckets import growing

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


def _dies_after(steps):
  """Simulates a run that flushes each row and is then killed."""
  writer = _writer()
  writer._uploader.close()  # Stops the thread of the run.
  for step in range(1, steps + 1):
    writer.write(step, {'a': 0.5})  # 22 bytes.
    writer.flush()


def _steps():
  return [row['step'] for row in metrics.read(RUN)]


def _wait_for(condition, seconds=10):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.05)


def test_rows_are_uploaded_in_the_background_and_merged(bucket):
  writer = _writer()
  writer.write(1, {'a': 0.5})
  _wait_for(lambda: _steps() == [1])
  assert bucket.names() == [
    'run/metrics.jsonl',
    'run/metrics/000000000000.jsonl',
  ]
  assert bucket.read('run/metrics.jsonl') == b''
  writer.write(2, {'a': 0.25})
  writer.flush()
  assert _steps() == [1, 2]
  writer.close()
  writer.close()
  assert bucket.names() == ['run/metrics.jsonl']
  assert bucket.read('run/metrics.jsonl') == (
    b'{"step": 1, "a": 0.5}\n{"step": 2, "a": 0.25}\n'
  )


def test_nothing_is_uploaded_twice(bucket):
  writer = _writer(tensorboard=True, every=3600)
  writer.write(1, {'a': 0.5})
  writer.flush()
  before = bucket.uploaded.total()
  writer.flush()
  assert bucket.uploaded.total() == before


def test_a_hanging_upload_does_not_delay_the_end(bucket, monkeypatch, caplog):
  monkeypatch.setattr(metrics, '_LAST_UPLOAD_TIMEOUT', 0.5)
  monkeypatch.setattr(buckets, 'patience', 60.0)
  writer = _writer()
  go_on, hangs = threading.Event(), threading.Event()

  def hang():
    hangs.set()
    go_on.wait(20)

  monkeypatch.setattr(writer._uploader, '_upload', hang)
  writer.write(1, {'a': 0.5})
  assert hangs.wait(5)
  begin = time.monotonic()
  try:
    raise ValueError('what ended the run')
  except ValueError:
    writer.close()
  assert time.monotonic() - begin < 5
  assert 'an upload has not ended for 0.5 s' in caplog.text
  go_on.set()


def test_a_run_that_was_taken_over_ends(bucket, caplog):
  def check():
    raise errors.TakenOverError('gs://bucket/run was taken over by 7')

  writer = _writer(check=check)
  writer.write(1, {'a': 0.5})
  _wait_for(lambda: writer._uploader._taken_over)
  with pytest.raises(errors.TakenOverError, match='taken over by 7'):
    writer.write(2, {'a': 0.5})
  assert 'The run goes on' not in caplog.text
  assert bucket.names() == ['run/metrics.jsonl']


def test_a_full_part_is_not_written_again(bucket, monkeypatch):
  monkeypatch.setattr(growing, 'FULL', 40)
  _dies_after(5)
  assert bucket.names()[1:] == [
    f'run/metrics/{offset:012d}.jsonl' for offset in (0, 44, 88)
  ]
  assert bucket.read('run/metrics/000000000044.jsonl') == (
    b'{"step": 3, "a": 0.5}\n{"step": 4, "a": 0.5}\n'
  )
  assert _steps() == [1, 2, 3, 4, 5]


def test_rows_after_the_restored_checkpoint_are_dropped(bucket, monkeypatch):
  monkeypatch.setattr(growing, 'FULL', 40)
  _dies_after(5)
  # The next launch resumes from step 3.
  writer = _writer(start_step=3, every=3600)
  assert bucket.names() == ['run/metrics.jsonl']
  assert _steps() == [1, 2, 3]
  writer.write(4, {'a': 0.75})
  writer.close()
  assert metrics.read(RUN)[2:] == [
    {'step': 3, 'a': 0.5},
    {'step': 4, 'a': 0.75},
  ]


@pytest.mark.parametrize('writes', range(5))
def test_an_interrupted_merge_loses_nothing(bucket, monkeypatch, writes):
  """A merge may be killed after any request; the next merge completes it."""
  monkeypatch.setattr(growing, 'FULL', 40)
  _dies_after(5)
  left = [writes]

  def counted(function):
    def call(*args, **kwargs):
      if not left[0]:
        raise KeyboardInterrupt
      left[0] -= 1
      return function(*args, **kwargs)

    return call

  with monkeypatch.context() as patch:
    for name in ('write_bytes', 'unlink'):
      patch.setattr(type(RUN), name, counted(getattr(type(RUN), name)))
    try:
      growing.merge(FILE)
    except KeyboardInterrupt:
      assert writes < 4
  assert _steps() == [1, 2, 3, 4, 5]
  _writer(start_step=4)
  assert _steps() == [1, 2, 3, 4]


def test_a_part_may_be_merged_while_it_is_read(bucket, monkeypatch):
  FILE.write_text('0123456789')
  gone, left = (RUN / f'metrics/00{offset}.jsonl' for offset in (0, 4))
  left.write_text('4567')
  monkeypatch.setattr(growing, '_parts', lambda _: [gone, left])
  assert growing.read(FILE) == b'0123456789'


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
  _wait_for(lambda: 'is written again' in caplog.text)
  assert _steps() == list(range(1, 10))
  texts = [r.getMessage() for r in caplog.records]
  assert sum('metrics.jsonl cannot be written: gs' in t for t in texts) == 1
  assert texts[-1] == f'{FILE} is written again; nothing is lost.'


def test_a_checkpoint_is_not_ahead_of_its_rows(bucket, monkeypatch):
  monkeypatch.setattr(buckets, 'patience', 0.3)
  writer = _writer(every=3600)
  writer.write(1, {'a': 0.5})
  bucket.fail(60)
  with pytest.raises(errors.StoreError, match=r'run/metrics/0.*no answer for'):
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


def test_closing_does_not_hide_an_error(bucket, monkeypatch, caplog):
  monkeypatch.setattr(metrics, '_LAST_UPLOAD_TIMEOUT', 0.3)
  writer = _writer(every=3600)
  writer.write(1, {'a': 0.5})
  bucket.fail(60)
  begin = time.monotonic()
  with (
    pytest.raises(ZeroDivisionError),
    contextlib.closing(writer),
  ):
    1 / 0  # noqa: B018
  assert time.monotonic() - begin < 3
  assert 'no answer for 0.3 s' in caplog.text


def test_a_run_that_lost_the_directory_uploads_nothing(bucket):
  def check():
    raise ValueError('taken over')

  writer = _writer(check=check, every=0.1)
  writer.write(1, {'a': 0.5})
  time.sleep(0.5)
  with pytest.raises(ValueError, match='taken over'):
    writer.close()
  assert bucket.names() == ['run/metrics.jsonl']


def test_tensorboard_reads_every_row_once(bucket, monkeypatch, tmp_path):
  event_pb2 = pytest.importorskip('tensorboardX.proto.event_pb2')
  monkeypatch.setattr(growing, 'FULL', 300)
  writer = _writer(tensorboard=True, every=3600)
  for step in range(1, 501):
    writer.write(step, {'a': step / 2})
    if step % 100 == 0:
      writer.flush()
  writer.close()
  names = [n for n in bucket.names() if 'tfevents' in n]
  assert len(names) >= 5
  found = []
  for name in names:  # Sorted, which is TensorBoard's order.
    content = bucket.read(name)
    while content:
      length = int.from_bytes(content[:8], 'little')
      event = event_pb2.Event.FromString(content[12 : 12 + length])
      found += [(event.step, v.simple_value) for v in event.summary.value]
      content = content[16 + length :]
  assert found == [(step, step / 2) for step in range(1, 501)]


def test_a_full_local_disk_ends_only_tensorboard(bucket, monkeypatch, caplog):
  writer = _writer(tensorboard=True, every=3600)
  writer.write(1, {'a': 0.5})
  writer.flush()

  def full(_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(event_file_writer.EventsWriter, 'flush', full)
    for step in range(2, 30):
      writer.write(step, {'a': 0.5, 'b': 0.5})
    writer.flush()
  writer.close()
  assert caplog.text.count('ends here: No space left on device') == 1
  assert _steps() == list(range(1, 30))
  assert len([n for n in bucket.names() if 'tfevents' in n]) == 1


def test_few_bytes_are_uploaded(bucket, monkeypatch):
  """Flushes after every tenth of 2,000 rows; only the new rows are uploaded."""
  monkeypatch.setattr(growing, 'FULL', 2**13)
  writer = _writer(every=3600)
  values = {f'train/value_{i}': i / 7 for i in range(20)}
  for step in range(2000):
    writer.write(step, values)
    if step % 10 == 9:
      writer.flush()
  writer.close()
  size = len(bucket.read('run/metrics.jsonl'))
  assert size > 1e6
  assert bucket.uploaded.total() < 3 * size + 200 * 2**13
  assert len(metrics.read(RUN)) == 2000
  assert json.loads(bucket.read('run/metrics.jsonl').splitlines()[-1])
