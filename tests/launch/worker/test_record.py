"""Guards: record.py keeps a launch's code and command, keep_log.py its log."""

import pathlib
import sys

import pytest

from tests import commands
from vit_jax.launch.worker import keep_log, record


def test_a_second_launch_of_the_same_code_keeps_the_first_command(tmp_path):
  source = tmp_path / 'record'
  source.mkdir()
  (source / 'packed').write_text('2026-01-02T03:04:05Z\n')
  (source / 'commit').write_text('0123456789abcdef\n')
  commands = (['a', '1'], ['b'], ['a', '1'], ['b'], ['c d'])
  folders = {record.record(source, str(tmp_path), c) for c in commands}
  (folder,) = map(pathlib.Path, folders)
  assert folder == tmp_path / 'launch' / '2026-01-02T030405Z-0123456789ab'
  written = {f.name: f.read_text() for f in folder.glob('command*')}
  assert written == {
    'command': 'a 1\n',
    'command_2': 'b\n',
    'command_3': "'c d'\n",
  }


def test_the_end_of_a_long_log_is_kept(tmp_path, monkeypatch):
  monkeypatch.setattr(keep_log, 'LIMIT', 4)
  file = tmp_path / 'log'
  file.write_text('0123456789')
  written = pathlib.Path(keep_log.keep(str(tmp_path), file, 'attempt_1-code_1'))
  assert written.parent == tmp_path / 'launch' / 'logs'
  assert written.read_text() == '6789'


MOUNTS = """
overlay / overlay rw 0 0
ours /home/me/bucket fuse.gcsfuse rw 0 0
server:/x /home/me/bucket/nfs nfs4 rw 0 0
""".lstrip()


@pytest.mark.parametrize('order', [1, -1])
def test_a_work_directory_in_a_mounted_bucket_is_refused(order):
  mounts = '\n'.join(MOUNTS.splitlines()[::order])
  for workdir in ('gs://ours/r', '/home/me/r', '/home/me/bucket/nfs/r'):
    record.check_mount(workdir, mounts)
  with pytest.raises(ValueError, match='Expected --workdir=gs://ours/'):
    record.check_mount('/home/me/bucket/runs/b16', mounts)


def test_record_refuses_code_that_was_not_packed(tmp_path):
  words = (sys.executable, record.__file__, tmp_path, 'x')
  result = commands.run_new(*words, code=1)
  assert 'was not packed by pack.sh' in result.stderr
