"""Guards: the page shows all of its sections, in safe Markdown and HTML."""

import base64
import dataclasses
import re
import urllib.parse

import pytest

from tests.paper import pages
from tests.paper.pages import CELLS, TABLE
from vit_jax.paper import page, report
from vit_jax.paper.numbers import Value
from vit_jax.paper.page import texts
from vit_jax.paper.report import Cell, Claim, Picture, Run, Section, Setting

# Tables. ----------------------------------------------------------------------


def test_cells_show_our_value_the_papers_and_the_difference():
  assert pages.grid(TABLE) == [
    [('77.20 ± 0.14', '77.910 Δ −0.71'), ('99.50', '99.25±0.50 Δ +0.25')],  # noqa: RUF001
    [('missing', '71.5'), ('', '7/14')],
    [('50.00', ''), ('—', '')],
  ]
  assert pages.rows(TABLE) == [
    '| a | 77.20 ± 0.14 (paper 77.910, Δ −0.71)'  # noqa: RUF001
    ' | 99.50 (paper 99.25±0.50, Δ +0.25) |',
    '| b | missing (paper 71.5) | (paper 7/14) |',
    '| c | 50.00 | — |',
  ]


@pytest.mark.parametrize('place', [p for p, c in CELLS.items() if c.ours])
def test_a_deleted_number_makes_only_its_cell_missing(place):
  gone = dataclasses.replace(CELLS[place], ours=None)
  table = dataclasses.replace(TABLE, cells={**CELLS, place: gone})
  at = TABLE.rows.index(place[0]), TABLE.columns.index(place[1])
  before, after = pages.grid(TABLE), pages.grid(table)
  ours, paper = after[at[0]][at[1]]
  assert ours == 'missing'
  assert 'Δ' not in paper
  before[at[0]][at[1]] = after[at[0]][at[1]]
  assert before == after
  lines = zip(pages.rows(TABLE), pages.rows(table), strict=True)
  assert [a != b for a, b in lines] == [row == place[0] for row in TABLE.rows]


def test_incomparable_tables_show_no_differences_and_say_so():
  table = dataclasses.replace(TABLE, comparable=False)
  assert pages.grid(table)[0] == [
    *(('77.20 ± 0.14', '77.910'), ('99.50', '99.25±0.50'))
  ]
  for make in (pages.markdown, pages.html_page):
    text = make(Section('t', 'T', (table,)))
    assert 'Δ' not in text
    assert 'does not subtract' in text


def test_equal_settings_are_shown_once_and_different_ones_twice():
  cells = {
    ('a', 'x'): Setting(8e-4, Value(8e-4, printed='8e-4')),
    ('a', 'y'): Setting('linear', Value('linear', printed='linear')),
    ('b', 'x'): Setting(0.0005, Value(3e-4, printed='3e-4')),
    ('b', 'y'): Setting(7.0, Value('7/14', printed='7/14'), accepted=True),
    ('c', 'x'): Setting(10_000, Value(10_000, note='its caption')),
  }
  table = report.Table('Rates', ('a', 'b', 'c'), ('x', 'y'), cells)
  assert pages.rows(table) == [
    '| a | 8e-4 ✓ | linear ✓ |',
    '| b | **0.0005** ✗ (paper 3e-4) | 7 ✓ (paper 7/14) |',
    '| c | 10000 ✓<sup>1</sup> | — |',
  ]
  assert pages.grid(table) == [
    [('8e-4\xa0✓', ''), ('linear\xa0✓', '')],
    [('0.0005\xa0✗', '3e-4'), ('7\xa0✓', '7/14')],
    [('10000\xa0✓1', ''), ('—', '')],
  ]
  section = Section('table3', 'T', (table, table))
  status = texts.status(section)
  assert (status.word, status.counts) == ('complete', {'setting': (8, 10)})
  for make in (pages.markdown, pages.html_page):
    assert '4 of 5 agree' in make(section)
    assert 'its caption' in make(section)


