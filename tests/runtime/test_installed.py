"""Guards what a run records of its installation, and files of the package."""

import pathlib
import platform
import sys
from importlib import metadata

import pytest

from tests import commands
from tests.package.conftest import git
from vit_jax.runtime import installed

ROOT = pathlib.Path(__file__).parents[2]


def test_all_that_is_installed_becomes_a_requirements_file(
  tmp_path, monkeypatch
):
  def add(name, version, url=None, folder='site'):
    info = tmp_path / folder / f'{name}-{version}.dist-info'
    info.mkdir(parents=True)
    text = f'Name: {name}\n' + (f'Version: {version}\n' if version else '')
    (info / 'METADATA').write_text(text)
    if url:
      (info / 'direct_url.json').write_text(url)

  add('Some_Package', '1.2')
  add('vit-paper-jax', '9')
  add('mine', '0.1', '{"url": "https://me:token@example.org/mine"}')
  add('jax', '0.10.2')
  add('broken', '')
  add('some-package', '0.9', folder='later')
  found = [
    *metadata.distributions(path=[f'{tmp_path}/site', f'{tmp_path}/later'])
  ]
  monkeypatch.setattr(metadata, 'distributions', lambda: found)
  assert installed.requirements().splitlines() == [
    f'# Python {platform.python_version()}',
    'jax==0.10.2',
    '# mine 0.1, not from an index',
    'some-package==1.2',  # The first on the path.
  ]


@pytest.mark.parametrize(
  'module, more',
  [
    # Of the programs that start runs, which need only the standard library.
    ('runtime.installed', 'absl'),
    ('paper.numbers', 'tensorflow_datasets'),
  ],
)
def test_what_is_imported_without_arrays(module, more):
  code = (
    f'import sys; import vit_jax.{module};'
    f'print({{"jax", "numpy", "pandas", "{more}"}} & set(sys.modules))'
  )
  found = commands.run_new(sys.executable, '-c', code)
  assert found.stdout.strip() == 'set()'


def test_paths_lead_into_the_checkout():
  for name in ('configs/quickstart.py', 'launch/worker/run.sh', 'launch'):
    assert installed.path(name).samefile(ROOT / name)
  for name in ('launch/nope', 'setup.py'):
    with pytest.raises(FileNotFoundError, match='does not come with vit_jax'):
      installed.path(name)


@pytest.mark.parametrize('argument', ['', ':ViT-B/16,folder:/a'])
@pytest.mark.parametrize(
  'flag, name, file',
  [
    ('config', 'quickstart', 'configs/quickstart.py'),
    ('also', 'quickstart.py', 'configs/quickstart.py'),
    ('config', 'configs/quickstart', 'configs/quickstart.py'),
    ('config', 'deit3', 'configs/recipes/deit3.py'),
    ('also', 'configs/recipes/deit3.py', 'configs/recipes/deit3.py'),
    ('sweep', 'sweeps/digits.py', 'configs/sweeps/digits.py'),
    ('sweep', 'configs/sweeps/digits.py', 'configs/sweeps/digits.py'),
  ],
)
def test_names(flag, name, file, argument, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  found, colon, rest = installed.find(flag, name + argument).partition(':')
  assert pathlib.Path(found).samefile(ROOT / file)
  assert colon + rest == argument
  # A user's own file comes first.
  (tmp_path / 'quickstart.py').touch()
  assert installed.find('config', 'quickstart.py:a') == 'quickstart.py:a'


@pytest.mark.parametrize(
  'flag, text, similar',
  [
    ('config', 'quickstrat:a', 'Did you mean quickstart'),
    ('sweep', 'quickstart', 'vit_jax comes with .*digits'),
    ('config', 'other/quickstart.py', 'vit_jax comes with .*pretrain'),
  ],
)
def test_a_missing_file(flag, text, similar, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  message = f'^--{flag}={text}: there is no file.*{similar}'
  with pytest.raises(ValueError, match=message):
    installed.find(flag, text)


# ---- The commit --------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
  """Returns a repository with a committed package `vit_jax`."""
  package = tmp_path / 'vit_jax'
  package.mkdir()
  (package / '__init__.py').write_text('')
  git(tmp_path, 'init', '--quiet')
  git(tmp_path, 'add', '--all')
  git(tmp_path, 'commit', '--quiet', '--message=First')
  return tmp_path


def test_commit_is_the_commit_of_the_code(checkout, tmp_path_factory):
  head = git(checkout, 'rev-parse', 'HEAD').strip()
  # An untracked file does not count as a change of the code.
  (checkout / 'notes.txt').write_text('new')
  assert installed.commit(checkout) == head
  (checkout / 'vit_jax/__init__.py').write_text('changed = True\n')
  assert installed.commit(checkout) == head + '+'
  # Code that the repository around it does not track has no commit.
  (checkout / 'site/vit_jax').mkdir(parents=True)
  (checkout / 'site/vit_jax/__init__.py').write_text('')
  assert installed.commit(checkout / 'site') == ''
  assert installed.commit(tmp_path_factory.mktemp('elsewhere')) == ''


@pytest.mark.parametrize(('diff', 'mark'), [('', ''), ('changed', '+')])
def test_shipped_code_has_the_commit_of_its_launch_record(tmp_path, diff, mark):
  record = tmp_path / 'launch_record'
  record.mkdir()
  (record / 'commit').write_text('a' * 40 + '\n')
  (record / 'local.diff').write_text(diff)
  assert installed.commit(tmp_path) == 'a' * 40 + mark
