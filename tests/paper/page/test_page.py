"""Guards: the page shows all of its sections, in safe Markdown and HTML."""

import base64
import dataclasses
import re
import urllib.parse

import pytest

from tests.paper import pages
from vit_jax.paper import page, report
from vit_jax.paper.numbers.values import Value
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Cell, Claim, Picture, Run, Section

# The table of contents. -------------------------------------------------------

DONE = Run('r1', 'configs/vit.py:B/32', True, 1.5, 'c0ffee1234567')
UNDONE = Run('r2', 'configs/vit.py:L/16', False)
WHOLE = report.Table('T', ('a',), ('x',), {('a', 'x'): pages.CELLS['a', 'x']})
EMPTY = report.Table('T', ('a',), ('x',), {('a', 'x'): Cell()})
PAPERS = report.Table(
  'T', ('a',), ('x',), {('a', 'x'): Cell(None, Value(1.0), expected=False)}
)


@pytest.mark.parametrize(
  'section, word, details',
  [
    (
      Section('s', '', (WHOLE,), (DONE,)),
      'complete',
      '1 of 1 number, 1 of 1 run',
    ),
    (Section('s', '', (pages.TABLE,)), 'partly there', '3 of 4 numbers'),
    (
      Section('s', '', (WHOLE,), (DONE, UNDONE)),
      'partly there',
      '1 of 1 number, 1 of 2 runs',
    ),
    (
      Section('s', '', (WHOLE, Claim('S', 'missing', ''))),
      'partly there',
      '1 of 1 number, 0 of 1 claim',
    ),
    (Section('s', '', (Claim('S', 'no', ''),)), 'complete', '1 of 1 claim'),
    (
      Section('s', '', (EMPTY, Picture('P', 'p', '')), (UNDONE,)),
      'missing',
      '0 of 1 number, 0 of 1 run',
    ),
    (Section('s', '', (Picture('P', 'p', ''),)), 'complete', ''),
    (Section('s', ''), 'missing', ''),
    (Section('s', '', (PAPERS,)), 'not measured', ''),
  ],
)
def test_the_status_of_a_section(section, word, details):
  status = page_parts.status(section)
  assert (status.word, status.details) == (word, details)


def test_two_sections_with_the_same_name_are_refused():
  with pytest.raises(ValueError, match='same name: table5'):
    pages.html_page(Section('table5', 'T'), Section('table5', 'T'))


def test_links_resolve(tmp_path):
  sections = (
    Section('a b', 'T', (pages.draw(tmp_path, 'figures/a #1'),)),
    Section('table5', 'T', (pages.TABLE,)),
  )
  page.write(sections, tmp_path, title='R', facts={})
  reader = pages.Reader((tmp_path / 'index.html').read_text())
  text = (tmp_path / 'results.md').read_text()
  links = re.findall(r'\]\(([^)]*)\)', text)
  ids = [*map(urllib.parse.unquote, re.findall(r'<a id="(.*?)"', text))]
  assert reader.ids == ids == ['a b', 'table5']
  assert len(reader.links) == 4
  assert len(links) == 5
  for link in [*reader.links, *links]:
    path, _, anchor = link.partition('#')
    if path:
      assert (tmp_path / urllib.parse.unquote(path)).is_file()
    else:
      assert urllib.parse.unquote(anchor) in ids


# Claims, pictures, runs, notes, facts. ----------------------------------------


@pytest.mark.parametrize(
  'answer, mark',
  [
    *(('yes', '✓'), ('no', '✗'), ('seen once', '▲'), ('not seen', '▽')),
    *(('undecided', '◇'), ('missing', '○')),
  ],
)
def test_answers_have_a_mark_and_a_word(answer, mark):
  section = Section('t', 'T', (Claim('It is so.', answer, 'As 2 > 1.'),))
  assert (
    f'> It is so.\n>\n> **{mark} {answer}.** As 2 \\> 1.'
    in pages.markdown(section)
  )
  assert f'| It is so. | {mark} {answer} | [T](#t) |' in pages.markdown(section)
  text = re.sub(r'<[^>]*>', '', pages.html_page(section).split('<main>')[1])
  assert f'It is so.\n{mark} {answer} As 2 &gt; 1.' in text
  assert f'\n1 {answer}\n\n{mark} {answer}It is so. T\n' in text
  assert f'class="claim {answer.replace(" ", "-")}"' in pages.html_page(section)


def test_an_unknown_answer_is_refused():
  with pytest.raises(ValueError, match=r"'maybe'; expected one of 'yes', 'no'"):
    pages.html_page(Section('t', 'T', (Claim('S', 'maybe', ''),)))


