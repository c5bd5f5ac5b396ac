"""Guards: metrics are finite, written once, and readable after any crash."""

import math
import resource

import pytest

from vit_jax.runtime import errors
from vit_jax.workdir import files, metrics


def _writer(workdir, start_step=0, tensorboard=False):
  return metrics.MetricWriter(
    workdir, start_step=start_step, tensorboard=tensorboard
  )


def test_each_line_holds_one_object(tmp_path):
  assert metrics.read(tmp_path) == []
  writer = _writer(tmp_path)
  # The row is on disk at once, because the process may die at any time. Only
  # finite numbers are written.
  writer.write(5, {'train/loss': 0.5, 'a': math.nan, 'b': -math.inf, 'c': 72})
  assert (tmp_path / 'metrics.jsonl').read_text() == (
    '{"step": 5, "train/loss": 0.5, "c": 72.0}\n'
  )


@pytest.mark.parametrize('torn', ['{"st', '{"step": 3}'])
def test_an_incomplete_last_line_is_left_out(tmp_path, torn):
  # Even a line that parses may lack digits if it has no end of line.
  (tmp_path / 'metrics.jsonl').write_text('{"step": 2, "a": 1.0}\n' + torn)
  assert metrics.read(tmp_path) == [{'step': 2, 'a': 1.0}]
  _writer(tmp_path, start_step=2).write(3, {'a': 2.0})
  assert metrics.read(tmp_path)[1:] == [{'step': 3, 'a': 2.0}]


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
    *('{"step": 4, "loss": "low"}', '[' * 100_000),
  ],
)
def test_a_damaged_line_is_left_out(tmp_path, caplog, line):
  text = '{"step": 1}\n' + line + '\n{"step": 4}\n{"st'
  (tmp_path / 'metrics.jsonl').write_text(text)
  assert metrics.read(tmp_path) == [{'step': 1}, {'step': 4}]
  assert 'line 2, is left out' in caplog.text
  assert 'line 4' not in caplog.text


def test_a_full_disk_is_an_error_and_leaves_no_wrong_row(tmp_path):
  writer = _writer(tmp_path)
  writer.write(1, {'a': 1.0})
  size = (tmp_path / 'metrics.jsonl').stat().st_size
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  # The next line fits in part.
  resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, old[1]))
  try:
    with (
      pytest.raises(errors.SaveError, match=f'^{tmp_path}: File too large'),
      files.disk_full_named(tmp_path),  # As in a run.
    ):
      writer.write(2, {'a': 2.0})
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
  assert metrics.read(tmp_path) == [{'step': 1, 'a': 1.0}]
  _writer(tmp_path, start_step=1).write(2, {'a': 2.0})
  assert metrics.read(tmp_path)[1:] == [{'step': 2, 'a': 2.0}]
