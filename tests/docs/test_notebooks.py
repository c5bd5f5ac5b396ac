"""Guards: the notebooks hold no output, and run from the first cell on."""

import json
import pathlib

import nbclient
import nbformat
import numpy as np
import pytest

from tests.models import naive
from vit_jax import interop, models
from vit_jax.interop import catalog

NOTEBOOKS = sorted(
  (pathlib.Path(__file__).parents[2] / 'docs' / 'notebooks').glob('*.ipynb')
)


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_holds_no_output(path):
  for cell in json.loads(path.read_text())['cells']:
    assert not cell.get('outputs')
    assert cell.get('execution_count') is None


@pytest.fixture
def released(tmp_path, monkeypatch):
  """Writes a file in a released layout, with random weights."""
  name = 'augreg+imagenet2012/Ti_16'
  monkeypatch.setenv(catalog.VARIABLE, str(tmp_path / 'weights'))
  entry = catalog.entry(name)
  model = models.build(entry.model, num_classes=entry.num_classes)
  images = np.zeros((1, entry.image_size, entry.image_size, 3), np.float32)
  params = naive.random_params(model, images, scale=0.02)
  path = catalog.path_of(name)
  path.parent.mkdir(parents=True)
  interop.save_npz(path, params, model)
  path.with_name(f'{path.name}.json').unlink()  # Released files have none.


@pytest.mark.parametrize(
  'path',
  [
    # It trains for two minutes.
    pytest.param(
      path,
      id=path.stem,
      marks=pytest.mark.slow if path.stem == 'own_folder' else pytest.mark.gate,
    )
    for path in NOTEBOOKS
  ],
)
def test_the_notebook_runs(path, released, tmp_path, monkeypatch):
  # Real training needs optimised code, unlike the other tests.
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  notebook = nbformat.read(path, as_version=4)
  client = nbclient.NotebookClient(
    notebook, timeout=600, resources={'metadata': {'path': tmp_path}}
  )
  client.execute()
  texts = [
    output.get('text', '')
    for cell in notebook.cells
    for output in cell.get('outputs', [])
  ]
  if path.stem == 'attention':
    assert 'image/png' in notebook.cells[-1].outputs[0].data
  else:
    assert (tmp_path / 'mistakes' / 'index.html').exists()
    [said] = [text for text in texts if 'images are right' in text]
    assert float(said.partition('%')[0]) > 70
