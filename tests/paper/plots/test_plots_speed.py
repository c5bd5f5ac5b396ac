"""Guards: Figure 12 has a line of speed and of batch size for each model."""

from tests.paper import drawn
from vit_jax.paper import plots

MEASURED = {
  ('ViT-B/32', 64): (2000.0, 4000),
  ('ViT-B/32', 128): (1000.0, 2000),
  ('BiT-R50x1', 64): (900.0, 300),
  ('BiT-R50x1', 128): (None, 0),
}


def test_figure_12_has_a_panel_for_speed_and_one_for_the_batch():
  figure = plots.figure12(MEASURED)
  speed, batch = figure.axes
  assert drawn.lines(speed) == {
    'ViT-B/32': [(64, 2000), (128, 1000)],
    'BiT-R50x1': [(64, 900)],
  }
  assert drawn.lines(batch) == {
    'ViT-B/32': [(64, 4000), (128, 2000)],
    'BiT-R50x1': [(64, 300)],
  }
  assert speed.get_yscale() == batch.get_yscale() == 'log'
  assert speed.get_xscale() == 'linear'
  assert speed.get_ylabel() == 'Peak speed (images/s/core)'
  assert batch.get_ylabel() == 'Largest batch that fits a core'
  assert speed.get_xlabel() == batch.get_xlabel() == 'Input size (px)'
  assert [t.get_text() for t in batch.get_xticklabels()] == ['64', '128']
  assert [line.get_linestyle() for line in speed.lines] == ['-', '--']
  assert drawn.legend(figure) == ['ViT-B/32', 'BiT-R50x1']
