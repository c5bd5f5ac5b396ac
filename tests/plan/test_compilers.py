"""Guards: a plan names its compiler and warns if it is not the tested one."""

import pathlib

import jax
import pytest

from vit_jax.plan import compilers
from vit_jax.runtime import installed

LOCK = """# Comment
jax==0.10.2 ; python_full_version < '3.12'
jax==0.12.0 ; python_full_version >= '3.12'
libtpu==0.0.42 ; python_full_version < '3.12'
libtpu==0.0.50 ; python_full_version >= '3.12'
numpy==2.5.5
"""


@pytest.fixture(autouse=True)
def lock(tmp_path, monkeypatch):
  """A lock file in a checkout, with an empty cache of differences."""
  file = tmp_path / 'tpu.txt'
  file.write_text('jax==0.12.0\njaxlib==0.12.0\nlibtpu==0.0.50\n')
  monkeypatch.setattr(compilers.installed, 'path', lambda name: file)
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv('TPU_LIBRARY_PATH', raising=False)
  compilers.difference.cache_clear()
  yield file
  compilers.difference.cache_clear()


def _installed(monkeypatch, **versions):
  monkeypatch.setattr(installed, 'versions', lambda: versions)


def test_a_lock_has_other_versions_for_other_pythons():
  assert compilers.locked(LOCK, '3.11.7') == {
    'jax': '0.10.2',
    'libtpu': '0.0.42',
    'numpy': '2.5.5',
  }
  assert compilers.locked(LOCK, '3.13.0')['libtpu'] == '0.0.50'


def test_the_tested_compiler_gives_no_warning(monkeypatch, caplog):
  _installed(monkeypatch, jax='0.12.0', jaxlib='0.12.0', libtpu='0.0.50')
  assert compilers.difference() is None
  compilers.warn({'tpu'})
  assert caplog.text == ''


def test_another_compiler_gives_a_warning(monkeypatch, caplog):
  _installed(monkeypatch, jax='0.12.0', jaxlib='0.12.1', libtpu='0.0.51')
  text = (
    'The compiler of these figures is not the tested one: jaxlib 0.12.1'
    ' (tested: 0.12.0), libtpu 0.0.51 (tested: 0.0.50). Install the tested one'
    ' with pip install -r tpu.txt.'
  )
  assert compilers.difference() == text
  compilers.warn({'tpu'})
  assert text in caplog.text


def test_the_file_of_the_tested_compiler_is_quoted(lock, monkeypatch):
  _installed(monkeypatch, jax='0.12.0', jaxlib='0.12.1', libtpu='0.0.51')
  (lock.parent / 'a b').mkdir()
  file = lock.rename(lock.parent / 'a b' / lock.name)
  monkeypatch.setattr(compilers.installed, 'path', lambda name: file)
  assert "pip install -r 'a b/tpu.txt'." in compilers.difference()


def test_the_gpu_compiler_has_its_own_lock(monkeypatch, lock, caplog):
  lock.write_text('jax==0.12.0\njax-cuda13-plugin==0.12.0\nlibtpu==1\n')
  seen = []
  monkeypatch.setattr(
    compilers.installed, 'path', lambda name: seen.append(name) or lock
  )
  _installed(monkeypatch, jax='0.12.0')
  compilers.warn({'gpu'})
  assert 'jax-cuda13-plugin none (tested: 0.12.0). Install' in caplog.text
  assert set(seen) == {'launch/locks/cuda.txt'}
  figures = {'jax': '0.12.0', 'gpu_compiler': 'jax-cuda13-plugin 0.12.0'}
  assert compilers.named(figures) == 'jax-cuda13-plugin 0.12.0, jax 0.12.0'


def test_a_libtpu_from_the_environment_is_named(monkeypatch):
  _installed(monkeypatch, jax='0.12.0', jaxlib='0.12.0', libtpu='0.0.50')
  monkeypatch.setenv('TPU_LIBRARY_PATH', '/lib/libtpu.so')
  assert compilers.libtpu() == 'of TPU_LIBRARY_PATH=/lib/libtpu.so'
  assert (
    'libtpu of TPU_LIBRARY_PATH=/lib/libtpu.so (tested: 0.0.50)'
    in compilers.difference()
  )


def test_the_package_that_jax_found_by_itself_is_a_package(monkeypatch):
  _installed(monkeypatch, jax='0.12.0', jaxlib='0.12.0', libtpu='0.0.50')
  folder = pathlib.Path('/site/libtpu')
  monkeypatch.setattr(compilers, '_package', lambda: folder)
  monkeypatch.setenv('TPU_LIBRARY_PATH', '/site/libtpu/libtpu.so')
  assert compilers.libtpu() == '0.0.50'
  assert compilers.difference() is None


def test_without_lock_files_there_is_nothing_to_differ_from(monkeypatch):
  def missing(name):
    raise FileNotFoundError(name)

  monkeypatch.setattr(compilers.installed, 'path', missing)
  _installed(monkeypatch, jax='0.1')
  assert compilers.difference() is None


def test_names_of_the_compiler():
  figures = {'jax': '0.12.0', 'libtpu': '0.0.50', 'backend': None}
  assert compilers.named(figures) == 'libtpu 0.0.50, jax 0.12.0'
  figures = {'jax': '0.12.0', 'backend': 'gpu', 'runtime': 'cuda 13'}
  assert compilers.named(figures) == 'gpu (cuda 13), jax 0.12.0'
  # A plan that only counts, and an old plan without the key.
  assert compilers.named({'jax': jax.__version__, 'libtpu': None}) == ''
  assert compilers.named({}) == ''
