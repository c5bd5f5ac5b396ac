"""Guards: single numbers and compute agree with each other and the tables."""

import itertools
import math
import subprocess
import sys

import pytest

from vit_jax.paper import numbers
from vit_jax.plan import analysis


def test_numbers_import_no_array_libraries():
  code = (
    'import sys; from vit_jax.paper import numbers; '
    'print({"jax", "numpy", "pandas", "tensorflow_datasets"} & {*sys.modules})'
  )
  result = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert result.stdout == 'set()\n'


def _plain(values):
  return {key: value.value for key, value in values.items()}


def test_objectnet():
  assert _plain(numbers.OBJECTNET) == {'top-1': 61.7, 'top-5': 82.1}
  assert _plain(numbers.OBJECTNET_BIT) == {
    'top-1': 58.7,
    'top-5': 80.0,
    'top-1, cropped to the objects': 63.8,
    'top-5, cropped to the objects': 85.1,
  }


def test_masked_patch_result_is_two_above_scratch_and_four_below_supervised():
  found = _plain(numbers.MASKED_PATCH)
  assert found == {
    'masked patches': 79.9,
    'from scratch': 77.91,
    'supervised, ImageNet-21k': 83.97,
    'supervised, JFT-300M': 84.15,
    'more than from scratch': 2,
    'less than supervised': 4,
  }
  assert round(79.9 - found['from scratch']) == 2
  assert round(found['supervised, ImageNet-21k'] - 79.9) == 4
  assert round(found['supervised, JFT-300M'] - 79.9) == 4


def test_every_number_names_its_source():
  for values in (
    *(numbers.OBJECTNET, numbers.OBJECTNET_BIT, numbers.MASKED_PATCH),
    numbers.REGULARIZATION,
    *(numbers.PRETRAINING, numbers.FINETUNING, numbers.SHAPE_BASE),
    *(numbers.TFLOPS_PER_CORE, numbers.FINETUNING_GMACS),
    *(numbers.UNIFORM_ATTENTION_DISTANCE, numbers.UPSTREAM),
    *(numbers.FROM_SCRATCH, numbers.SHORT_FINETUNING, numbers.RELEASED_224),
  ):
    assert all(value.note for value in values.values())


def test_printed_text_matches_the_number():
  for values in (numbers.OBJECTNET, numbers.MASKED_PATCH):
    for value in values.values():
      assert float(value.printed.removesuffix('%')) == value.value


def test_settings_in_captions_and_text():
  assert list(_plain(numbers.PRETRAINING).values()) == [
    *(4096, 10_000, 224, 1, 0.9, 0.999),
  ]
  assert list(_plain(numbers.FINETUNING).values()) == [
    *(512, 384, 1, 0.9, 0, 512, 518, 0.9999),
  ]
  assert list(_plain(numbers.SHAPE_BASE).values()) == [8, 1024, 2048, 32]


def test_numbers_that_the_authors_published_elsewhere():
  released = numbers.RELEASED
  assert len(released.cells) == 30
  assert released['R50+ViT-B/16', 'CIFAR-10, dropout 0.0'].value == 98.72
  assert released['ViT-L/32', 'ImageNet, dropout 0.1'].value == 81.13
  sums = [
    round(math.fsum(released.column(column).values()), 2)
    for column in released.columns
  ]
  assert sums == [494.81, 494.68, 461.45, 462.83, 416.27, 416.69]
  assert _plain(numbers.RELEASED_224) == {'ViT-B/16': 81.2, 'ViT-L/16': 82.7}
  assert _plain(numbers.SHORT_FINETUNING) == {
    ('CIFAR-10', 500): 98.59,
    ('CIFAR-10', 1000): 98.86,
    ('CIFAR-100', 500): 89.17,
    ('CIFAR-100', 1000): 91.15,
  }
  assert _plain(numbers.UPSTREAM) == {
    **{'ViT-B/16': 47.88, 'ViT-B/32': 44.04, 'ViT-L/16': 49.90},
    **{'ViT-L/32': 45.42, 'ViT-H/14': 49.06},
  }
  assert _plain(numbers.FROM_SCRATCH) == {
    ('ViT-B/32', 300): 69.19,
    ('ViT-B/16', 300): 74.79,
    ('ViT-L/32', 90): 66.90,
    ('ViT-L/16', 90): 72.59,
  }


# Compute. ---------------------------------------------------------------------


def test_core_days_and_exaflops_equal_tables_2_and_6():
  assert _plain(numbers.CORE_DAYS) == {
    'ViT-H/14, JFT-300M': 2500,
    'ViT-L/16, JFT-300M': 680,
    'ViT-L/16, ImageNet-21k': 230,
    'BiT-R152x4, JFT-300M': 9900,
    'Noisy Student, JFT-300M': 12_300,
  }
  exaflops = _plain(numbers.EXAFLOPS)
  assert len(exaflops) == 18
  assert exaflops['ViT-B/32, 7 epochs'] == 55
  assert exaflops['BiT-R200x3, 14 epochs'] == 3306


