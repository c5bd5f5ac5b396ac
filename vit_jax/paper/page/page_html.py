"""The reproduction as one self-contained HTML page."""

import base64
import html as html_lib
import urllib.parse
from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax.pages import drawing
from vit_jax.paper import report
from vit_jax.paper.page import page_parts as parts
from vit_jax.paper.page.page_style import CSS
from vit_jax.runtime import printable

_SUFFIXES = ('.png', '.pdf', '.csv')
# Browser pixels per inch of a picture: its text is then as large as the page's.
_INCH = 115
# Longer words may break anywhere; `R50+ViT-B/32,` is just short enough.
_LONGEST_WORD = 14


def html(
  sections: Sequence[report.Section],
  *,
  title: str,
  facts: Mapping[str, object],
  pictures: epath.PathLike,
  about: Sequence[str | report.Listing] = (),
) -> str:
  """Renders all sections, with a table of contents.

  Args:
    sections: in the paper's order.
    title: of the page.
    facts: name -> short fact, shown at the top.
    pictures: folder of the pictures' files, where the page will be written.
    about: paragraphs and listings below the facts.

  Returns:
    HTML with its style and its pictures inside, which links to the PDF and
    CSV files next to it.

  Raises:
    ValueError: a picture's file does not exist, or as `page_parts.check` does.
  """
  parts.check(sections)
  folder = epath.Path(pictures)
  body = '\n'.join(
    [_claims(sections), *(_section(section, folder) for section in sections)]
  )
  paragraphs = '\n'.join(map(_about, about))
  return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{CSS}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{_facts(facts)}
{paragraphs}
</header>
<nav aria-label="Contents">
{_contents(sections)}
</nav>
<main>
{body}
</main>
</body>
</html>
"""


def _about(block: str | report.Listing) -> str:
  if isinstance(block, str):
    return f'<p class="about">{escape(block)}</p>'
  columns = ''.join(f'<th scope="col">{escape(c)}</th>' for c in block.columns)
  rows = ''.join(
    f'<tr>{"".join(f"<td>{escape(text)}</td>" for text in row)}</tr>\n'
    for row in block.rows
  )
  return f"""<div class="scroll about" role="region" tabindex="0" \
aria-label="{escape(block.columns[0])}">
<table class="listing">
<thead><tr>{columns}</tr></thead>
<tbody>
{rows}</tbody>
</table>
</div>"""


def _facts(facts: Mapping[str, object]) -> str:
  items = ''.join(
    f'<div><dt>{escape(name)}</dt><dd>{escape(str(fact))}</dd></div>\n'
    for name, fact in facts.items()
  )
  return f'<dl class="facts">\n{items}</dl>' if facts else ''


def _contents(sections: Sequence[report.Section]) -> str:
  counts = ' '.join(
    f'<span>{_mark(word)} {count} {word}</span>'
    for word, count in parts.summary(sections).items()
  )
  items = ''.join(
    f'<li><a href="#{urllib.parse.quote(section.name)}">'
    f'{_mark(parts.status(section).word)}'
    f'<span><b>{escape(parts.label(section))}</b> {escape(section.title)}'
    f'<small>{_status_text(section)}</small></span></a></li>\n'
    for section in sections
  )
  return f"""<h2>Contents</h2>
<p class="summary">{counts}</p>
<ol>
{items}</ol>"""


def _claims(sections: Sequence[report.Section]) -> str:
  """All claims with their answers; the sections have the evidence."""
  rows = ''.join(
    f'<li class="{_answer_class(claim)}">{_answer(claim.answer)}'
    f'<span>{escape(claim.statement)}'
    f' <a href="#{urllib.parse.quote(section.name)}">'
    f'{escape(parts.label(section))}</a></span></li>\n'
    for section, claim in parts.claims(sections)
  )
  if not rows:
    return ''
  counts = ', '.join(
    f'{count} {word}' for word, count in parts.answers(sections).items()
  )
  return f"""<section>
