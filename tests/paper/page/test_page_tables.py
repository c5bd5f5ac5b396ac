"""Guards: pages show our numbers beside the paper's, in both formats."""

import dataclasses

import pytest

from tests.paper import pages
from vit_jax.paper import report
from vit_jax.paper.numbers.values import Value
from vit_jax.paper.report import Cell, Section


def test_cells_show_our_value_the_papers_and_the_difference():
  assert pages.grid(pages.TABLE) == pages.GRID
  assert pages.rows(pages.TABLE) == pages.MARKDOWN_ROWS


def test_a_missing_number_is_not_shown_as_zero():
  cells = {('a', 'x'): Cell(), ('a', 'y'): Cell(None, Value(5.0))}
  table = report.Table('T', ('a',), ('x', 'y'), cells, digits=1)
  assert pages.grid(table) == [[('missing', ''), ('missing', '5.0')]]
  assert pages.rows(table) == ['| a | missing | missing (paper 5.0) |']


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


def test_a_cell_outside_its_table_is_refused():
  table = pages.with_cell(('a', 'z'), Cell())
  with pytest.raises(ValueError, match=r"cells outside .*\('a', 'z'\)"):
    pages.markdown(Section('t', 'T', (table,)))
