"""Guards: the lists of tests in .ci match the tests that exist.

`.ci/oldest_tests` lists the tests that run with the lower bounds of setup.py.
`.ci/gate_tests` lists the tests that the default run leaves out.
"""

import ast
import pathlib
import subprocess
import sys

import pytest

from tests.conftest import gate_tests

ROOT = pathlib.Path(__file__).parents[1]
LISTED = (ROOT / '.ci' / 'oldest_tests').read_text().split()
# These packages lie in top-level folders, not in vit_jax/.
SHIPPED = ('configs', 'launch')
PACKAGES = sorted(
  str(file.parent.relative_to(ROOT / 'vit_jax'))
  for file in (ROOT / 'vit_jax').glob('*/**/__init__.py')
  if file.parent.name not in SHIPPED
)


def _is_in(package, test):
  # A package may have a single test file in place of a folder.
  return test == f'tests/test_{package}.py' or (
    f'{test}/'.startswith(f'tests/{package}/')
  )


@pytest.mark.parametrize('package', PACKAGES)
def test_every_package_is_tested_with_the_lower_bounds(package):
  assert any(_is_in(package, test) for test in LISTED)


def test_what_is_listed_is_there():
  assert [test for test in LISTED if not (ROOT / test).exists()] == []


def test_tests_that_only_the_gate_runs_are_there():
  for test in gate_tests():
    file, _, name = test.partition('[')[0].partition('::')
    tree = ast.parse((ROOT / file).read_text())
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert not name or name in functions, test


def test_their_cases_are_there_and_each_has_one_that_always_runs():
  """Tests that are listed without cases need no case that always runs."""
  listed = gate_tests()
  cases = {test for test in listed if '[' in test} | {
    f'{test}[{case}]' for test, kept in listed.items() for case in kept
  }
  files = sorted({case.partition('::')[0] for case in cases})

  def collected(markers):
    command = [sys.executable, '-m', 'pytest', '--collect-only', '-m']
    found = subprocess.run(
      [*command, markers, *files],
      capture_output=True,
      text=True,
      check=True,
      cwd=ROOT,
    )
    return set(found.stdout.splitlines())

  assert cases - collected('gate or not gate') == set()
  always = {name.partition('[')[0] for name in collected('not gate')}
  assert {case.partition('[')[0] for case in cases} - always == set()