def test_a_page_stays_if_a_picture_is_not_drawn(tmp_path):
  page.write((), tmp_path, title='Before', facts={})
  section = Section('t', 'T', [Picture('P', 'nowhere', '')])
  with pytest.raises(FileNotFoundError, match=r'nowhere\.png'):
    page.write([section], tmp_path, title='After', facts={})
  for name in ('results.md', 'index.html'):
    text = (tmp_path / name).read_text()
    assert ('Before' in text, 'After' in text) == (True, False)


# Status, claims, pictures, runs. ----------------------------------------------

DONE = Run('r1', 'configs/vit.py:B/32', True, 1.5, 'c0ffee1234567')
UNDONE = Run('r2', 'configs/vit.py:L/16', False)
WHOLE = report.Table('T', ('a',), ('x',), {('a', 'x'): CELLS['a', 'x']})
EMPTY = report.Table('T', ('a',), ('x',), {('a', 'x'): Cell()})
PAPERS = report.Table(
  'T', ('a',), ('x',), {('a', 'x'): Cell(None, Value(1.0), expected=False)}
)
PICTURE = Picture('P', 'p', '')


@pytest.mark.parametrize(
  ('section', 'word', 'details'),
  [
    ([(WHOLE,), (DONE,)], 'complete', '1 of 1 number, 1 of 1 run'),
    ([(TABLE,)], 'partly there', '3 of 4 numbers'),
    ([(WHOLE,), (DONE, UNDONE)], 'partly there', '1 of 1 number, 1 of 2 runs'),
    (
      [(WHOLE, Claim('S', 'missing', ''))],
      *('partly there', '1 of 1 number, 0 of 1 claim'),
    ),
    ([(Claim('S', 'no', ''),)], 'complete', '1 of 1 claim'),
    ([(Claim('S', 'not in miniature', ''),)], 'complete', '1 of 1 claim'),
    ([(EMPTY, PICTURE), (UNDONE,)], 'missing', '0 of 1 number, 0 of 1 run'),
    *(([(PICTURE,)], 'complete', ''), ([], 'missing', '')),
    ([(PAPERS,)], 'not measured', ''),
    # Something else is missing, or measured.
    ([(PICTURE,), (), (), None, ('why',)], 'missing', ''),
    ([(), (), (), (2, 2), ('why',)], 'partly there', '2 of 2 measurements'),
    ([(), (), (), (2, 2)], 'complete', '2 of 2 measurements'),
  ],
)
def test_the_status_of_a_section(section, word, details):
  status = texts.status(Section('s', '', *section))
  assert (status.word, status.details) == (word, details)


@pytest.mark.parametrize('answer', texts.ANSWERS)
def test_answers_have_a_mark_and_a_word(answer):
  mark = texts.ANSWERS[answer]
  section = Section('t', 'T', (Claim('It is so.', answer, 'As 2 > 1.'),))
  text = pages.markdown(section)
  assert f'> It is so.\n>\n> **{mark} {answer}.** As 2 \\> 1.' in text
  assert f'| It is so. | {mark} {answer} | [T](#t) |' in text
  text = pages.html_page(section)
  assert f'class="claim {answer.replace(" ", "-")}"' in text
  text = re.sub(r'<[^>]*>', '', text.split('<main>')[1])
  assert f'It is so.\n{mark} {answer} As 2 &gt; 1.' in text
  assert f'1 {answer}' in text
  assert len({*texts.ANSWERS.values()}) == len(texts.ANSWERS)


def test_links_resolve(tmp_path):
  sections = (
    Section('a b', 'T', (pages.draw(tmp_path, 'figures/a #1'),)),
    Section('table5', 'T', (TABLE,)),
  )
  page.write(sections, tmp_path, title='R', facts={})
  reader = pages.Reader((tmp_path / 'index.html').read_text())
  text = (tmp_path / 'results.md').read_text()
  links = re.findall(r'\]\(([^)]*)\)', text)
  ids = [*map(urllib.parse.unquote, re.findall(r'<a id="(.*?)"', text))]
  assert reader.ids == ids == ['a b', 'table5']
  assert (len(reader.links), len(links)) == (4, 5)
  for link in [*reader.links, *links]:
    path, _, anchor = link.partition('#')
    if path:
      assert (tmp_path / urllib.parse.unquote(path)).is_file()
    else:
      assert urllib.parse.unquote(anchor) in ids


