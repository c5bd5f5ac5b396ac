"""Guards: control characters in names are escaped wherever names are shown."""

import logging as python_logging
import os
import sys

import pytest
from absl import logging

from vit_jax import data
from vit_jax.data import __main__ as data_command
from vit_jax.paper.page import page_html, page_markdown
from vit_jax.runtime import command_line, logs, printable
from vit_jax.workdir import files

EVIL = 'a\x1b[31m\r\nDONE\t\x85\u2028\u202e\udcff'
SHOWN = r'a\x1b[31m\r\nDONE\t\x85\u2028\u202e\udcff'


def test_names_become_one_line_and_texts_keep_their_lines():
  assert printable.name(EVIL) == SHOWN
  assert printable.text(EVIL) == SHOWN.replace(r'\n', '\n')
  for plain in ('Café, 100 % «ß» 猫 👩‍🔬', r'C:\new', ''):
    assert printable.name(plain) == printable.text(plain) == plain


def _shown(lines):
  """Returns whether line ends are the only control characters."""
  return all(c.isprintable() for c in lines.replace('\n', ''))


def test_console_and_log_escape_control_characters(tmp_path, monkeypatch):
  logger = logging.get_absl_logger()
  monkeypatch.setattr(logger, 'level', python_logging.INFO)
  # pytest would keep the text, which pytest-xdist cannot send.
  monkeypatch.setattr(python_logging.getLogger(), 'handlers', [])
  with logs.log_file(tmp_path):
    logging.warning('Skipped %s:\nas it is', EVIL)
  text = (tmp_path / 'train.log').read_bytes().decode()
  assert _shown(text)
  assert text.endswith(printable.text(EVIL) + ':\nas it is\n')
  record = logger.makeRecord('', 20, '', 0, '%s', (EVIL,), None)
  assert logs._Formatter('%(message)s').format(record) == printable.text(EVIL)


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


@pytest.fixture
def root(tmp_path):
  folder = f'{tmp_path}/set/train/{EVIL}'
  os.makedirs(folder)
  os.makedirs(f'{tmp_path}/set/train/b')
  for path in (f'{folder}/{EVIL}.jpg', f'{tmp_path}/set/train/b/1.jpg'):
    with open(path, 'wb') as file:
      file.write(b'an image')
  return f'{tmp_path}/set'


def test_names_of_folders_and_files_are_escaped(root, tmp_path):
  source = data.open_source(f'folder:{root}')
  assert source.info.class_names == (SHOWN, 'b')
  record = data.View(source, 'train')[0]
  assert record.image == b'an image'
  assert record.name == f'{root}/train/{SHOWN}/{SHOWN}.jpg'
  files.write_class_names(tmp_path, [EVIL, 'b'])
  assert files.read_class_names(tmp_path) == (SHOWN, 'b')
  assert (tmp_path / files.CLASS_NAMES).read_bytes().count(b'\n') == 2


def test_names_of_splits_are_escaped(root, tmp_path, monkeypatch, capsys):
  os.rename(f'{root}/train', f'{root}/{EVIL}')
  source = data.open_source(f'folder:{root}')
  with pytest.raises(ValueError, match='over the splits a') as error:
    data.View(source, 'train')
  assert f'over the splits {SHOWN} (2):' in str(error.value)
  os.makedirs(f'{root}/train/a')
  open(f'{root}/train/a/1.jpg', 'w').close()
  monkeypatch.setattr(sys, 'argv', ['data'])
  data_command.flags.FLAGS(['data', f'--data=folder:{root}'])
  data_command.main()
  assert f'{SHOWN} (2), train (1)' in capsys.readouterr().out
  os.symlink(root, f'{root}/train/{EVIL}')
  with pytest.raises(ValueError, match='leads back to itself') as error:
    data.open_source(f'folder:{root}')
  assert _shown(str(error.value))
  assert '\n' not in str(error.value)


def test_pages_escape_control_characters():
  html = page_html.escape(f'<{EVIL}>\nand')
  assert html == f'&lt;{printable.text(EVIL)}&gt;\nand'
  assert _shown(page_markdown.escape(EVIL))
