"""Guards: the source distribution and the wheel contain the right files."""

import email
import pathlib
import shutil
import sys
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement

import vit_jax
from tests import commands
from tests.package import conftest

INFO = f'vit_paper_jax-{vit_jax.__version__}.dist-info'


def _files(folder):
  return {
    file.relative_to(folder).as_posix(): file.read_bytes()
    for file in folder.rglob('*')
    if file.is_file() and '.git' not in file.relative_to(folder).parts
  }


@pytest.mark.gate
def test_the_wheel_holds_the_package_with_configs_and_launch(built):
  source = {
    name.removeprefix('vit_jax/'): data
    for name, data in _files(built.source).items()
    if name.startswith(('vit_jax/', 'configs/', 'launch/'))
  }
  assert {'configs/mini.py', 'launch/worker/run.sh', 'main.py'} <= set(source)
  assert {path.name for path in built.unpacked.iterdir()} == {'vit_jax', INFO}
  wheel = _files(built.unpacked / 'vit_jax')
  assert wheel.pop('COMMIT').decode() == built.head
  assert set(wheel) == set(source)
  assert wheel == source


def test_the_source_distribution_is_a_checkout(built):
  sdist = conftest.read_sdist(built.sdist)
  assert sdist.pop('vit_jax/COMMIT').decode() == built.head
  source = _files(built.source)
  made = {'PKG-INFO', 'setup.cfg'}
  made |= {name for name in sdist if name.startswith('vit_paper_jax.egg-info/')}
  # Git ignores the files that building leaves in a checkout.
  tracked = set(conftest.git(built.source, 'ls-files', '-z').split('\0')) - {''}
  assert set(sdist) - made == tracked - {'.gitignore'}
  assert all(sdist[name] == source[name] for name in set(sdist) - made)


@pytest.mark.gate
def test_changed_code_says_so_and_nothing_of_before_is_left(built, tmp_path):
  folder = tmp_path / 'changed'
  shutil.copytree(built.source, folder)  # It has leftovers of the first build.
  (folder / 'configs/vtab.py').unlink()
  (folder / 'launch/worker/__pycache__').mkdir()
  (folder / 'launch/worker/__pycache__/record.cpython-313.pyc').touch()
  conftest.build(folder, tmp_path)
  sdist = conftest.read_sdist(next(tmp_path.glob('*.tar.gz')))
  assert sdist['vit_jax/COMMIT'].decode() == built.head + '+'
  with zipfile.ZipFile(next(tmp_path.glob('*.whl'))) as wheel:
    assert wheel.read('vit_jax/COMMIT').decode() == built.head + '+'
    assert 'vit_jax/configs/vtab.py' not in wheel.namelist()
    assert 'vit_jax/configs/mini.py' in wheel.namelist()
    assert not any(
      '__pycache__' in name for name in [*wheel.namelist(), *sdist]
    )


def test_metadata(built):
  info = built.unpacked / INFO
  found = email.message_from_string((info / 'METADATA').read_text())
  assert found['Name'] == 'vit-paper-jax'
  assert found['Version'] == vit_jax.__version__
  assert found['License'] == 'Apache-2.0'
  assert found['Requires-Python'] == '>=3.11'
  assert 'Home-page' not in found
  [orbax] = (
    Requirement(text).specifier
    for text in found.get_all('Requires-Dist')
    if text.startswith('orbax-checkpoint')
  )
  assert orbax.contains('0.99')
  assert not orbax.contains('1.0')
  # Since setuptools 77 the file is in a subfolder.
  [file] = info.rglob('LICENSE')
  licence = file.read_text()
  assert 'Version 2.0, January 2004' in licence
  assert 'END OF TERMS AND CONDITIONS' in licence
  citation = yaml.safe_load((built.source / 'CITATION.cff').read_text())
  assert citation['version'] == vit_jax.__version__
  assert citation['license'] == 'Apache-2.0'
  assert citation['references'][0]['identifiers'][0]['value'].endswith(
    '2010.11929'
  )
  changes = (built.source / 'CHANGELOG.md').read_text()
  assert f'\n## [{vit_jax.__version__}]' in changes


def _python(built, folder, *words, code=0):
  where = dict(cwd=folder, PYTHONPATH=str(built.unpacked))
  return commands.run_new(sys.executable, *words, code=code, **where)


def test_files_are_found_in_an_installed_package(built, tmp_path):
  # The user's own folders with these names must not be imported.
  for folder in ('configs', 'launch'):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / '__init__.py').write_text('raise SystemExit("no")')
  program = (
    'from vit_jax.runtime import installed\n'
    'from vit_jax.configs.sweeps import __file__ as sweeps\n'
    'print(sweeps)\n'
    'print(installed.find("config", "configs/quickstart.py:a"))\n'
    'print(installed.find("sweep", "digits"))\n'
    'print(installed.path("launch/worker/run.sh"))\n'
  )
  done = _python(built, tmp_path, '-S', '-c', program)
  package = pathlib.Path(built.unpacked, 'vit_jax')
  assert done.stdout.splitlines() == [
    f'{package}/configs/sweeps/__init__.py',
    f'{package}/configs/quickstart.py:a',
    f'{package}/configs/sweeps/digits.py',
    f'{package}/launch/worker/run.sh',
  ]


def test_launching_from_an_installed_package(built, tmp_path):
  module = ('-S', '-m', 'vit_jax.launch.tpu_vm')
  done = _python(built, tmp_path, *module, '--help')
  assert 'From nothing to a run' in done.stdout
  place = ('--name=a', '--project=p', '--zone=z')
  done = _python(built, tmp_path, *module, 'status', *place, '--dry_run')
  assert done.stdout.startswith('gcloud ')
  # A run must record a commit, and an installed package has no git history.
  done = _python(built, tmp_path, *module, 'setup', *place, code=1)
  assert 'error: only a checkout, which has a commit, can be' in done.stderr
