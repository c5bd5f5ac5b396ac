"""Guards what a run records of its installation, and files of the package."""

import pathlib
import platform
import subprocess
import sys

import pytest

from vit_jax.runtime import installed

ROOT = pathlib.Path(__file__).parents[2]


def test_freeze_writes_pip_requirements(tmp_path, monkeypatch):
  def add(name, version, url=None, folder='site'):
    info = tmp_path / folder / f'{name}-{version}.dist-info'
    info.mkdir(parents=True)
    (info / 'METADATA').write_text(f'Name: {name}\nVersion: {version}\n')
    if url:
      (info / 'direct_url.json').write_text(f'{{"url": "{url}"}}')

  add('Some_Package', '1.2')
  add('vit-paper-jax', '9')
  add('mine', '0.1', 'https://me:token@example.org/mine')
  add('jax', '0.10.2')
  add('some-package', '0.9', folder='later')
  monkeypatch.setattr(sys, 'path', [f'{tmp_path}/site', f'{tmp_path}/later'])
  text = installed.freeze()
  python = platform.python_version()
  assert text.splitlines() == [
    f'# Python {python}',
    'jax==0.10.2',
    'some-package==1.2',  # The first on the path.
    '# mine 0.1, not from an index: https://example.org/mine',
  ]
  old = '# Python 3.9.1\n# Installed at 2026-01-01, from step 3 on\njax==0.9\n'
  assert installed.changes(old, text) == (
    f'Python 3.9.1 -> {python}, jax 0.9 -> 0.10.2, mine none -> 0.1,'
    ' some-package none -> 1.2'
  )
  assert installed.changes(text, text) == ''


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
  assert not installed.exists(flag, text)
