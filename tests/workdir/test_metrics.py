"""Guards: metrics are finite, written once, and readable after any crash."""

import errno
import math
import resource

import pytest
from tensorboardX import event_file_writer

from vit_jax.workdir import metrics


def _writer(workdir, start_step=0):
  return metrics.MetricWriter(workdir, start_step=start_step, tensorboard=False)


def test_each_line_holds_one_object(tmp_path):
  assert metrics.read(tmp_path) == []
  writer = _writer(tmp_path)
  writer.write(5, {'train/loss': 0.5, 'test/count': 72})
  # The row is on disk at once, because the process may die at any time.
  assert (tmp_path / 'metrics.jsonl').read_text() == (
    '{"step": 5, "train/loss": 0.5, "test/count": 72.0}\n'
  )
  # Only finite numbers are written.
  writer.write(6, {'train/loss': 0.25, 'a': math.nan, 'c': -math.inf})
  assert metrics.read(tmp_path) == [
    {'step': 5, 'train/loss': 0.5, 'test/count': 72.0},
    {'step': 6, 'train/loss': 0.25},
  ]


@pytest.mark.parametrize('torn', ['{"st', '{"step": 3}'])
def test_an_incomplete_last_line_is_left_out(tmp_path, torn):
  # Even a line that parses may lack digits if it has no end of line.
  (tmp_path / 'metrics.jsonl').write_text('{"step": 2, "a": 1.0}\n' + torn)
  assert metrics.read(tmp_path) == [{'step': 2, 'a': 1.0}]
  _writer(tmp_path, start_step=2).write(3, {'a': 2.0})
  assert metrics.read(tmp_path) == [
    {'step': 2, 'a': 1.0},
    {'step': 3, 'a': 2.0},
  ]


def test_rows_after_the_start_step_are_dropped(tmp_path):
  writer = _writer(tmp_path)
  for step in (1, 2, 2, 3):
    writer.write(step, {'a': step})
  _writer(tmp_path, start_step=2)
  assert [row['step'] for row in metrics.read(tmp_path)] == [1, 2, 2]
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.jsonl']


@pytest.mark.parametrize(
  'line',
  [
    *('{"step": \x00', '[3]', '{"step": null, "loss": 1.0}', '{"step": 3.5}'),
    *('{"step": true}', '{"step": 4, "loss": "low"}', '[' * 100_000),
  ],
)
def test_a_damaged_line_is_left_out(tmp_path, caplog, line):
  text = '{"step": 1}\n' + line + '\n{"step": 4}\n{"st'
  (tmp_path / 'metrics.jsonl').write_text(text)
  assert metrics.read(tmp_path) == [{'step': 1}, {'step': 4}]
  assert 'line 2, is left out' in caplog.text
  assert 'line 4' not in caplog.text


def test_lines_are_written_later_if_there_was_no_room(tmp_path, caplog):
  writer = metrics.MetricWriter(tmp_path, start_step=0, tensorboard=False)
  writer.write(1, {'a': 1.0})
  size, limit = (
    (tmp_path / 'metrics.jsonl').stat().st_size,
    resource.RLIMIT_FSIZE,
  )
  old = resource.getrlimit(limit)
  # The next line fits in part.
  resource.setrlimit(limit, (size + 5, old[1]))
  try:
    writer.write(2, {'a': 2.0})
    writer.write(3, {'a': 3.0})
    assert (tmp_path / 'metrics.jsonl').stat().st_size == size
    assert caplog.text.count('metrics.jsonl cannot be written: File too') == 1
    with pytest.raises(OSError, match=r'File too large.*metrics\.jsonl'):
      writer.flush()
  finally:
    resource.setrlimit(limit, old)
  writer.close()
  assert [row['step'] for row in metrics.read(tmp_path)] == [1, 2, 3]


def test_a_full_disk_ends_only_tensorboard(tmp_path, monkeypatch, caplog):
  writer = metrics.MetricWriter(tmp_path, start_step=0, tensorboard=True)
  writer.write(1, {'a': 1.0})

  def full(_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(event_file_writer.EventsWriter, 'flush', full)
  for step in (2, 3):
    writer.write(step, {'a': 1.0})
  writer.close()
  assert caplog.text.count('ends here: No space left on device') == 1
  assert len(metrics.read(tmp_path)) == 3