def test_pictures_are_embedded_and_nothing_else_is_loaded(tmp_path):
  section = Section('figure7', 'T', (pages.draw(tmp_path),))
  text = pages.html_page(section, pictures=tmp_path)
  reader = pages.Reader(text)
  [image] = reader.images
  head, data = image.split(',')
  assert head == 'data:image/png;base64'
  assert base64.b64decode(data) == pages.PNG
  assert not reader.tags & {'script', 'link', 'iframe'}
  assert 'http' not in text
  assert 'url(' not in text
  assert '![Filters](figures/figure7.png)' in pages.markdown(section)


def test_runs_are_listed_with_unknown_values():
  done = dataclasses.replace(DONE, certificate='gs://b/r 1/certificate.json')
  section = Section('t', 'T', (), (done, UNDONE))
  summary = '<summary>1 of 2 runs finished, 1.50 device hours (unknown for 1)<'
  grid = [
    ['r1', 'configs/vit.py:B/32', '1.50', 'c0ffee1234', 'yes'],
    ['r2', 'configs/vit.py:L/16', 'unknown', 'unknown', 'no'],
  ]
  html, text = pages.html_page(section), pages.markdown(section)
  assert summary in html
  assert summary in text
  cells = [[ours for ours, _ in row] for row in pages.Reader(html).grid[1:]]
  assert cells == grid
  assert '<a href="gs://b/r%201/certificate.json">yes</a>' in html
  grid[0][-1] = '[yes](gs://b/r%201/certificate.json)'
  for row in grid:
    assert f'| {" | ".join(row)} |' in text


def test_sections_that_nobody_asked_for_are_folded():
  section = Section('table5', 'Accuracies', (TABLE,))
  folded = dataclasses.replace(section, folded=True)
  for make in (pages.markdown, pages.html_page):
    assert texts.UNFOLD not in make(section)
    text = make(folded)
    # Its heading and its status are always shown.
    places = [text.index(t) for t in ('Accuracies', texts.UNFOLD, '77.20')]
    assert places == sorted(places)


# Escaping. --------------------------------------------------------------------


def _evil(field):
  return f'<b>|"&\'`*_{field}[1]\nnext'


FIELDS = (
  *('title', 'fact', 'factname', 'heading', 'table', 'row', 'about'),
  *('column', 'printed', 'text', 'footnote', 'picture', 'caption', 'listing'),
  *('statement', 'evidence', 'run', 'config', 'note', 'missing', 'listed'),
)


@pytest.mark.parametrize(
  ('make', 'shown'),
  [
    (pages.html_page, '&lt;b&gt;|&#34;&amp;&#39;`*_{}[1]'),
    (pages.markdown, r"""\<b\>\|"\&'\`\*\_{}\[1\] next"""),
  ],
)
def test_everything_is_escaped(make, shown, tmp_path):
  row, column = _evil('row'), _evil('column')
  value = Value(0.0, note=_evil('footnote'), printed=_evil('printed'))
  cells = {(row, 'x'): Cell(None, value)}
  cells[row, column] = Cell(None, Value(_evil('text')))
  table = report.Table(_evil('table'), (row,), ('x', column), cells)
  picture = dataclasses.replace(
    pages.draw(tmp_path), title=_evil('picture'), caption=_evil('caption')
  )
  claim = Claim(_evil('statement'), 'yes', _evil('evidence'))
  section = Section(
    _evil('section'),
    _evil('heading'),
    (table, picture, claim),
    (Run(_evil('run'), _evil('config'), True, None, '<b>|'),),
    (_evil('note'),),
    missing=(_evil('missing'),),
  )
  about = [
    _evil('about'),
    report.Listing([_evil('listing')], [[_evil('listed')]]),
  ]
  more = {'pictures': tmp_path} if make is pages.html_page else {}
  facts = {_evil('factname'): _evil('fact')}
  text = make(section, title=_evil('title'), about=about, **more, **facts)
  assert '<b>|' not in text
  if make is pages.html_page:
    pages.Reader(text)
    assert '"&\'' not in text
  else:
    assert '\nnext' not in text
  for field in FIELDS:
    assert shown.format(field) in text, field
