"""Names of others as text that a terminal, a log or a page shows as it is.

A name may hold a newline, which would begin a forged line, or an escape, which
a terminal obeys; a file's may hold bytes that are no text at all.
"""

import re

# Controls, ends of lines and paragraphs, marks that turn the order of letters,
# and halves of pairs, as which Python has bytes that are no UTF-8.
_HIDDEN = (
  r'\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff'
)
_IN_NAMES = re.compile(f'[{_HIDDEN}]')
_IN_TEXTS = re.compile(rf'(?!\n)[{_HIDDEN}]')


def name(text: str) -> str:
  r"""One line, with `\n`, `\x1b` and so on for what cannot be seen."""
  return _IN_NAMES.sub(_escaped, text)


def text(text: str) -> str:
  """As `name`, of a text of several lines, which stay."""
  return _IN_TEXTS.sub(_escaped, text)


def _escaped(found: re.Match) -> str:
  return found[0].encode('unicode_escape').decode()
