"""What the gate leaves to a list: tests with the lower bounds of setup.py."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LISTED = (ROOT / '.ci' / 'oldest_tests').read_text().split()
# Each is the top-level folder of that name.
SHIPPED = ('configs', 'launch')
PACKAGES = sorted(
  str(file.parent.relative_to(ROOT / 'vit_jax'))
  for file in (ROOT / 'vit_jax').glob('*/**/__init__.py')
  if file.parent.name not in SHIPPED
)


def _is_in(package, test):
  # Tests of accounting are one file.
  return test == f'tests/test_{package}.py' or (
    f'{test}/'.startswith(f'tests/{package}/')
  )


@pytest.mark.parametrize('package', PACKAGES)
def test_every_package_is_tested_with_the_lower_bounds(package):
  assert any(_is_in(package, test) for test in LISTED)


def test_what_is_listed_is_there():
  assert [test for test in LISTED if not (ROOT / test).exists()] == []
