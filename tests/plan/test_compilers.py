"""Guards: a plan names its compiler and warns if it is not the tested one."""

import pytest

from vit_jax.plan import compilers
from vit_jax.runtime import installed


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
