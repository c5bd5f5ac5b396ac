"""Guards: pages show our settings beside the paper's, in both formats."""

import dataclasses

import pytest

from tests.paper import pages
from vit_jax.paper import items
from vit_jax.paper.numbers.values import Value
from vit_jax.paper.page import page_parts
from vit_jax.paper.report import Claim, Section, Setting, Settings
from vit_jax.runtime import command_line

CELLS = {
  ('a', 'x'): Setting(8e-4, Value(8e-4, printed='8e-4')),
  ('a', 'y'): Setting('linear', Value('linear', printed='linear')),
  ('b', 'x'): Setting(0.0005, Value(3e-4, printed='3e-4')),
  ('b', 'y'): Setting(7.0, Value('7/14', printed='7/14'), accepted=True),
  ('c', 'x'): Setting(10_000, Value(10_000, note='its caption')),
}
TABLE = Settings('Rates', ('a', 'b', 'c'), ('x', 'y'), CELLS)
SECTION = Section('table3', 'T', (TABLE,))


def _with(cell):
  return Settings('T', ('a',), ('x',), {('a', 'x'): cell})


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


def test_agreeing_and_differing_settings_look_different():
  text = pages.html_page(SECTION)
  assert text.count('<i class="agrees" title="agrees">✓</i>') == 4
  assert text.count('<i class="differs" title="differs">✗</i>') == 1
  assert '<table class="numbers settings">' in text
  assert 'ours <small>paper, where it differs</small>' in text
  assert 'class="numbers settings"' not in pages.html_page(
    Section('t', 'T', (pages.TABLE,))
  )


def test_agreeing_settings_are_counted():
  for text in (pages.markdown(SECTION), pages.html_page(SECTION)):
    assert '✓ 4 of 5 agree.' in text
  status = page_parts.status(dataclasses.replace(SECTION, blocks=(TABLE,) * 2))
  assert status.word == 'complete'
  assert status.details == '8 of 10 settings as in the paper'


def test_differing_settings_are_complete_but_do_not_hide_missing_claims():
  differs = _with(CELLS['b', 'x'])
  status = page_parts.status(Section('t', 'T', (differs,)))
  assert status.word == 'complete'
  assert status.details == '0 of 1 setting as in the paper'
  status = page_parts.status(
    Section('t', 'T', (differs, Claim('S', 'missing', '')))
  )
  assert status.word == 'missing'
  assert status.details == '0 of 1 claim, 0 of 1 setting as in the paper'


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


@pytest.mark.parametrize(
  ('value', 'text'),
  [(1_234_567, '1234567'), (0.1 + 0.2, '0.3'), (14.0, '14'), ('a', 'a')],
)
def test_numbers_are_shown_with_the_fewest_digits(value, text):
  assert pages.grid(_with(Setting(value, Value('b')))) == [
    [(f'{text}\xa0✗', 'b')]
  ]


def test_notes_on_a_setting_are_below_the_table():
  assert '\n<sup>1</sup> its caption\n' in pages.markdown(SECTION)
  assert '<sup>1</sup> its caption</p>' in pages.html_page(SECTION)
  differs = Setting(1, Value(2.0, printed='2', note='why'))
  assert pages.rows(_with(differs)) == ['| a | **1** ✗ (paper 2<sup>1</sup>) |']
  assert pages.grid(_with(differs)) == [[('1\xa0✗', '21')]]


def test_settings_are_escaped():
  evil = Setting('<b>*|', Value('<i>_|'))
  assert pages.rows(_with(evil)) == [
    r'| a | **\<b\>\*\|** ✗ (paper \<i\>\_\|) |'
  ]
  text = pages.html_page(Section('t', 'T', (_with(evil),)))
  assert '&lt;b&gt;*|' in text
  assert '&lt;i&gt;_|' in text
  assert '<b>*' not in text


def test_a_setting_outside_its_table_is_refused():
  outside = dataclasses.replace(TABLE, cells={('a', 'z'): CELLS['a', 'x']})
  with pytest.raises(ValueError, match=r"cells outside .*\('a', 'z'\)"):
    pages.markdown(Section('t', 'T', (outside,)))


def test_a_config_that_differs_from_the_paper_is_shown(monkeypatch):
  read = command_line.read_config

  def changed(words):
    config = read(words)
    if config.model.name == 'ViT-H/14':
      config.schedule.peak = 1e-3
    return config

  monkeypatch.setattr(command_line, 'read_config', changed)
  section = items.ITEMS['table3'].render(None, None)
  text = pages.markdown(section)
  assert '| ViT-H/14, JFT-300M | 14 ✓ | **0.001** ✗ (paper 3e-4) |' in text
  assert '| ViT-L/32, JFT-300M | 7 ✓ | 6e-4 ✓ | linear ✓ | 0.1 ✓ |' in text
  assert '\n✓ 64 of 65 agree.\n' in text
  assert '70 of 71 settings as in the paper' in text
  text = pages.html_page(section)
  assert (
    '<td><span class="ours">0.001</span>&nbsp;<i class="differs"'
    ' title="differs">✗</i><small>3e-4</small></td>'
  ) in text
  assert '<p class="below">✓ 64 of 65 agree.</p>' in text