def test_pictures_are_embedded_and_nothing_else_is_loaded(tmp_path):
  section = Section('figure7', 'T', (pages.draw(tmp_path),))
  text = pages.html_page(section, pictures=tmp_path)
  reader = pages.Reader(text)
  (image,) = reader.images
  head, data = image.split(',')
  assert head == 'data:image/png;base64'
  assert base64.b64decode(data) == pages.PNG
  assert reader.links[1:] == ['figures/figure7.pdf', 'figures/figure7.csv']
  assert not reader.tags & {'script', 'link', 'iframe'}
  assert 'http' not in text
  assert 'url(' not in text
  assert '![Filters](figures/figure7.png)' in pages.markdown(section)


def test_a_missing_picture_file_is_refused(tmp_path):
  picture = pages.draw(tmp_path)
  (tmp_path / 'figures/figure7.csv').unlink()
  with pytest.raises(ValueError, match=r'there is no \S+figure7.csv\. Draw'):
    pages.html_page(Section('figure7', 'T', (picture,)), pictures=tmp_path)


def test_runs_are_listed_with_unknown_values():
  section = Section('t', 'T', (), (DONE, UNDONE))
  summary = '<summary>1 of 2 runs finished, 1.50 device hours (unknown for 1)<'
  grid = [
    ['r1', 'configs/vit.py:B/32', '1.50', 'c0ffee1234', 'yes'],
    ['r2', 'configs/vit.py:L/16', 'unknown', 'unknown', 'no'],
  ]
  text = pages.html_page(section)
  assert summary in text
  cells = [[ours for ours, _ in row] for row in pages.Reader(text).grid[1:]]
  assert cells == grid
  text = pages.markdown(section)
  assert summary in text
  for row in grid:
    assert f'| {" | ".join(row)} |' in text


# Well-formed and safe. --------------------------------------------------------


def _evil(field):
  return f'<b>|"&\'`*_{field}[1]\nnext'


FIELDS = (
  *('title', 'fact', 'factname', 'section', 'heading', 'table', 'row'),
  *('column', 'printed', 'text', 'footnote', 'picture', 'caption'),
  *('statement', 'evidence', 'run', 'config', 'note'),
)
PAGE = {'title': _evil('title'), _evil('factname'): _evil('fact')}


def _evil_section(folder):
  """Returns a section in which every text must be escaped."""
  row, column = _evil('row'), _evil('column')
  value = Value(0.0, note=_evil('footnote'), printed=_evil('printed'))
  cells = {(row, 'x'): Cell(None, value)}
  cells[row, column] = Cell(None, Value(_evil('text')))
  table = report.Table(_evil('table'), (row,), ('x', column), cells)
  picture = dataclasses.replace(
    pages.draw(folder), title=_evil('picture'), caption=_evil('caption')
  )
  claim = Claim(_evil('statement'), 'yes', _evil('evidence'))
  run = Run(_evil('run'), _evil('config'), True, None, '<b>|')
  return Section(
    _evil('section'),
    _evil('heading'),
    (table, picture, claim),
    (run,),
    (_evil('note'),),
  )


def test_html_escapes_everything(tmp_path):
  text = pages.html_page(_evil_section(tmp_path), pictures=tmp_path, **PAGE)
  assert pages.Reader(text).grid[1][0][1] == f'{_evil("printed")}1'
  assert '<b>|' not in text
  assert '"&\'' not in text
  for field in FIELDS:
    shown = f'&lt;b&gt;|&quot;&amp;&#x27;`*_{field}[1]'
    # A section's name has its underscores replaced.
    assert shown in text or field == 'section', field


def test_markdown_escapes_everything(tmp_path):
  text = pages.markdown(_evil_section(tmp_path), **PAGE)
  assert '<b>' not in text
  assert '\nnext' not in text
  for field in FIELDS:
    shown = rf"""\<b\>\|"\&'\`\*\_{field}\[1\] next"""
    # A section's name has its underscores replaced.
    assert shown in text or field == 'section', field


# Writing. ---------------------------------------------------------------------


def test_the_old_page_stays_if_a_section_is_refused(tmp_path):
  page.write((), tmp_path, title='Before', facts={})
  undrawn = Section('t', 'T', (Picture('P', 'p', ''),))
  with pytest.raises(ValueError, match='not drawn'):
    page.write((undrawn,), tmp_path, title='After', facts={})
  for name in ('results.md', 'index.html'):
    text = (tmp_path / name).read_text()
    assert 'Before' in text
    assert 'After' not in text


def test_sections_that_nobody_asked_for_are_folded():
  section = report.Section('table5', 'Accuracies', (pages.TABLE,))
  folded = dataclasses.replace(section, folded=True)
  for make in (pages.markdown, pages.html_page):
    assert page_parts.UNFOLD not in make(section)
    text = make(folded)
    # Its heading and its status are always shown.
    assert (
      text.index('Accuracies')
      < text.index(page_parts.UNFOLD)
      < text.index('77.20')
    )
