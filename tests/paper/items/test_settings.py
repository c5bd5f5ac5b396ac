"""Guards: Tables 1, 3 and 4 show where our code differs from the paper."""

import pytest

from vit_jax import models
from vit_jax.paper import items
from vit_jax.paper.items.tables import table1, table3, table4, table5
from vit_jax.paper.runs import Results
from vit_jax.runtime import command_line
from vit_jax.sweep import reading


@pytest.fixture(autouse=True)
def scanned(monkeypatch):
  """Traces one block of each ViT in place of all, which have equal sizes."""
  build = models.build

  def scan(name, **options):
    return build(name, **options, **({'scan': True} if 'ViT' in name else {}))

  monkeypatch.setattr(models, 'build', scan)


def _blocks(name):
  return items.ITEMS[name].render(Results([], {}), None).blocks


def _differing(name):
  cells = dict(cell for block in _blocks(name) for cell in block.cells.items())
  return {place: cell.ours for place, cell in cells.items() if not cell.agrees}


def _change(monkeypatch, change):
  """Applies `change` to each config that is read."""

  def changing(read):
    def changed(*words):
      config = read(*words)
      for part in config.get('stages', {'': config}).values():
        change(part)
      return config

    return changed

  for where, name in (
    (command_line, 'load_config'),
    (reading, 'read_config'),
  ):
    monkeypatch.setattr(where, name, changing(getattr(where, name)))


@pytest.mark.parametrize(
  ('table', 'differing', 'accepted'),
  [
    (
      table1,
      {('ViT-L', 'Params'): '304,326,632'},
      {
        ('ViT-B', 'Params'): ('86,567,656', '86M'),
        ('ViT-H', 'Params'): ('632,045,800', '632M'),
      },
    ),
    (
      table3,
      {},
      {
        ('ViT-L/16, JFT-300M', 'Epochs'): (7, '7/14'),
        ('R50+ViT-L/16, JFT-300M', 'Epochs'): (7, '7/14'),
        ('ViT-L/{16,32}, ImageNet-21k', 'Epochs'): (90, '30/90'),
      },
    ),
    (table4, {}, {}),
  ],
)
def test_each_cell_and_caption_setting_is_compared_with_ours(
  table, differing, accepted
):
  block, *others = blocks = _blocks(table.PAPER.name)
  assert {p: cell.paper for p, cell in block.cells.items()} == table.PAPER.cells
  for other in others:
    assert {r: cell.paper for (r, _), cell in other.cells.items()} == table.ALL
  cells = dict(cell for each in blocks for cell in each.cells.items())
  assert {p: c.ours for p, c in cells.items() if not c.agrees} == differing
  assert {
    place: (cell.ours, cell.paper.printed)
    for place, cell in cells.items()
    if cell.agrees and not cell.same
  } == accepted


def test_a_size_that_differs_from_the_papers_is_shown(monkeypatch):
  build = models.build

  def changed(name, **options):
    if name in ('ViT-H/14', 'ViT-L/32'):
      options['mlp_dim'] = 4095
    return build(name, **options)

  monkeypatch.setattr(models, 'build', changed)
  found = _differing('table1')
  assert found['ViT-L', 'MLP size'] == '4096, 4095'
  assert found['ViT-H', 'MLP size'] == 4095
  assert len(found) == 4


# Model -> a setting that another config gives it.
OTHERS = {
  'BiT-R152x2': ('schedule.peak', 5e-4),
  'R50+ViT-L/16': ('epochs', 10.0),
  'BiT-R101x1': ('optimizer.weight_decay', 0.03),
}


def test_another_setting_of_pretraining_differs_in_its_cell_only(monkeypatch):
  def change(config):
    if config.optimizer.weight_decay == 0.1 and config.model.name in OTHERS:
      config.update_from_flattened_dict(dict([OTHERS[config.model.name]]))
    if config.image_size == (224, 224):
      config.image_size = (224, 192)
    if 'b1' in config.optimizer:  # Not all optimizers have this key.
      del config.optimizer.b1

  _change(monkeypatch, change)
  assert _differing('table3') == {
    ('BiT-R152x{1,2}, JFT-300M', 'Base LR'): '0.0006, 0.0005',
    # The paper has 7/14, and 10 is neither.
    ('R50+ViT-L/16, JFT-300M', 'Epochs'): 10,
    ('BiT-R101x1, JFT-300M', 'Weight decay'): 0.03,
    ('image size', 'All rows'): '224x192',
    ('Adam beta1', 'All rows'): 'none',
  }


def test_another_setting_of_fine_tuning_differs_in_its_cell_only(monkeypatch):
  def change(config):
    if config.data.dataset == 'tfds:oxford_iiit_pet':
      config.total_steps = 400
    if config.image_size[0] == 384:
      config.optimizer.momentum = 0.8
    if config.image_size == (512, 512):  # Those of Table 2.
      config.polyak.decay = 0.0
    if config.image_size == (518, 518):
      config.image_size = (504, 504)

  _change(monkeypatch, change)
  assert _differing('table4') == {
    ('Oxford-IIIT Pets', 'Steps'): 400,
    ('momentum', 'All rows'): 0.8,
    ('image size, ViT-H/14 in Table 2', 'All rows'): 504,
    ('Polyak factor in Table 2', 'All rows'): '0, 0.9999',
  }


def test_table_1_sizes_cover_all_vits_of_table_5():
  names = [name for row in table1.MODELS.values() for name in row]
  assert {*names} == {*table5.PAPER.columns}
