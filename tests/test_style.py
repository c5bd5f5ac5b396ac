"""Guards: the linter and the formatter accept the code."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize('command', [['check'], ['format', '--check']])
def test_ruff(command):
  result = subprocess.run(
    [sys.executable, '-m', 'ruff', *command, '.'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stdout + result.stderr
