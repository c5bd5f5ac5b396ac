"""Guards: the console and train.log show what matters of libraries' records.

The console shows an error in one line; its traceback is in train.log.
"""

import logging as python_logging
import sys

import pytest

from tests import commands
from vit_jax.runtime import logs

SCRIPT = """
import logging, sys
from absl import logging as absl_logging
from vit_jax.runtime import logs

logs.set_up_console()
library = logging.getLogger('library')
with logs.log_file(sys.argv[1]):
  try:
    raise OSError('reason')
  except OSError:
    library.error('It failed.', exc_info=True)
  library.setLevel(logging.INFO)
  library.info('By the way.')
  library.warning('Take care.')
  for path, text in (
    ('/lib/a.py', 'By the way.'), (logs.__file__, 'Our line.')):
    absl_logging.get_absl_logger().handle(
      logging.makeLogRecord(dict(
        levelname='INFO', levelno=logging.INFO, msg=text, pathname=path)))

"""


def test_tracebacks_of_libraries_are_logged_as_one_line(tmp_path):
  result = commands.run_new(sys.executable, '-c', SCRIPT, tmp_path)
  # A command parses its flags first, so it does not get this line.
  first, *lines = result.stderr.splitlines()
  assert 'before flag parsing' in first
  assert lines[0].startswith('error: ')
  assert lines[0].endswith(' It failed.')
  assert lines[1].endswith(' Take care.')
  assert lines[2].endswith(' Our line.')
  assert 'reason' not in result.stderr
  log = (tmp_path / 'train.log').read_text()
  assert 'It failed.\nTraceback' in log
  assert 'OSError: reason' in log
  # Information is only ours.
  assert log.endswith(' INFO Our line.\n')
  assert ' WARNING Take care.\n' in log
  assert 'By the way.' not in log + result.stderr


def test_a_run_ends_its_log_with_its_error(tmp_path):
  library = python_logging.getLogger('library')
  with pytest.raises(KeyError), logs.log_file(tmp_path):
    raise KeyError('%s')
  library.warning('Later.')
  text = (tmp_path / 'train.log').read_text()
  assert text.endswith("KeyError: '%s'\n\n")


def test_a_full_disk_ends_nothing(tmp_path, capsys):
  (tmp_path / 'train.log').symlink_to('/dev/full')
  with logs.log_file(tmp_path):
    python_logging.getLogger('library').warning('One.')
  assert 'Traceback' not in capsys.readouterr().err