def test_the_plan_uses_the_same_core_days():
  names = {18_291: 'JFT-300M', 21_843: 'ImageNet-21k'}
  for (model, classes), (_, core_days) in analysis.PAPER_RUNS.items():
    column = f'{model}, {names[classes]}'
    assert numbers.CORE_DAYS[column].value == core_days


def test_printed_exaflops_follow_from_the_formula_except_for_a_misprint():
  compute = numbers.COMPUTE
  off = {}
  for (_, epochs), row in zip(numbers.ROWS_6, compute.rows, strict=True):
    gmacs = compute[row, 'GMACs'].value
    exaflops = gmacs * 1e9 * 2 * 3 * 303e6 * epochs / 1e18
    # The printed GMACs have only two decimals.
    assert exaflops == pytest.approx(
      compute[row, 'exaFLOPs, textbook'].value, rel=0.002, abs=0.6
    )
    counted = compute[row, 'exaFLOPs, inside the image'].value
    printed = numbers.EXAFLOPS[row].value
    # The two cheapest models are off by 1, which is 2%.
    if abs(counted - printed) > max(1, 0.008 * printed):
      off[row] = round(100 * (counted / printed - 1))
  assert off == {'R50+ViT-L/16, 7 epochs': -3}


@pytest.mark.parametrize(
  'model, patch',
  [('ViT-B', 32), ('ViT-B', 16), ('ViT-L', 32), ('ViT-L', 16), ('ViT-H', 14)],
)
def test_multiply_adds_follow_from_the_sizes_of_table_1(model, patch):
  layers, width, mlp, *_ = numbers.TABLES['table1'].row(model).values()
  patches = (224 // patch) ** 2
  tokens = patches + 1
  macs = patches * 3 * patch**2 * width + width**2
  macs += layers * 4 * tokens * width**2
  macs += layers * 2 * tokens**2 * width
  macs += layers * 2 * tokens * width * mlp
  epochs = 14 if model == 'ViT-H' else 7
  row = f'{model}/{patch}, {epochs} epochs'
  assert round(macs / 1e9, 2) == numbers.COMPUTE[row, 'GMACs'].value


def test_fine_tuning_costs_follow_from_the_sizes_of_table_1():
  for name, gmacs in numbers.FINETUNING_GMACS.items():
    model, patch = name.split('/')
    layers, width, mlp, *_ = numbers.TABLES['table1'].row(model).values()
    patches = (384 // int(patch)) ** 2
    tokens = patches + 1
    macs = patches * 3 * int(patch) ** 2 * width
    macs += layers * tokens * (4 * width**2 + 2 * tokens * width)
    macs += layers * tokens * 2 * width * mlp
    assert macs / 1e9 == pytest.approx(gmacs.value, rel=0.005)


def test_axial_exaflops_follow_from_their_multiply_adds():
  table = numbers.AXIAL_COMPUTE
  assert table.row('Axial-ViT-B/32') == {'GMACs': 8.45, 'exaFLOPs': 108}
  assert table.row('Axial-ViT-B/16') == {'GMACs': 33.5, 'exaFLOPs': 426}
  for row in table.rows:
    exaflops = table[row, 'GMACs'].value * 6 * 0.303 * 7
    assert exaflops == pytest.approx(table[row, 'exaFLOPs'].value, abs=0.6)


def test_throughputs_follow_from_exaflops_and_core_days():
  exaflops = {
    'ViT-H/14, JFT-300M': 4262,
    'ViT-L/16, JFT-300M': 1567,
    # 90 epochs of 14.2 million images.
    'ViT-L/16, ImageNet-21k': 61.55 * 6 * 14.2e6 * 90 / 1e9,
  }
  assert _plain(numbers.TFLOPS_PER_CORE).keys() == exaflops.keys()
  for column, value in numbers.TFLOPS_PER_CORE.items():
    seconds = numbers.CORE_DAYS[column].value * 86_400
    assert round(exaflops[column] * 1e6 / seconds, 1) == value.value


def test_days_on_eight_cores_are_the_core_days_rounded():
  core_days = numbers.CORE_DAYS['ViT-L/16, ImageNet-21k'].value
  assert core_days / 8 == 28.75
  assert numbers.DAYS_ON_8_CORES.value == 30
  assert [value.value for value in numbers.COMPUTE_SAVED] == [2, 4]


@pytest.mark.parametrize('side, printed', [(14, 116.5), (7, 115.5)])
def test_uniform_attention_has_the_mean_distance_of_two_patches(side, printed):
  places = [
    (224 / side * row, 224 / side * column)
    for row, column in itertools.product(range(side), repeat=2)
  ]
  distances = [math.dist(a, b) for a, b in itertools.product(places, repeat=2)]
  mean = math.fsum(distances) / len(distances)
  assert round(mean, 1) == printed
  assert numbers.UNIFORM_ATTENTION_DISTANCE[side].value == printed
