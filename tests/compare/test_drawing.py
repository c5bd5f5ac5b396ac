"""Guards: a figure is saved as PNG, PDF and CSV."""

import sys

import cv2
import numpy as np
import pandas as pd
import pytest

from vit_jax.compare import drawing
from vit_jax.inspection import figures


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


def test_a_mark_is_above_the_figure_which_keeps_its_place(tmp_path):
  plain, marked = (
    drawing.new_figure((2, 1)) for _ in range(2)
  )  # White, so that all that is dark is the mark.
  drawing.save(plain, tmp_path / 'plain', pd.DataFrame())
  drawing.save(marked, tmp_path / 'marked', pd.DataFrame(), mark='MINIATURE')
  [text] = marked.texts
  assert text.get_window_extent().y0 >= marked.bbox.y1  # It covers nothing.
  darkest = {
    name: cv2.imread(str(tmp_path / f'{name}.png')).min()
    for name in ('plain', 'marked')
  }
  assert darkest['plain'] == 255
  assert darkest['marked'] < 50


def test_missing_matplotlib_is_one_clear_error(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  with pytest.raises(ValueError, match=r'pip install "vit-paper-jax\[plot\]"'):
    figures.filters(np.zeros((1, 2, 2, 3)))
