"""Guards: each launch records its commit, libraries and devices."""

import json

import flax
import jax
import numpy as np

from vit_jax.runtime import installed
from vit_jax.workdir import environment

FIRST = {'jax': '0.9', 'numpy': '2.4.6', 'libtpu': '0.0.1'}
SECOND = {'jax': '0.10', 'numpy': '2.4.6', 'simplejpeg': '1.8'}


def _launch(
  workdir, monkeypatch, step, *, commit='one', libraries=None, **shape
):
  monkeypatch.setattr(installed, 'commit', lambda: commit)
  if libraries:
    monkeypatch.setattr(installed, 'versions', lambda: libraries)
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
  assert not caplog.text


def test_what_changed_is_named(tmp_path, monkeypatch, caplog):
  _launch(tmp_path, monkeypatch, 0, libraries=FIRST)
  _launch(tmp_path, monkeypatch, 9, libraries=SECOND, data=2, fsdp=4)
  [text] = caplog.messages
  for change in (
    *('devices 1 -> 8', "mesh {'data': 1} -> {'data': 2, 'fsdp': 4}"),
    *('jax 0.9 -> 0.10', 'libtpu 0.0.1 -> none', 'simplejpeg none -> 1.8'),
    'from step 9 on',
  ):
    assert change in text
  assert 'numpy' not in text
  listed = (tmp_path / 'requirements.txt').read_text().splitlines()
  assert f'jax=={jax.__version__}' in listed


def test_a_line_of_an_earlier_version_is_compared(
  tmp_path, monkeypatch, caplog
):
  _launch(tmp_path, monkeypatch, 0)
  path = tmp_path / environment.FILE
  line = json.loads(path.read_text())
  # It had all distributions.
  line |= {'flax': '0.1', 'installed': {'rich': '2.4.6'}}
  path.write_text(json.dumps(line) + '\n')
  _launch(tmp_path, monkeypatch, 9)
  assert f'before: flax 0.1 -> {flax.__version__}. The run' in caplog.text
  assert environment.read(tmp_path)[0] == line


def test_a_record_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
  (tmp_path / 'file').touch()
  _launch(tmp_path / 'file', monkeypatch, 0)
  monkeypatch.setattr(installed, 'versions', lambda: 1 / 0)
  _launch(tmp_path, monkeypatch, 0)
  assert caplog.text.count('is not recorded: ') == 2
