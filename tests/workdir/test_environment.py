"""Guards: each launch records its commit, libraries and devices."""

import json

import flax
import jax
import numpy as np

from vit_jax.runtime import installed
from vit_jax.workdir import environment

FIRST = {'jax': '0.10.2', 'numpy': '2.4.6', 'old': '1.0'}
SECOND = {'jax': '0.12.0', 'numpy': '2.4.6', 'me': '1, not from an index: a'}


def _launch(
  workdir, monkeypatch, step, *, commit='one', libraries=FIRST, **shape
):
  monkeypatch.setattr(installed, 'commit', lambda: commit)
  monkeypatch.setattr(installed, 'everything', lambda: libraries)
  shape = shape or {'data': 1}
  devices = np.array(jax.devices()[: np.prod(list(shape.values()))])
  mesh = jax.sharding.Mesh(devices.reshape(*shape.values()), tuple(shape))
  environment.write(workdir, step, mesh)


def test_each_launch_adds_a_line(tmp_path, monkeypatch, caplog):
  assert environment.read(tmp_path) == []
  for step, commit in enumerate(('one', 'two+', 'one', '')):
    _launch(tmp_path, monkeypatch, step, commit=commit)
  with (tmp_path / environment.FILE).open('ab') as file:
    file.write(b'\xff\n5\n')  # Damaged lines are left out.
  lines = environment.read(tmp_path)
  assert [line['step'] for line in lines] == [0, 1, 2, 3]
  assert environment.commits(tmp_path) == ('one', 'two+')
  assert lines[0]['jax'] == jax.__version__
  assert lines[0]['flax'] == flax.__version__
  assert (lines[0]['devices'], lines[0]['processes']) == (1, 1)
  assert lines[0]['installed'] == FIRST
  assert not caplog.text


def test_what_changed_is_named(tmp_path, monkeypatch, caplog):
  _launch(tmp_path, monkeypatch, 0)
  _launch(tmp_path, monkeypatch, 9, libraries=SECOND, data=2, fsdp=4)
  [text] = caplog.messages
  for change in (
    *('devices 1 -> 8', "mesh {'data': 1} -> {'data': 2, 'fsdp': 4}"),
    *('jax 0.10.2 -> 0.12.0', 'old 1.0 -> none', 'me none -> 1, not from'),
    'from step 9 on',
  ):
    assert change in text
  assert 'numpy' not in text
  listed = (tmp_path / 'requirements.txt').read_text()
  assert listed.endswith(
    'jax==0.12.0\nnumpy==2.4.6\n# me 1, not from an index: a\n'
  )


def test_a_line_of_an_earlier_version_is_compared(
  tmp_path, monkeypatch, caplog
):
  earlier = {'step': 0, 'flax': '0.1', 'devices': 1}
  (tmp_path / environment.FILE).write_text(json.dumps(earlier) + '\n')
  _launch(tmp_path, monkeypatch, 9)
  assert f'before: flax 0.1 -> {flax.__version__}. The run' in caplog.text


def test_a_directory_that_cannot_be_written_ends_no_run(
  tmp_path, monkeypatch, caplog
):
  (tmp_path / 'file').touch()
  _launch(tmp_path / 'file', monkeypatch, 0)
  assert 'is not recorded: ' in caplog.text
