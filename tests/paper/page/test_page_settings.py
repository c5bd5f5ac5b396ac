"""Guards: pages show our settings beside the paper's, in both formats."""

import dataclasses

import pytest

from tests.paper import pages
from vit_jax.paper.numbers.values import Value
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Section, Setting, Settings

CELLS = {
  ('a', 'x'): Setting(8e-4, Value(8e-4, printed='8e-4')),
  ('a', 'y'): Setting('linear', Value('linear', printed='linear')),
  ('b', 'x'): Setting(0.0005, Value(3e-4, printed='3e-4')),
  ('b', 'y'): Setting(7.0, Value('7/14', printed='7/14'), accepted=True),
  ('c', 'x'): Setting(10_000, Value(10_000, note='its caption')),
}
TABLE = Settings('Rates', ('a', 'b', 'c'), ('x', 'y'), CELLS)
SECTION = Section('table3', 'T', (TABLE,))


def test_equal_settings_are_shown_once_and_different_ones_twice():
  assert pages.rows(TABLE) == [
    '| a | 8e-4 ✓ | linear ✓ |',
    '| b | **0.0005** ✗ (paper 3e-4) | 7 ✓ (paper 7/14) |',
    '| c | 10000 ✓<sup>1</sup> | — |',
  ]
  assert pages.grid(TABLE) == [
    [('8e-4\xa0✓', ''), ('linear\xa0✓', '')],
    [('0.0005\xa0✗', '3e-4'), ('7\xa0✓', '7/14')],
    [('10000\xa0✓1', ''), ('—', '')],
  ]


def test_agreeing_settings_are_counted():
  for text in (pages.markdown(SECTION), pages.html_page(SECTION)):
    assert '✓ 4 of 5 agree.' in text
  status = page_parts.status(dataclasses.replace(SECTION, blocks=(TABLE,) * 2))
  assert status.word == 'complete'
  assert status.details == '8 of 10 settings as in the paper'


@pytest.mark.parametrize(
  ('setting', 'agrees'),
  [
    (Setting(0.1, Value(0.1)), True),
    (Setting(0.1, Value(0.10001)), False),
    (Setting('0.1', Value(0.1)), False),
    (Setting('0.1', Value(0.1), accepted=True), True),
    (Setting('cosine', Value('linear')), False),
  ],
)
def test_settings_agree_if_numbers_or_words_are_equal(setting, agrees):
  assert setting.agrees == agrees
