"""Guards what a run records of its installation, and files of the package."""

import importlib.metadata
import pathlib
import platform
import subprocess
import sys

import pytest

from vit_jax.runtime import installed

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path):
  """Returns a folder of installed distributions."""

  def add(name, version, url=None, folder=tmp_path / 'site'):
    info = folder / f'{name}-{version}.dist-info'
    info.mkdir(parents=True)
    (info / 'METADATA').write_text(f'Name: {name}\nVersion: {version}\n')
    if url:
      (info / 'direct_url.json').write_text(f'{{"url": "{url}"}}')
    return str(folder)

  add('Some_Package', '1.2')
  add('vit-paper-jax', '9')
  add('mine', '0.1', 'https://me:token@example.org/mine')
  add('some-package', '0.9', folder=tmp_path / 'later')
  return add('jax', '0.10.2'), str(tmp_path / 'later')


def test_freeze_writes_pip_requirements_that_parse_reads(site):
  python = platform.python_version()
  text = installed.freeze(*site)
  assert text.splitlines() == [
    f'# Python {python}',
    'jax==0.10.2',
    'some-package==1.2',  # The first on the path.
    '# mine 0.1, not from an index: https://example.org/mine',
  ]
  found = installed.parse('# Installed at noon.\n' + text)
  assert found == {
    'python': python,
    'jax': '0.10.2',
    'some-package': '1.2',
    'mine': '0.1 (not from an index: https://example.org/mine)',
  }
  new = {'python': python, 'jax': '0.12.0', 'any': '1', 'some-package': '1.2'}
  assert installed.changes(found, new) == (
    'jax 0.10.2 -> 0.12.0, any none -> 1, mine 0.1 (not from an index:'
    ' https://example.org/mine) -> none'
  )
  assert installed.changes(found, found) == ''


def test_versions_leave_out_libraries_that_are_not_installed(monkeypatch):
  monkeypatch.setattr(installed, 'LIBRARIES', ('numpy', 'no-such-library'))
  assert installed.versions() == {
    'python': platform.python_version(),
    'numpy': importlib.metadata.version('numpy'),
  }


@pytest.mark.parametrize(
  'ask, expected',
  [
    ('print("log"); print(4, "tpu", "TPU v4")', '4 tpu TPU v4'),
    ('raise OSError("no driver")', 'unknown: OSError: no driver'),
    ('import os; os._exit(3)', 'unknown: exit code 3'),
    ('import time; time.sleep(60)', 'unknown: they did not open within 1 sec'),
  ],
)
def test_devices(monkeypatch, ask, expected):
  monkeypatch.setattr(
    installed, '_DEVICE_PATIENCE', 1 if 'sleep' in ask else 60
  )
  monkeypatch.setattr(installed, '_ASK', ask)
  assert installed.devices().startswith(expected)


def test_the_programs_that_start_runs_need_only_the_standard_library():
  code = (
    'import sys; from vit_jax.runtime import installed;'
    'print({"jax", "numpy", "absl"} & set(sys.modules))'
  )
  found = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert found.stdout.strip() == 'set()'


def test_paths_lead_into_the_checkout():
  for name in ('configs/quickstart.py', 'launch/worker/run.sh', 'launch'):
    assert installed.path(name).samefile(ROOT / name)
  for name in ('launch/nope', 'setup.py', 'vit_jax/main.py'):
    with pytest.raises(FileNotFoundError, match='does not come with vit_jax'):
      installed.path(name)


@pytest.mark.parametrize('argument', ['', ':', ':ViT-B/16,folder:/a'])
@pytest.mark.parametrize(
  'flag, name, file',
  [
    ('config', 'quickstart', 'configs/quickstart.py'),
    ('also', 'quickstart.py', 'configs/quickstart.py'),
    ('config', 'configs/quickstart', 'configs/quickstart.py'),
    ('sweep', 'digits', 'configs/sweeps/digits.py'),
    ('sweep', 'sweeps/digits.py', 'configs/sweeps/digits.py'),
    ('sweep', 'configs/sweeps/digits.py', 'configs/sweeps/digits.py'),
  ],
)
def test_names(flag, name, file, argument, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  found, colon, rest = installed.find(flag, name + argument).partition(':')
  assert pathlib.Path(found).samefile(ROOT / file)
  assert colon + rest == argument
  assert installed.exists(flag, name)


def test_a_users_own_file_comes_first(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'quickstart.py').touch()
  assert installed.find('config', 'quickstart.py:a') == 'quickstart.py:a'
  assert installed.find('config', 'quickstart') != 'quickstart.py'


@pytest.mark.parametrize(
  'flag, text, similar',
  [
    ('config', 'quickstrat:a', 'Did you mean quickstart'),
    ('config', 'mine/test.py', 'mine holds tests.py'),
    ('sweep', 'quickstart', 'vit_jax comes with .*digits'),
    ('config', 'other/quickstart.py', 'vit_jax comes with .*pretrain'),
  ],
)
def test_a_missing_file(flag, text, similar, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'tests.py').touch()
  message = f'^--{flag}={text}: there is no file.*{similar}'
  with pytest.raises(ValueError, match=message):
    installed.find(flag, text)
  assert not installed.exists(flag, text)
