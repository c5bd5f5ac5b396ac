"""Compares an interrupted run with an uninterrupted one."""

import pathlib

from tests.faults.damage import complete_steps
from tests.tiny_run import assert_same_state, rows_but_times

# Means and sums since the previous line, which a save may have added.
_INTERVAL = ('loss', 'accuracy', 'skipped', 'unreadable')


def assert_same(
  workdir: pathlib.Path, expected: pathlib.Path, steps: int
) -> None:
  """Asserts that a finished run is as another run, except for times.

  The states and the final weights are bitwise equal, and so are the numbers of
  all lines that both runs have. A run that saved because of a signal has more.
  """
  assert complete_steps(workdir)[-1:] == [steps]
  for part in ('.', 'final'):
    assert_same_state(workdir / part, expected / part)
  assert (workdir / 'DONE').read_text() == (expected / 'DONE').read_text()
  assert not list(workdir.glob('*/*-tmp*'))
  assert_same_rows(rows_but_times(workdir), rows_but_times(expected))


def assert_same_rows(rows: list[dict], expected: list[dict]) -> None:
  """Asserts that lines are equal, except for means that a restart splits."""
  steps = {row['step'] for row in expected}
  more = [row['step'] for row in rows if row['step'] not in steps]
  rows, before = [row for row in rows if row['step'] in steps], 0
  assert len(rows) == len(expected)
  for row, wanted in zip(rows, expected, strict=True):
    split = any(before < step < wanted['step'] for step in more)
    leave_out = {f'train/{name}' for name in _INTERVAL} if split else set()
    one, other = (
      {k: v for k, v in x.items() if k not in leave_out} for x in (row, wanted)
    )
    assert one == other
    if 'train/loss' in wanted:
      before = wanted['step']
