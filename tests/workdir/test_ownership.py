"""Guards: only one run at a time may own a work directory."""

import errno
import json
import os
import platform
import re
import subprocess
import sys
import time

import pytest
from etils import epath

from vit_jax.workdir import ownership

# What `ownership.held` does, without its imports.
_HOLD = """
import fcntl, json, os, platform, sys, time
with open(sys.argv[1] + '/owner.json', 'w') as file:
  fcntl.flock(file, fcntl.LOCK_EX)
  owner = {'host': platform.node(), 'process': os.getpid(), 'since': '2026'}
  json.dump(owner, file)
  file.flush()
  print('held', flush=True)
  time.sleep(600)
"""


def test_a_directory_has_one_owner_at_a_time(tmp_path, monkeypatch):
  monkeypatch.setattr(ownership, 'PATIENCE', 0.3)
  workdir = epath.Path(tmp_path)
  with subprocess.Popen(
    [sys.executable, '-c', _HOLD, tmp_path], stdout=subprocess.PIPE, text=True
  ) as other:
    assert other.stdout.readline() == 'held\n'
    who = f'process {other.pid} on {re.escape(platform.node())}, since 2'
    for _ in range(2):  # A refused attempt does not change the owner.
      with (
        pytest.raises(ValueError, match=f'is in use by {who}.*another --work'),
        ownership.held(workdir),
      ):
        pass
    # The lock ends even if its process is killed.
    other.kill()
  with ownership.held(workdir):
    assert f'"process": {os.getpid()},' in (tmp_path / 'owner.json').read_text()
    with (
      pytest.raises(ValueError, match=f'by process {os.getpid()} on'),
      ownership.held(workdir),
    ):
      pass
  with ownership.held(workdir):
    pass


def test_an_owner_on_another_machine_is_waited_for_longer(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(ownership, 'PATIENCE', 0.0)
  monkeypatch.setattr(ownership, 'PATIENCE_ELSEWHERE', 1.5)
  owner = {'host': 'elsewhere', 'process': 5, 'since': 'May'}
  (tmp_path / 'owner.json').write_text(json.dumps(owner))
  with (tmp_path / 'owner.json').open() as file:
    ownership.fcntl.flock(file, ownership.fcntl.LOCK_EX)
    before = time.monotonic()
    with (
      pytest.raises(ValueError, match='by process 5 on elsewhere, since May'),
      ownership.held(epath.Path(tmp_path)),
    ):
      pass
    assert time.monotonic() - before > 1.5


def _fail(monkeypatch, number):
  def flock(*_):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(ownership.fcntl, 'flock', flock)


@pytest.mark.parametrize(
  'number, words',
  [(errno.EACCES, 'is in use by'), (errno.EIO, r'owner\.json: Input/output')],
)
def test_locks_that_fail_are_not_taken(tmp_path, monkeypatch, number, words):
  monkeypatch.setattr(ownership, 'PATIENCE', 0.0)
  _fail(monkeypatch, number)
  with (
    pytest.raises(ValueError, match=words),
    ownership.held(epath.Path(tmp_path)),
  ):
    pass


def test_file_systems_without_locks_are_accepted(tmp_path, monkeypatch):
  with ownership.held(epath.Path('s3://bucket/run')):
    pass
  _fail(monkeypatch, errno.ENOLCK)
  with (
    ownership.held(epath.Path(tmp_path)),
    ownership.held(epath.Path(tmp_path)),
  ):
    pass
