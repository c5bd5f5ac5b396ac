"""Guards: a figure is saved as PNG, PDF and CSV."""

import sys

import numpy as np
import pandas as pd
import pytest

from vit_jax.inspection import figures
from vit_jax.pages import drawing


def test_save_writes_png_pdf_and_csv(tmp_path):
  distances = np.array([[1.5, 2.5]])
  figure = figures.attention_distance({'A': distances}, 8, uniform={'A': 4.0})
  data = figures.table(distances, ('block', 'head'), 'pixels')
  drawing.save(figure, tmp_path / 'new/v1.5', data)
  assert sorted(path.name for path in (tmp_path / 'new').iterdir()) == [
    *('v1.5.csv', 'v1.5.pdf', 'v1.5.png')
  ]
  png = (tmp_path / 'new/v1.5.png').read_bytes()
  assert png.startswith(b'\x89PNG')
  assert (tmp_path / 'new/v1.5.pdf').read_bytes().startswith(b'%PDF')
  pd.testing.assert_frame_equal(pd.read_csv(tmp_path / 'new/v1.5.csv'), data)


def test_missing_matplotlib_is_one_clear_error(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[plot\]"'):
    figures.filters(np.zeros((1, 2, 2, 3)))
