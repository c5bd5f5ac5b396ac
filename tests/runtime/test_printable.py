"""Guards: control characters in names are escaped wherever names are shown."""

import pytest

from vit_jax.runtime import command_line, logs, printable

EVIL = 'a\x1b[31m\r\nDONE\t\x85\u2028\u202e\udcff'
SHOWN = r'a\x1b[31m\r\nDONE\t\x85\u2028\u202e\udcff'


def test_names_become_one_line_and_texts_keep_their_lines():
  assert printable.name(EVIL) == SHOWN
  assert printable.text(EVIL) == SHOWN.replace(r'\n', '\n')
  for plain in ('Café, 100 % «ß» 猫 👩‍🔬', r'C:\new', ''):
    assert printable.name(plain) == printable.text(plain) == plain


@pytest.mark.parametrize('error', [ValueError, OSError])
def test_errors_escape_control_characters(monkeypatch, error):
  monkeypatch.setattr(
    command_line.app, 'run', lambda start, **_: start(['program'])
  )
  monkeypatch.setattr(logs, 'set_up_console', lambda: None)

  def main():
    raise error(f'There is no {EVIL}.\nLook elsewhere.')

  with pytest.raises(SystemExit) as end:
    command_line.run(main)
  assert end.value.code == (
    f'error: There is no {printable.text(EVIL)}.\nLook elsewhere.'
  )
