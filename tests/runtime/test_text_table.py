"""Guards: columns of text tables are aligned."""

from vit_jax.runtime import text_table


def test_aligned():
  rows = [['', 'a', 'b'], ['name', '1.5', ''], ['x', '10', '3']]
  assert text_table.aligned(rows).splitlines() == [
    '        a  b',
    'name  1.5',
    'x      10  3',
  ]
  assert text_table.aligned(rows, left=2).splitlines() == [
    '      a    b',
    'name  1.5',
    'x     10   3',
  ]
