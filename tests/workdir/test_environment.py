"""Guards: each launch records its commit, libraries and devices."""

import flax
import jax
import numpy as np

from vit_jax.runtime import installed
from vit_jax.workdir import environment


def _launch(workdir, monkeypatch, step, commit='one'):
  monkeypatch.setattr(installed, 'commit', lambda: commit)
  devices = np.array(jax.devices()[:2]).reshape(1, 2)
  mesh = jax.sharding.Mesh(devices, ('data', 'fsdp'))
  environment.write(workdir, step, mesh, 'abc')


def test_each_launch_adds_a_line(tmp_path, monkeypatch):
  assert environment.read(tmp_path) == []
  _launch(tmp_path, monkeypatch, 0)
  listed = (tmp_path / 'requirements.txt').read_text().splitlines()
  assert f'jax=={jax.__version__}' in listed
  monkeypatch.setattr(installed, 'requirements', lambda: '')  # It is slow.
  for step, commit in enumerate(('two+', 'one', ''), start=1):
    _launch(tmp_path, monkeypatch, step, commit)
  with (tmp_path / environment.FILE).open('ab') as file:
    file.write(b'\xff\n5\n')  # Damaged lines are left out.
  lines = environment.read(tmp_path)
  assert [line['step'] for line in lines] == [0, 1, 2, 3]
  assert environment.commits(tmp_path) == ('one', 'two+')
  assert lines[0]['jax'] == jax.__version__
  assert lines[0]['flax'] == flax.__version__
  assert (lines[0]['devices'], lines[0]['processes']) == (2, 1)
  assert lines[0]['config'] == 'abc'
  assert lines[0]['mesh'] == {'data': 1, 'fsdp': 2}


def test_a_record_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
  (tmp_path / 'file').touch()
  _launch(tmp_path / 'file', monkeypatch, 0)
  monkeypatch.setattr(installed, 'versions', lambda: 1 / 0)
  _launch(tmp_path, monkeypatch, 0)
  assert caplog.text.count('is not recorded: ') == 2