<h2>{parts.CLAIMS}</h2>
<p class="status">{counts}</p>
<ul class="answers">
{rows}</ul>
</section>"""


def _answer(answer: str) -> str:
  mark = f'<span aria-hidden="true">{parts.ANSWERS[answer]}</span>'
  return f'<b class="answer">{mark} {answer}</b>'


def _answer_class(claim: report.Claim) -> str:
  return claim.answer.replace(' ', '-')


def _mark(word: str) -> str:
  """The mark of a status; hidden from screen readers, which read its word."""
  name = word.replace(' ', '-')
  return f'<i class="mark {name}" aria-hidden="true">{parts.STATUSES[word]}</i>'


def _status_text(section: report.Section) -> str:
  status = parts.status(section)
  details = f': {status.details}' if status.details else ''
  return f'{status.word}{details}'


def _section(section: report.Section, folder: epath.Path) -> str:
  blocks = []
  for block in section.blocks:
    if isinstance(block, report.Table | report.Settings):
      blocks.append(_table(block, parts.heading(section, block)))
    elif isinstance(block, report.Picture):
      blocks.append(_picture(block, parts.heading(section, block), folder))
    else:
      blocks.append(_claim(block))
  if notes := parts.notes(section):
    listed = ''.join(f'<li>{escape(note)}</li>\n' for note in notes)
    blocks.append(f'<ul class="notes">\n{listed}</ul>')
  if section.runs:
    blocks.append(_runs(section.runs))
  if section.folded:
    blocks = [
      '<details class="folded">',
      f'<summary>{parts.UNFOLD}</summary>',
      *blocks,
      '</details>',
    ]
  word = parts.status(section).word
  return '\n'.join(
    (
      f'<section id="{escape(section.name)}">',
      f'<h2><span>{escape(parts.label(section))}</span> '
      f'{escape(section.title)}</h2>',
      f'<p class="status">{_mark(word)} {_status_text(section)}</p>',
      *blocks,
      '</section>',
    )
  )


def _table(table: report.Table | report.Settings, heading: str) -> str:
  columns = ''.join(
    f'<th scope="col">{_label(column)}</th>' for column in table.columns
  )
  rows = ''.join(
    f'<tr><th scope="row">{_label(row)}</th>'
    f'{"".join(_cell(table, row, column) for column in table.columns)}</tr>\n'
    for row in table.rows
  )
  below = [
    f'<sup>{mark}</sup> {escape(note)}'
    for note, mark in parts.footnotes(table).items()
  ]
  if parts.legend(table):
    below.insert(0, escape(parts.legend(table)))
  below = ''.join(f'<p class="below">{line}</p>\n' for line in below)
  settings = isinstance(table, report.Settings)
  key = 'paper, where it differs' if settings else 'paper'
  caption = f'<span class="key">ours <small>{key}</small></span>'
  return f"""<figure>
{_caption(heading)}<div class="scroll" role="region" tabindex="0" \
aria-label="{escape(table.title)}">
<table class="numbers{' settings' if settings else ''}">
<thead><tr><td>{caption}</td>{columns}</tr></thead>
<tbody>
{rows}</tbody>
</table>
</div>
{below}</figure>"""


def _caption(heading: str) -> str:
  return f'<figcaption>{escape(heading)}</figcaption>\n' if heading else ''


def _label(text: str) -> str:
  """Lets a label break at spaces only: browsers also break after `ViT-`.

  Words that are too long for a narrow column may break anywhere.
  """
  return ' '.join(
    f'<span>{escape(word)}</span>'
    if len(word) <= _LONGEST_WORD
    else escape(word)
    for word in text.split()
  )


def _cell(table: report.Table | report.Settings, row: str, column: str) -> str:
  text = parts.cell_text(table, row, column)
  mark = f'<sup>{text.mark}</sup>' if text.mark else ''
  ours = paper = ''
  if text.ours:
    kind = {parts.MISSING: 'ours missing', parts.DASH: 'none'}
    name = kind.get(text.ours, 'ours')
    ours = f'<span class="{name}">{escape(text.ours)}</span>'
  if text.verdict:
    word = 'agrees' if text.verdict == parts.AGREES else 'differs'
    ours += f'&nbsp;<i class="{word}" title="{word}">{text.verdict}</i>'
  if text.paper:
    difference = f' <span>Δ {text.difference}</span>' if text.difference else ''
    paper = f'<small>{escape(text.paper)}{mark}{difference}</small>'
  else:
    ours += mark
  return f'<td>{ours}{paper}</td>'


def _picture(picture: report.Picture, heading: str, folder: epath.Path) -> str:
  """Raises ValueError if a file that the page shows or links to is missing."""
  paths = [folder / f'{picture.stem}{suffix}' for suffix in _SUFFIXES]
  missing = [str(path) for path in paths if not path.exists()]
  if missing:
    raise ValueError(
      f'Picture {picture.title!r} is not drawn: there is no '
      f'{", ".join(missing)}. Draw it first, or leave it out.'
    )
  png = paths[0].read_bytes()
  data = base64.b64encode(png).decode('ascii')
  # The header of a PNG file begins with its width.
  pixels = int.from_bytes(png[16:20])
  width = max(1, round(pixels * _INCH / drawing.PIXELS_PER_INCH))
  links = ' '.join(
    f'<a href="{urllib.parse.quote(picture.stem + suffix)}">'
    f'{suffix[1:].upper()}</a>'
    for suffix in _SUFFIXES[1:]
  )
  title = escape(picture.title)
  return f"""<figure>
{_caption(heading)}<img src="data:image/png;base64,{data}" \
width="{width}" alt="{title}">
<p class="below">{escape(picture.caption)}
<span class="files">{links}</span></p>
</figure>"""


def _claim(claim: report.Claim) -> str:
  return f"""<div class="claim {_answer_class(claim)}">
<p>{escape(claim.statement)}</p>
<p>{_answer(claim.answer)} {escape(parts.evidence(claim))}</p>
</div>"""


def _runs(runs: Sequence[report.Run]) -> str:
  columns = ''.join(
    f'<th scope="col">{name}</th>' for name in parts.RUN_COLUMNS
  )
  rows = ''.join(
    f'<tr class="{"finished" if run.finished else "unfinished"}">'
    f'{"".join(f"<td>{escape(text)}</td>" for text in parts.run_row(run))}'
    '</tr>\n'
    for run in runs
  )
  return f"""<details>
<summary>{escape(parts.runs_summary(runs))}</summary>
<div class="scroll" role="region" tabindex="0" aria-label="Runs">
<table class="runs">
<thead><tr>{columns}</tr></thead>
<tbody>
{rows}</tbody>
</table>
</div>
</details>"""


def escape(text: str) -> str:
  """Escapes text for HTML, including characters that HTML cannot hold."""
  return html_lib.escape(printable.text(text))
