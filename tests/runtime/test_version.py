"""Guards: `--version` prints a line for devices that fail to open."""

import pytest

from vit_jax.runtime import version


@pytest.mark.parametrize(
  ('ask', 'expected'),
  [
    ('print("talk"); print("4 tpu TPU v4")', '4 tpu TPU v4'),
    ('import sys; sys.exit("in use\\nby process 7")', 'unknown: by process 7'),
    ('import os; os._exit(3)', 'unknown: exit code 3'),
    ('import os; os.abort()', 'unknown: exit code -6'),
    ('import time; time.sleep(9)', 'did not open within 0.5 seconds'),
  ],
)
def test_devices(monkeypatch, ask, expected):
  monkeypatch.setattr(version, '_ASK', ask)
  assert expected in version.devices(patience=0.5 if 'sleep' in ask else 30)


def test_a_failing_driver_is_reported_in_one_line(monkeypatch):
  monkeypatch.setattr(
    version,
    '_ASK',
    'import sys, types\n'
    'def fail(): raise RuntimeError("no\\n  chip")\n'
    'sys.modules["jax"] = types.SimpleNamespace(devices=fail)' + version._ASK,
  )
  assert version.devices() == 'unknown: RuntimeError: no chip'


def test_a_missing_interpreter_is_reported(monkeypatch):
  monkeypatch.setattr('sys.executable', '/nowhere/python')
  assert version.devices().startswith('unknown: [Errno 2]')
