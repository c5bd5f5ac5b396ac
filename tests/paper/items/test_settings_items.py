"""Guards: Tables 1, 3 and 4 show where our code differs from the paper."""

import dataclasses

import pytest

from vit_jax import models
from vit_jax.paper import items, numbers
from vit_jax.paper.items import settings_items
from vit_jax.paper.report import Settings
from vit_jax.runtime import command_line
from vit_jax.sweep import reading


def _render(name):
  return items.ITEMS[name].render(None, None)


def _cells(name):
  """Returns (row, column) -> setting, from all blocks."""
  found = {}
  for block in _render(name).blocks:
    assert isinstance(block, Settings)
    assert not found.keys() & block.cells.keys()
    found |= block.cells
  return found


def _differing(name):
  return {
    place: cell.ours for place, cell in _cells(name).items() if not cell.agrees
  }


def _agree_but_not_identical(name):
  return {
    place: (cell.ours, cell.paper.printed)
    for place, cell in _cells(name).items()
    if cell.agrees and not cell.same
  }


def _change(monkeypatch, change, where=command_line):
  """Applies `change` to each config that is read."""
  read = where.read_config

  def changed(words):
    config = read(words)
    for part in config.get('stages', {'': config}).values():
      change(part)
    return config

  monkeypatch.setattr(where, 'read_config', changed)


def test_settings_tables_need_no_runs_and_items_begin_in_order():
  assert [*items.ITEMS][:5] == [
    'table1',
    'table2',
    'table3',
    'table4',
    'table5',
  ]
  for name in ('table1', 'table3', 'table4'):
    assert items.ITEMS[name].nodes == ()
    assert items.ITEMS[name].title == numbers.TABLES[name].title


@pytest.mark.parametrize(
  ('name', 'captions'),
  [
    ('table1', []),
    ('table3', [numbers.PRETRAINING]),
    ('table4', [numbers.FINETUNING]),
  ],
)
def test_each_cell_and_caption_setting_is_compared_with_ours(name, captions):
  paper = numbers.TABLES[name]
  block, *others = _render(name).blocks
  assert (block.rows, block.columns) == (paper.rows, paper.columns)
  assert {place: cell.paper for place, cell in block.cells.items()} == (
    paper.cells
  )
  assert [
    {row: cell.paper for (row, _), cell in other.cells.items()}
    for other in others
  ] == captions


def test_these_are_all_deviations_from_the_paper():
  assert _differing('table1') == {('ViT-L', 'Params'): '304,326,632'}
  assert _differing('table3') == {}
  assert _differing('table4') == {}


@pytest.mark.gate
def test_these_agree_but_are_not_identical():
  assert _agree_but_not_identical('table1') == {
    ('ViT-B', 'Params'): ('86,567,656', '86M'),
    ('ViT-H', 'Params'): ('632,045,800', '632M'),
  }
  assert _agree_but_not_identical('table3') == {
    ('ViT-L/16, JFT-300M', 'Epochs'): (7, '7/14'),
    ('R50+ViT-L/16, JFT-300M', 'Epochs'): (7, '7/14'),
    ('ViT-L/{16,32}, ImageNet-21k', 'Epochs'): (90, '30/90'),
  }
  assert _agree_but_not_identical('table4') == {}


@pytest.mark.gate
def test_parameters_are_counted_with_the_head_and_without():
  notes = _render('table1').notes
  assert notes[2:] == [
    'ViT-B/16: 86,567,656 with the head, 85,798,656 without.',
    'ViT-B/32: 88,224,232 with the head, 87,455,232 without.',
    'ViT-L/16: 304,326,632 with the head, 303,301,632 without.',
    'ViT-L/32: 306,535,400 with the head, 305,510,400 without.',
    'ViT-H/14: 632,045,800 with the head, 630,764,800 without.',
  ]


@pytest.mark.gate
def test_a_size_that_differs_from_the_papers_is_shown(monkeypatch):
  build = models.build

  def changed(name, **options):
    if name in ('ViT-H/14', 'ViT-L/32'):
      options['mlp_dim'] = 4095
    return build(name, **options)

  monkeypatch.setattr(models, 'build', changed)
  found = _differing('table1')
  assert found['ViT-L', 'MLP size'] == '4096 (ViT-L/16), 4095 (ViT-L/32)'
  assert found['ViT-H', 'MLP size'] == 4095
  assert ('ViT-H', 'Params') in found
  assert len(found) == 4


@pytest.mark.parametrize(
  ('model', 'key', 'value', 'row', 'column', 'shown'),
  [
    ('ViT-L/32', 'schedule.peak', 5e-4, 'ViT-L/32', 'Base LR', 5e-4),
    (
      *('BiT-R152x2', 'schedule.peak', 5e-4, 'BiT-R152x{1,2}', 'Base LR'),
      '0.0006 (BiT-R152x1), 0.0005 (BiT-R152x2)',
    ),
    # The paper has 7/14, and 10 is neither.
    ('R50+ViT-L/16', 'epochs', 10.0, 'R50+ViT-L/16', 'Epochs', 10),
    ('ViT-H/14', 'epochs', None, 'ViT-H/14', 'Epochs', 'None'),
    ('ViT-H/14', 'schedule.name', 'cosine', 'ViT-H/14', 'LR decay', 'cosine'),
    (
      *('BiT-R101x1', 'optimizer.weight_decay', 0.03),
      *('BiT-R101x1', 'Weight decay', 0.03),
    ),
    ('ViT-H/14', 'model.dropout_rate', 0.1, 'ViT-H/14', 'Dropout', 0.1),
  ],
)
def test_another_setting_of_pretraining_differs_in_its_cell_only(
  monkeypatch, model, key, value, row, column, shown
):
  def change(config):
    if config.model.name == model and config.optimizer.weight_decay == 0.1:
      config.update_from_flattened_dict({key: value})

  _change(monkeypatch, change)
  assert _differing('table3') == {(f'{row}, JFT-300M', column): shown}


