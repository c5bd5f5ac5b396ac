"""Guards: pages show our numbers beside the paper's, in both formats."""

import dataclasses

import pytest

from tests.paper import pages
from vit_jax.paper import report
from vit_jax.paper.numbers.values import Value
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Cell, Number, Section


def test_cells_show_our_value_the_papers_and_the_difference():
  assert pages.grid(pages.TABLE) == pages.GRID
  assert pages.rows(pages.TABLE) == pages.MARKDOWN_ROWS


def test_a_missing_number_is_not_shown_as_zero():
  cells = {('a', 'x'): Cell(), ('a', 'y'): Cell(None, Value(5.0))}
  table = report.Table('T', ('a',), ('x', 'y'), cells, digits=1)
  assert pages.grid(table) == [[('missing', ''), ('missing', '5.0')]]
  assert pages.rows(table) == ['| a | missing | missing (paper 5.0) |']


def test_a_measured_zero_is_shown_as_a_number():
  table = pages.with_cell(('b', 'x'), Cell(Number((0.0,), ('r',)), Value(0.0)))
  assert pages.grid(table)[1][0] == ('0.00', '0.00 Δ 0.00')


@pytest.mark.parametrize('place', [p for p, c in pages.CELLS.items() if c.ours])
def test_a_deleted_number_makes_only_its_cell_missing(place):
  table = pages.with_cell(
    place, dataclasses.replace(pages.CELLS[place], ours=None)
  )
  before, after = (
    {
      (row, column): cell
      for row, cells in zip(pages.TABLE.rows, grid, strict=True)
      for column, cell in zip(pages.TABLE.columns, cells, strict=True)
    }
    for grid in (pages.grid(pages.TABLE), pages.grid(table))
  )
  assert after[place][0] == 'missing'
  assert 'Δ' not in after[place][1]
  assert {p for p in before if before[p] != after[p]} == {place}
  changed = [
    a != b
    for a, b in zip(pages.rows(pages.TABLE), pages.rows(table), strict=True)
  ]
  assert changed == [row == place[0] for row in pages.TABLE.rows]


def test_a_cell_without_any_value_is_a_dash():
  table = pages.with_cell(('a', 'x'), Cell(None, None, expected=False))
  assert pages.grid(table)[0][0] == ('—', '')
  assert pages.rows(table)[0].startswith('| a | — |')


@pytest.mark.parametrize(
  'value, digits, text',
  [
    (0.256, 2, '+0.26'),
    (-0.254, 2, '\N{MINUS SIGN}0.25'),
    (0.004, 2, '0.00'),
    (-0.004, 2, '0.00'),
    (-1.5, 1, '\N{MINUS SIGN}1.5'),
    (2.0, 0, '+2'),
    (10.0, 0, '+10'),
    (-1234.5, 1, '\N{MINUS SIGN}1,234.5'),
    (632_000_001, 0, '+632,000,001'),
  ],
)
def test_differences_have_a_sign_and_the_digits_of_the_table(
  value, digits, text
):
  assert page_parts.signed(value, digits) == text


def test_the_table_sets_the_number_of_digits():
  table = dataclasses.replace(pages.TABLE, digits=0)
  assert pages.grid(table)[0] == [
    ('77 ± 0', '77.910 Δ −1'),  # noqa: RUF001
    ('100', '99±0 Δ 0'),
  ]


def test_incomparable_tables_show_no_differences_and_say_so():
  table = dataclasses.replace(pages.TABLE, comparable=False)
  assert pages.grid(table)[0] == [
    ('77.20 ± 0.14', '77.910'),
    ('99.50', '99.25±0.50'),
  ]
  assert pages.rows(table)[0] == (
    '| a | 77.20 ± 0.14 (paper 77.910) | 99.50 (paper 99.25±0.50) |'
  )
  for text in (pages.markdown(Section('t', 'T', (table,))),):
    assert 'Δ' not in text
    assert 'the table does not subtract' in text


def test_notes_on_the_papers_numbers_are_footnotes_in_reading_order():
  cells = {
    ('a', 'x'): Cell(None, Value(1.0, note='from <text>')),
    ('a', 'y'): Cell(None, Value(2.0, note='derived')),
    ('b', 'x'): Cell(None, Value(3.0, note='from <text>')),
  }
  table = report.Table('T', ('a', 'b'), ('x', 'y'), cells)
  assert [row[0][1] for row in pages.grid(table)] == ['1.001', '3.001']
  section = Section('t', 'T', (table,))
  assert '1.00<sup>1</sup>' in pages.html_page(section)
  assert '<sup>1</sup> from &lt;text&gt;</p>' in pages.html_page(section)
  assert '<sup>2</sup> derived</p>' in pages.html_page(section)
  assert '| b | missing (paper 3.00<sup>1</sup>) | — |' in pages.markdown(
    section
  )
  assert '\n<sup>1</sup> from \\<text\\>\n' in pages.markdown(section)


def test_the_legend_explains_only_the_symbols_in_use():
  single = dataclasses.replace(
    pages.TABLE, rows=('c',), cells={('c', 'x'): pages.CELLS['c', 'x']}
  )
  assert page_parts.legend(single) == ''
  assert page_parts.legend(pages.TABLE).startswith(
    '± is the standard deviation'
  )
  assert 'Δ is ours minus' in page_parts.legend(pages.TABLE)


def test_a_cell_outside_its_table_is_refused():
  table = pages.with_cell(('a', 'z'), Cell())
  with pytest.raises(ValueError, match=r"cells outside .*\('a', 'z'\)"):
    pages.markdown(Section('t', 'T', (table,)))


def test_labels_wrap_at_spaces_unless_a_word_is_too_long():
  row = 'R50+ViT-B/32, TPUv3-core-days'
  table = report.Table('T', (row,), ('ViT-B/16',), {})
  text = pages.html_page(Section('t', 'T', (table,)))
  assert '<span>R50+ViT-B/32,</span> TPUv3-core-days</th>' in text
  assert '<th scope="col"><span>ViT-B/16</span></th>' in text
