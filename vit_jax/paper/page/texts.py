"""The texts of a section, the same in Markdown and HTML.

The texts are not escaped here: each page escapes them for its own language.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

from vit_jax.paper import report
from vit_jax.paper.numbers import Value

MISSING = 'missing'
DASH = '—'
MINUS = '\N{MINUS SIGN}'
# The marks differ in shape, so that they can be read without colour.
AGREES, DIFFERS = '✓', '✗'
ANSWERS = {
  **{'yes': AGREES, 'no': DIFFERS},
  **{'seen once': '▲', 'not seen': '▽'},
  **{'undecided': '◇', MISSING: '○', 'not in miniature': '·'},
}
COMPLETE, PARTLY, NOT_MEASURED = 'complete', 'partly there', 'not measured'
STATUSES = {COMPLETE: '●', PARTLY: '◐', MISSING: '○', NOT_MEASURED: DASH}

# What unfolds a section that nobody asked for.
UNFOLD = 'Not asked for, and not complete: show what there is'
CLAIMS = 'Claims of the paper'  # The heading of the list of claims.
_YES = {False: 'no', True: 'yes'}
RUN_COLUMNS = ('Run', 'Config', 'Device hours', 'Commit', 'Finished')
# Blocks that have a title.
Block = report.Table | report.Picture
_NUMBERED = re.compile(r'(table|figure)(\d+)')
_COMMIT = re.compile(r'[0-9a-f]{11,}')


@dataclasses.dataclass(frozen=True)
class Status:
  """How much of a section is there.

  Attributes:
    word: a key of `STATUSES`.
    counts: 'number', 'claim', 'run' and 'measurement' -> (done, total);
      'setting' -> (agreeing, total). Kinds that the section does not have are
      absent.
  """

  word: str
  counts: Mapping[str, tuple[int, int]]

  @property
  def mark(self) -> str:
    return STATUSES[self.word]

  @property
  def details(self) -> str:
    """Such as `12 of 30 numbers, 3 of 5 runs`; '' if there are no counts."""
    return ', '.join(
      f'{there} of {plural(all_, thing)}'
      + (' as in the paper' if thing == 'setting' else '')
      for thing, (there, all_) in self.counts.items()
    )


def status(section: report.Section) -> Status:
  """Returns how much of a section is there.

  A picture is drawn from whatever is known, so it counts only where nothing
  else does. Settings are always there, whether they agree or not. A section
  without blocks is missing. A section with only the paper's numbers is not
  measured. A section with an entry in `missing` is never complete.
  """
  every = [b for b in section.blocks if isinstance(b, report.Table)]
  settings = [table for table in every if table.of_settings]
  tables = [table for table in every if not table.of_settings]
  claims = [b for b in section.blocks if isinstance(b, report.Claim)]
  cells = [c for t in tables for c in t.cells.values() if c.expected]
  there = {
    'number': [cell.ours is not None for cell in cells],
    'claim': [claim.answer != MISSING for claim in claims],
    'run': [run.finished for run in section.runs],
  }
  counts = {
    thing: (sum(flags), len(flags)) for thing, flags in there.items() if flags
  }
  if section.measured:
    counts['measurement'] = section.measured
  if settings:
    agreed = [cell.agrees for b in settings for cell in b.cells.values()]
    counts['setting'] = (sum(agreed), len(agreed))
  found = [count for thing, count in counts.items() if thing != 'setting']
  if found:
    done, total = map(sum, zip(*found, strict=True))
    whole = done == total and not section.missing
    word = COMPLETE if whole else PARTLY if done else MISSING
  elif section.missing:
    word = MISSING
  elif settings or any(isinstance(b, report.Picture) for b in section.blocks):
    word = COMPLETE
  else:
    word = NOT_MEASURED if section.blocks else MISSING
  return Status(word, counts)


def summary(sections: Sequence[report.Section]) -> dict[str, int]:
  """Returns status -> number of sections, for statuses that occur."""
  words = [status(section).word for section in sections]
  return {word: words.count(word) for word in STATUSES if word in words}


def claims(
  sections: Sequence[report.Section],
) -> list[tuple[report.Section, report.Claim]]:
  """Returns all claims, each with its section."""
  return [
    (section, block)
    for section in sections
    for block in section.blocks
    if isinstance(block, report.Claim)
  ]


def answers(sections: Sequence[report.Section]) -> dict[str, int]:
  """Returns answer -> number of claims, for answers that occur."""
  found = [claim.answer for _, claim in claims(sections)]
  return {word: found.count(word) for word in ANSWERS if word in found}


def heading(section: report.Section, block: Block) -> str:
  """Returns a block's title; '' if the section has the same title."""
  return '' if block.title == section.title else block.title


def notes(section: report.Section) -> list[str]:
  """Returns the notes below a section; first what is missing, with its mark."""
  missing = [f'{STATUSES[MISSING]} {text}' for text in section.missing]
  return [*missing, *section.notes]


def label(section: report.Section) -> str:
  """`Table 5` for `table5`; other names without their underscores."""
  numbered = _NUMBERED.fullmatch(section.name)
  if numbered:
    kind, index = numbered.groups()
    return f'{kind.capitalize()} {index}'
  name = section.name.replace('_', ' ')
  return name[:1].upper() + name[1:]


