"""Texts to print and to log: untrusted names are escaped.

A name may contain a newline, which could forge a log line, or an escape
sequence, which a terminal obeys. A file name may contain bytes that are not
UTF-8.
"""

import datetime
import re

# Control characters, line and paragraph separators, marks that change the
# direction of text, and surrogates: Python decodes bytes that are not UTF-8 to
# these.
_HIDDEN = (
  r'\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff'
)
_IN_NAMES = re.compile(f'[{_HIDDEN}]')
_IN_TEXTS = re.compile(rf'(?!\n)[{_HIDDEN}]')


def name(text: str) -> str:
  r"""Returns one line, with invisible characters as `\n`, `\x1b` and so on."""
  return _IN_NAMES.sub(_escaped, text)


def text(text: str) -> str:
  """Escapes a text like `name`, but keeps its line breaks."""
  return _IN_TEXTS.sub(_escaped, text)


def duration(seconds: float) -> str:
  """`93784` -> `1 day, 2:03:04`, `75` -> `0:01:15`."""
  return str(datetime.timedelta(seconds=round(seconds)))


def _escaped(found: re.Match) -> str:
  return found[0].encode('unicode_escape').decode()
