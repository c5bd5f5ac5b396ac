"""Guards: tables are read as printed; unknown labels raise clear errors."""

import pytest

from vit_jax.paper.numbers import values
from vit_jax.paper.numbers.values import Value


@pytest.mark.parametrize(
  'text, value',
  [
    ('93.40', Value(93.4, printed='93.40')),
    ('99.74±0.00', Value(99.74, 0.0, printed='99.74±0.00')),
    ('2.5k', Value(2500.0, printed='2.5k')),
    ('12.3k', Value(12300.0, printed='12.3k')),
    ('86M', Value(86_000_000.0, printed='86M')),
    ('8e-4', Value(0.0008, printed='8e-4')),
    ('7/14', Value('7/14', printed='7/14')),
    ('{0.01, 0.03}', Value('{0.01, 0.03}', printed='{0.01, 0.03}')),
    ('-', None),
  ],
)
def test_cells_are_parsed_from_their_printed_text(text, value):
  assert values.read_value(text) == value


def _table(text='a row  1  -\nanother  2.5±0.5  x', **options):
  return values.read_table('t', 'T', 'S', ['c', 'd'], text, **options)


def test_tables_are_parsed_and_dashes_become_no_cells():
  table = _table(printed={'c': 'C'})
  assert (table.name, table.title, table.source) == ('t', 'T', 'S')
  assert (table.rows, table.columns) == (('a row', 'another'), ('c', 'd'))
  assert table.printed == {'c': 'C'}
  assert table.cells == {
    ('a row', 'c'): Value(1.0, printed='1'),
    ('another', 'c'): Value(2.5, 0.5, printed='2.5±0.5'),
    ('another', 'd'): Value('x', printed='x'),
  }


@pytest.mark.parametrize(
  'look_up',
  [lambda t: t['row', 'c'], lambda t: t.row('row')],
)
def test_an_unknown_row_raises_and_lists_the_rows(look_up):
  with pytest.raises(
    ValueError, match=r"t has no row 'row'; it has a row, another\."
  ):
    look_up(_table())


@pytest.mark.parametrize(
  'look_up',
  [lambda t: t['another', 'e'], lambda t: t.column('e')],
)
def test_an_unknown_column_raises_and_lists_the_columns(look_up):
  with pytest.raises(ValueError, match=r"t has no column 'e'; it has c, d\."):
    look_up(_table())


@pytest.mark.parametrize(
  'text, options, message',
  [
    ('a  1', {}, "row 'a' has 1 cells, expected 2"),
    ('a  1  2  3', {}, "row 'a' has 3 cells, expected 2"),
    ('a  1  2\na  3  4', {}, 'a label occurs twice'),
    ('a  1  2', {'printed': {'b': 'B'}}, r"\['b'\], which is not"),
    ('a  1  2', {'special': {('a', 'b'): {}}}, r"\('a', 'b'\)\], which is not"),
    ('a  1  -', {'special': {('a', 'd'): {}}}, r"\('a', 'd'\)\], which is not"),
  ],
)
def test_a_misspelled_table_does_not_load(text, options, message):
  with pytest.raises(ValueError, match=message):
    _table(text, **options)