def plural(count: int, thing: str) -> str:
  return f'{count} {thing}' if count == 1 else f'{count} {thing}s'


# Cells of tables. -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CellText:
  """The texts of a cell; '' where there is none.

  Attributes:
    ours: the mean, with `± std` for several seeds; `missing`; or a dash if
      neither side has a number.
    paper: the paper's number as printed.
    difference: ours minus the paper's, with its sign.
    mark: of the footnote on the paper's number.
    verdict: `AGREES` or `DIFFERS`, for a setting.
  """

  ours: str
  paper: str = ''
  difference: str = ''
  mark: str = ''
  verdict: str = ''


def cell_text(table: report.Table, row: str, column: str) -> CellText:
  """Returns the texts of one cell; an absent cell is a dash."""
  cell = table.cells.get((row, column), report.Cell(expected=False))
  mark = footnotes(table).get(cell.paper.note, '') if cell.paper else ''
  if isinstance(cell, report.Setting):
    printed = _setting(cell.paper.value, cell.paper.printed)
    # If both sides are the same, the cell shows the setting once.
    ours = printed if cell.same else _setting(cell.ours)
    paper = '' if cell.same else printed
    return CellText(
      ours, paper, mark=mark, verdict=AGREES if cell.agrees else DIFFERS
    )
  paper = cell.paper
  if cell.ours is not None:
    ours = number(cell.ours.mean, table.digits)
    if cell.ours.std is not None:
      ours += f' ± {number(cell.ours.std, table.digits)}'
  elif cell.expected:
    ours = MISSING
  else:
    ours = DASH if paper is None else ''
  difference = cell.difference if table.comparable else None
  return CellText(
    ours,
    '' if paper is None else _paper(paper, table.digits),
    '' if difference is None else signed(difference, table.digits),
    mark,
  )


def footnotes(table: report.Table) -> dict[str, str]:
  """Returns note on the paper's numbers -> mark, from `1` in reading order."""
  cells = (table.cells.get((r, c)) for r in table.rows for c in table.columns)
  notes = [c.paper.note for c in cells if c and c.paper and c.paper.note]
  return {note: str(i) for i, note in enumerate(dict.fromkeys(notes), start=1)}


def legend(table: report.Table) -> str:
  """Returns sentences that explain the symbols that the table's cells have."""
  if table.of_settings:
    agreed = [cell.agrees for cell in table.cells.values()]
    return f'{AGREES} {sum(agreed)} of {len(agreed)} agree.'
  texts = [cell_text(table, r, c) for r in table.rows for c in table.columns]
  several = [
    cell.ours and cell.ours.std is not None for cell in table.cells.values()
  ]
  sentences = []
  if any(several):
    sentences.append('± is the standard deviation over seeds.')
  if any(text.difference for text in texts):
    sentences.append('Δ is ours minus the paper’s.')  # noqa: RUF001
  if not table.comparable and any(text.paper for text in texts):
    sentences.append(
      'Our models and data are not the paper’s. So the'  # noqa: RUF001
      ' table does not subtract the numbers of the paper from ours.'
    )
  return ' '.join(sentences)


def _paper(value: Value, digits: int) -> str:
  if value.printed:
    return value.printed
  if isinstance(value.value, str):
    return value.value
  std = '' if value.std is None else f'±{number(value.std, digits)}'
  return number(value.value, digits) + std


def _setting(value: float | str, printed: str = '') -> str:
  """Returns the printed text, or else the number without trailing zeros."""
  return printed or (value if isinstance(value, str) else f'{value:.12g}')


def number(value: float, digits: int) -> str:
  """Formats a number, rounded and with commas; 0 never has a sign."""
  return f'{value:z,.{digits}f}'.replace('-', MINUS)


def signed(value: float, digits: int) -> str:
  """Formats as `number` does, with a sign unless the number rounds to zero."""
  text = number(value, digits)
  return f'+{text}' if value > 0 and text.strip('0.') else text


# Runs. ------------------------------------------------------------------------


def run_rows(
  runs: Sequence[report.Run], link: Callable[[str, str], str]
) -> list[tuple[str, ...]]:
  """Returns the texts for `RUN_COLUMNS`.

  Args:
    runs: the runs behind a section.
    link: makes a link of a text and a path.
  """
  return [
    (
      run.name,
      run.config,
      'unknown' if run.hours is None else _hours(run.hours),
      _COMMIT.sub(lambda found: found[0][:10], run.commit) or 'unknown',
      link('yes', run.certificate) if run.certificate else _YES[run.finished],
    )
    for run in runs
  ]


def runs_summary(runs: Sequence[report.Run]) -> str:
  """Such as `3 of 5 runs finished, 12.50 device hours`."""
  finished = sum(run.finished for run in runs)
  known = [run.hours for run in runs if run.hours is not None]
  text = f'{finished} of {plural(len(runs), "run")} finished'
  if not known:
    return text
  unknown = len(runs) - len(known)
  rest = f' (unknown for {unknown})' if unknown else ''
  return f'{text}, {_hours(sum(known))} device hours{rest}'


def _hours(hours: float) -> str:
  # Runs in miniature take seconds, which must not be shown as 0.00.
  return '< 0.01' if 0 < hours < 0.01 else number(hours, 2)
