"""Tables of text, to be read in a terminal."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> str:
  """Returns rows as lines whose columns are two spaces apart.

  Args:
    rows: the cells, with equally many in each row.
    left: how many columns are aligned left; the others are aligned right.
  """
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.ljust(width) if i < left else cell.rjust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  )
