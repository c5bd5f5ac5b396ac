"""Prints a campaign's progress and its final table."""

import collections
import datetime
import time
from collections.abc import Sequence

from tests.faults import plan
from tests.faults.runs import Record, Run


class Progress:
  """Prints each event, with the time left."""

  def __init__(self, total: int):
    self._total = total
    self._done = 0
    self._started = time.monotonic()

  def elapsed(self) -> str:
    """Returns the time since the beginning, as H:MM:SS."""
    return _duration(time.monotonic() - self._started)

  def __call__(self, text: str) -> None:
    print(f'{self.elapsed()}          {text}', flush=True)

  def interruption(self, run: Run, record: Record) -> None:
    """Prints a line for an interruption, and one for each problem."""
    self._done += 1
    elapsed = time.monotonic() - self._started
    left = elapsed / self._done * (self._total - self._done)
    print(
      f'{self.elapsed()} [{self._done:2}/{self._total}] {run.name}:'
      f' {record.fault.kind}: {record.done}; exit codes'
      f' {", ".join(map(str, record.codes)) or "-"}. ETA {_duration(left)}',
      flush=True,
    )
    for problem in record.problems:
      print(f'                 PROBLEM: {problem}', flush=True)


def table(records: Sequence[Record]) -> str:
  """Returns a Markdown table of the faults, their numbers and results."""
  layouts = sorted({record.fault.layout.name for record in records})
  lines = [
    f'| fault | {" | ".join(layouts)} | what followed | failed |',
    f'|---|{"---|" * len(layouts)}---|---|',
  ]
  for kind in plan.KINDS:
    rows = [record for record in records if record.fault.kind == kind]
    if rows:
      lines.append(_line(kind, rows, layouts))
  lines.append(_line('all', records, layouts, outcomes=False))
  return '\n'.join(lines)


def _line(name, records, layouts, outcomes=True) -> str:
  counts = collections.Counter(record.fault.layout.name for record in records)
  cells = [name, *(str(counts[layout]) for layout in layouts)]
  found = collections.Counter(
    f'exit {"/".join(map(str, record.codes))}, {record.aftermath or "ended"}'
    for record in records
  )
  texts = [f'{number} x {text}' for text, number in found.most_common()]
  cells.append('; '.join(texts) if outcomes else '')
  cells.append(str(sum(bool(record.problems) for record in records)))
  return f'| {" | ".join(cells)} |'


def _duration(seconds: float) -> str:
  return str(datetime.timedelta(seconds=round(seconds)))
