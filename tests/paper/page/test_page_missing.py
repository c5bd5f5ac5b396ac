"""Guards: a page says which sections are incomplete, and what they lack."""

import pytest

from tests.paper import pages
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Picture, Run, Section

DONE = Run('r1', 'configs/vit.py:B/32', True)
PICTURE = Picture('P', 'p', '')


@pytest.mark.parametrize(
  'section, word, details',
  [
    # A section with an entry in `missing` is never complete.
    (Section('s', '', (PICTURE,)), 'complete', ''),
    (Section('s', '', (PICTURE,), missing=('x',)), 'missing', ''),
    (Section('s', '', (), (DONE,)), 'complete', '1 of 1 run'),
    (
      Section('s', '', (), (DONE,), missing=('x',)),
      'partly there',
      '1 of 1 run',
    ),
    # A picture of empty axes does not count as a measurement.
    (
      Section('s', '', (PICTURE,), measured=(0, 3)),
      'missing',
      '0 of 3 measurements',
    ),
    (Section('s', '', measured=(1, 3)), 'partly there', '1 of 3 measurements'),
    (Section('s', '', measured=(3, 3)), 'complete', '3 of 3 measurements'),
  ],
)
def test_a_section_is_complete_only_if_nothing_is_missing(
  section, word, details
):
  status = page_parts.status(section)
  assert (status.word, status.details) == (word, details)


def test_missing_parts_are_shown_before_the_notes():
  section = Section('t', 'T', notes=('A note.',), missing=('Not drawn: x.',))
  assert '- ○ Not drawn: x.\n- A note.' in pages.markdown(section)
  text = pages.html_page(section)
  assert '<li>○ Not drawn: x.</li>\n<li>A note.</li>' in text
