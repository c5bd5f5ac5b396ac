"""Guards: installed versions are listed for pip, parsed and compared."""

import importlib.metadata
import json
import platform

import numpy as np
import pytest

from vit_jax.runtime import installed

PYTHON = platform.python_version()


@pytest.fixture
def site(tmp_path):
  """Returns a function that adds a distribution and returns its folder."""

  def add(name, version, url=None):
    folder = tmp_path / f'{name}-{version}.dist-info'
    folder.mkdir()
    if name:
      (folder / 'METADATA').write_text(f'Name: {name}\nVersion: {version}\n')
    if url:
      (folder / 'direct_url.json').write_text(
        url if isinstance(url, str) else json.dumps(url)
      )
    return str(tmp_path)

  return add


def test_versions_leave_out_libraries_that_are_not_installed():
  found = installed.versions()
  assert found['python'] == PYTHON
  assert found['numpy'] == np.__version__
  assert found['orbax-checkpoint'] == (
    importlib.metadata.version('orbax-checkpoint')
  )
  assert {'jax', 'jaxlib', 'flax', 'optax', 'ml_dtypes'} < {*found}
  assert {'tensorstore', 'array_record'} < {*found}
  # Libraries that are not installed are left out.
  assert not {'jax-cuda12-plugin', 'jax-cuda13-plugin'} <= {*found}


def test_freeze_writes_pip_requirements(site):
  site('Zeta_Pack.age', '2.0')
  site('', '1.0')
  for own in ('vit_jax', 'vit_paper_jax'):
    site(own, '0.1.0', {'url': 'file:///code'})
  local = {'url': 'file:///src/mine', 'dir_info': {'editable': True}}
  site('mine', '0.3', local)
  commit = {'vcs': 'git', 'commit_id': 'abc'}
  url = {'url': 'https://me:token@host/b', 'vcs_info': commit}
  site('branch', '1.1', url)
  site('odd', '4', '{')
  folder = site('alpha', '1.0+cpu')
  assert installed.freeze(folder).splitlines() == [
    f'# Python {PYTHON}',
    'alpha==1.0+cpu',
    'zeta-pack-age==2.0',
    '# branch 1.1, not from an index: https://host/b@abc',
    '# mine 0.3, not from an index: file:///src/mine (editable)',
    '# odd 4, not from an index: unknown',
  ]


def test_the_first_distribution_on_the_path_counts(site, tmp_path):
  folder = site('alpha', '1.0')
  other = tmp_path / 'other' / 'alpha-9.0.dist-info'
  other.mkdir(parents=True)
  (other / 'METADATA').write_text('Name: Alpha\nVersion: 9.0\n')
  text = installed.freeze(folder, str(tmp_path / 'other'))
  assert 'alpha==1.0' in text
  assert '9.0' not in text


def test_freeze_lists_each_distribution_once():
  pins = installed.parse(installed.freeze())
  assert pins['jax'] == importlib.metadata.version('jax')
  assert not {'vit-jax', 'vit-paper-jax'} & set(pins)
  assert len(pins) > 50


def test_parse_reads_what_freeze_writes():
  text = (
    '# Python 3.12.1\n# Installed at the launch of now.\na==1.0+x\n\n'
    '# mine 0.3, not from an index: file:///src (editable)\ncut=='
  )
  assert installed.parse(text) == {
    'python': '3.12.1',
    'a': '1.0+x',
    'mine': '0.3 (file:///src (editable))',
  }


def test_changes_name_the_libraries_first():
  old = {'python': '3.12.1', 'a': '1', 'jax': '0.10.2', 'gone': '2', 'b': '1'}
  new = {'python': '3.12.1', 'a': '2', 'jax': '0.12.0', 'libtpu': '5', 'b': '1'}
  assert installed.changes(old, new) == (
    'jax 0.10.2 -> 0.12.0, libtpu none -> 5, a 1 -> 2, gone 2 -> none'
  )
  assert installed.changes(old, dict(old)) == ''


def test_many_changes_are_abbreviated_to_a_number():
  new = {f'p{i:02}': '1' for i in range(23)}
  text = installed.changes({}, new)
  assert text.endswith('p19 none -> 1 and 3 more')
