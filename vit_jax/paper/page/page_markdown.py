"""The reproduction as Markdown for GitHub."""

import html
import re
import urllib.parse
from collections.abc import Mapping, Sequence

from vit_jax.paper import report
from vit_jax.paper.page import page_parts as parts
from vit_jax.runtime import printable

# Characters with a meaning in Markdown, its tables, HTML or GitHub's formulas.
_SPECIAL = re.compile(r'[\\`*_\[\]<>&|~#$]')


def markdown(
  sections: Sequence[report.Section],
  *,
  title: str,
  facts: Mapping[str, object],
  about: Sequence[str | report.Listing] = (),
  list_runs: bool = True,
) -> str:
  """Renders all sections, after a table of contents.

  Args:
    sections: in the paper's order.
    title: of the page.
    facts: name -> short fact, shown at the top.
    about: paragraphs and listings below the facts.
    list_runs: whether each section ends with a line for each of its runs.

  Returns:
    Markdown, which links to the pictures next to it.

  Raises:
    ValueError: as `page_parts.check` does.
  """
  parts.check(sections)
  blocks = [f'# {escape(title)}']
  if facts:
    blocks.append(
      '\n'.join(
        f'- {escape(name)}: {escape(str(fact))}' for name, fact in facts.items()
      )
    )
  for block in about:
    blocks.append(
      escape(block)
      if isinstance(block, str)
      else _table(
        tuple(map(escape, block.columns)),
        [tuple(map(escape, row)) for row in block.rows],
      )
    )
  blocks += ['## Contents', _contents(sections)]
  if parts.claims(sections):
    blocks += [f'## {parts.CLAIMS}', _claims(sections)]
  for section in sections:
    blocks += _section(section, list_runs)
  return '\n\n'.join(blocks) + '\n'


def escape(text: str) -> str:
  """Escapes text for Markdown, on one line, so that it also fits in tables."""
  words = printable.name(' '.join(text.split()))
  return _SPECIAL.sub(r'\\\g<0>', words)


def _contents(sections: Sequence[report.Section]) -> str:
  rows = []
  for section in sections:
    status = parts.status(section)
    name = escape(parts.label(section))
    rows.append(
      (
        f'[{name}](#{urllib.parse.quote(section.name)})',
        escape(section.title),
        f'{status.mark} {status.word}',
        status.details,
      )
    )
  return _table(('Item', 'About', 'Status', 'Details'), rows)


def _claims(sections: Sequence[report.Section]) -> str:
  rows = [
    (
      escape(claim.statement),
      f'{parts.ANSWERS[claim.answer]} {claim.answer}',
      f'[{escape(parts.label(section))}](#{urllib.parse.quote(section.name)})',
    )
    for section, claim in parts.claims(sections)
  ]
  return _table(('Claim', 'Answer', 'Item'), rows)


def _section(section: report.Section, list_runs: bool) -> list[str]:
  status = parts.status(section)
  details = f': {status.details}' if status.details else ''
  anchor = urllib.parse.quote(section.name)
  name = escape(parts.label(section))
  blocks = [
    f'<a id="{anchor}"></a>',
    f'## {name}. {escape(section.title)}',
    f'{status.mark} {status.word}{details}',
  ]
  if section.folded:
    blocks.append(f'<details><summary>{parts.UNFOLD}</summary>')
  for block in section.blocks:
    if not isinstance(block, report.Claim):
      heading = parts.heading(section, block)
      blocks += [f'### {escape(heading)}'] if heading else []
    if isinstance(block, report.Table | report.Settings):
      blocks += _numbers(block)
    elif isinstance(block, report.Picture):
      blocks += _picture(block)
    else:
      blocks.append(_claim(block))
  if notes := parts.notes(section):
    blocks.append('\n'.join(f'- {escape(note)}' for note in notes))
  if section.runs and list_runs:
    rows = [tuple(map(escape, parts.run_row(run))) for run in section.runs]
    # Escaped as HTML: Markdown is not parsed in a line of HTML tags.
    summary = html.escape(parts.runs_summary(section.runs))
    blocks += [
      f'<details><summary>{summary}</summary>',
      _table(parts.RUN_COLUMNS, rows),
      '</details>',
    ]
  if section.folded:
    blocks.append('</details>')
  return blocks


def _numbers(table: report.Table | report.Settings) -> list[str]:
  rows = [
    (escape(row), *(_cell(table, row, column) for column in table.columns))
    for row in table.rows
  ]
  below = [
    f'<sup>{mark}</sup> {escape(note)}'
    for note, mark in parts.footnotes(table).items()
  ]
  if parts.legend(table):
    below.insert(0, parts.legend(table))
  return [
    _table(('', *map(escape, table.columns)), rows, align='---:'),
    *below,
  ]


def _cell(table: report.Table | report.Settings, row: str, column: str) -> str:
  text = parts.cell_text(table, row, column)
  mark = f'<sup>{text.mark}</sup>' if text.mark else ''
  ours = escape(text.ours) if text.verdict else text.ours
  if text.verdict == parts.DIFFERS:
    ours = f'**{ours}**'
  ours = ' '.join(filter(None, (ours, text.verdict)))
  if not text.paper:
    return ours + mark
  paper = f'paper {escape(text.paper)}{mark}'
  if text.difference:
    paper += f', Δ {text.difference}'
  return ' '.join(filter(None, (ours, f'({paper})')))


def _picture(picture: report.Picture) -> list[str]:
  stem = urllib.parse.quote(picture.stem)
  return [
    f'![{escape(picture.title)}]({stem}.png)',
    f'{escape(picture.caption)} ([PDF]({stem}.pdf), [CSV]({stem}.csv))',
  ]


def _claim(claim: report.Claim) -> str:
  answer = f'{parts.ANSWERS[claim.answer]} {claim.answer}'
  evidence = escape(parts.evidence(claim))
  return f'> {escape(claim.statement)}\n>\n> **{answer}.** {evidence}'


def _table(
  columns: Sequence[str], rows: Sequence[Sequence[str]], align: str = '---'
) -> str:
  """Joins escaped cells into a table, whose first column has labels."""
  rules = ['---', *[align] * (len(columns) - 1)]
  return '\n'.join(
    '| ' + ' | '.join(cells) + ' |' for cells in (columns, rules, *rows)
  )
