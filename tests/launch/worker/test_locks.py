"""Guards: the lock files agree with each other and with setup.py."""

import ast
import pathlib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = pathlib.Path(__file__).parents[3]
LOCKS = ROOT / 'launch' / 'locks'
# Lock file -> the extras whose packages it has.
EXTRAS = {
  'cpu': ['gcs', 'plot'],
  'tpu': ['tpu', 'gcs', 'plot'],
  'cuda': ['cuda', 'gcs', 'plot'],
  'test': ['test', 'gcs', 'plot', 'plan'],
  'oldest': ['test'],
}
PYTHONS = ('3.11.7', '3.12.1', '3.13.0')
NEWEST = sorted({*EXTRAS} - {'oldest'})
CASES = [(name, python) for name in NEWEST for python in PYTHONS]
CASES.append(('oldest', PYTHONS[0]))


def locked(name: str, python: str) -> dict[str, Version]:
  """Returns the versions that pip installs from a lock file on Linux."""
  place = {
    'python_version': python.rpartition('.')[0],
    'python_full_version': python,
    'sys_platform': 'linux',
    'platform_python_implementation': 'CPython',
    'implementation_name': 'cpython',
  }
  found = {}
  for line in (LOCKS / f'{name}.txt').read_text().splitlines():
    if line.startswith('#'):
      continue
    entry = Requirement(line)
    if entry.marker and not entry.marker.evaluate(place):
      continue
    (pin,) = entry.specifier
    assert pin.operator == '==', line
    assert entry.name not in found, line
    found[canonicalize_name(entry.name)] = Version(pin.version)
  return found


def setup_py() -> dict:
  """Returns `REQUIRED` and `EXTRAS` of setup.py, without running it."""
  return {
    node.targets[0].id: ast.literal_eval(node.value)
    for node in ast.parse((ROOT / 'setup.py').read_text()).body
    if isinstance(node, ast.Assign)
    and node.targets[0].id in ('REQUIRED', 'EXTRAS')
  }


def required(name: str) -> list[Requirement]:
  """Returns the requirements of a lock file."""
  assigned = setup_py()
  words = list(assigned['REQUIRED'])
  for extra in EXTRAS[name]:
    words += assigned['EXTRAS'][extra]
  return [Requirement(word) for word in words]


def test_each_lock_file_names_its_command_and_no_index():
  assert {file.stem for file in LOCKS.glob('*.txt')} == {*EXTRAS}
  for file in LOCKS.glob('*.txt'):
    text = file.read_text()
    assert '\n#    bash launch/locks/update.sh\n' in text
    assert '://' not in text
    assert '--' not in text


@pytest.mark.parametrize('name, python', CASES)
def test_lock_files_contain_the_requirements_of_setup_py(name, python):
  found = locked(name, python)
  for wanted in required(name):
    version = found[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version), (wanted, version)


@pytest.mark.parametrize('python', PYTHONS)
def test_lock_files_agree_with_each_other(python):
  every = {name: locked(name, python) for name in NEWEST}
  versions = {}
  for name, found in every.items():
    for package, version in found.items():
      assert versions.setdefault(package, version) == version, (name, package)
  assert every['cpu'].items() <= every['tpu'].items()
  assert every['cpu'].items() <= every['cuda'].items()
  assert 'libtpu' in every['tpu']
  assert 'jax-cuda13-plugin' in every['cuda']
  assert {'pytest', 'libtpu', 'gcsfs', 'matplotlib'} <= {*every['test']}
  assert every['tpu']['jax'] == every['tpu']['jaxlib']


def test_the_oldest_lock_has_the_lower_bounds():
  found = locked('oldest', '3.11.7')
  for wanted in required('oldest'):
    bounds = [pin for pin in wanted.specifier if pin.operator == '>=']
    assert [Version(pin.version) for pin in bounds] == [
      found[canonicalize_name(wanted.name)]
    ], wanted