@pytest.mark.parametrize(
  ('key', 'value', 'row', 'shown'),
  [
    ('data.batch_size', 1024, 'batch size', 1024),
    ('schedule.warmup_steps', 0, 'warmup steps', 0),
    ('image_size', (224, 192), 'image size', '224x192'),
    ('optimizer.clip_norm', 0.0, 'gradient clip', 0),
    ('optimizer.beta1', 'none', 'Adam beta1', 'none'),
    ('optimizer.beta2', 0.99, 'Adam beta2', 0.99),
  ],
)
def test_another_setting_of_all_pretraining_is_found(
  monkeypatch, key, value, row, shown
):
  def change(config):
    if value == 'none':  # Not all optimizers have this key.
      del config.optimizer[key.removeprefix('optimizer.')]
    else:
      config.update_from_flattened_dict({key: value})

  _change(monkeypatch, change)
  assert _differing('table3') == {(row, 'All rows'): shown}


def test_one_model_that_has_its_own_batch_size_is_named(monkeypatch):
  def change(config):
    if config.model.name == 'ViT-H/14':
      config.data.batch_size = 2048

  _change(monkeypatch, change)
  [shown] = _differing('table3').values()
  assert shown == '4096 (21 of 22), 2048 (ViT-H/14, JFT-300M)'


def test_notes_name_the_datasets_with_gradient_clipping(monkeypatch):
  assert _render('table3').notes[-1] == (
    'Pre-training clips gradients on these data sets only: ImageNet.'
  )

  def change(config):
    config.optimizer.clip_norm = 1.0

  _change(monkeypatch, change)
  assert _render('table3').notes[-1] == (
    'Pre-training clips gradients on these data sets only: ImageNet,'
    ' ImageNet-21k, JFT-300M.'
  )


@pytest.mark.parametrize(
  ('dataset', 'key', 'value', 'row', 'column'),
  [
    ('tfds:cifar10', 'schedule.peak', 0.01, 'CIFAR-10', 'Base LR'),
    ('tfds:oxford_iiit_pet', 'total_steps', 400, 'Oxford-IIIT Pets', 'Steps'),
  ],
)
def test_another_setting_of_fine_tuning_differs_in_its_cell_only(
  monkeypatch, dataset, key, value, row, column
):
  def change(config):
    if config.data.dataset == dataset:
      config.update_from_flattened_dict({key: value})

  _change(monkeypatch, change, reading)
  assert _differing('table4') == {(row, column): value}


def test_table_4_shows_the_learning_rates_of_the_sweep(monkeypatch):
  load = reading.load

  def changed(text):
    sweep = load(text)
    if not text.endswith('imagenet2012'):
      return sweep
    [study] = sweep.studies
    fewer = dataclasses.replace(study, candidates=study.candidates[:3])
    return dataclasses.replace(sweep, studies=[fewer])

  monkeypatch.setattr(reading, 'load', changed)
  assert _differing('table4') == {
    ('ImageNet', 'Base LR'): '{0.003, 0.01, 0.03}'
  }


def test_a_task_of_vtab_that_has_its_own_steps_is_named(monkeypatch):
  def change(config):
    if config.data.dataset == 'vtab:svhn':
      config.total_steps = 100

  _change(monkeypatch, change)
  [(place, shown)] = _differing('table4').items()
  assert place == ('VTAB', 'Steps')
  assert shown == '2500 (18 of 19), 100 (svhn)'


@pytest.mark.parametrize(
  ('key', 'value', 'row', 'shown'),
  [
    ('data.batch_size', 256, 'batch size', 256),
    ('optimizer.clip_norm', 0.0, 'gradient clip', 0),
    ('optimizer.momentum', 0.8, 'momentum', 0.8),
    ('optimizer.weight_decay', 1e-4, 'weight decay', 1e-4),
    ('image_size', (224, 224), 'image size', 224),
  ],
)
def test_another_setting_of_all_fine_tuning_is_found(
  monkeypatch, key, value, row, shown
):
  def change(config):
    if config.image_size[0] == 384:
      config.update_from_flattened_dict({key: value})

  _change(monkeypatch, change)
  _change(monkeypatch, change, reading)
  assert _differing('table4') == {(row, 'All rows'): shown}


def test_table_2_has_its_own_resolution_and_averages_weights(monkeypatch):
  def change(config):
    if config.image_size == (512, 512):
      config.polyak.decay = 0.0
    if config.image_size == (518, 518):
      config.image_size = (504, 504)

  _change(monkeypatch, change)
  assert _differing('table4') == {
    ('image size, ViT-H/14 in Table 2', 'All rows'): 504,
    ('Polyak factor in Table 2', 'All rows'): (
      '0.9999 (ViT-H/14), 0 (ViT-L/16)'
    ),
  }


def test_table_1_sizes_cover_all_vits_of_table_5():
  names = {name for row in settings_items.MODELS_1.values() for name in row}
  assert names == {
    model for model in numbers.TABLE_5.columns if model.startswith('ViT')
  }
