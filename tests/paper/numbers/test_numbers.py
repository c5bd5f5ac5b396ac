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


# Compute. ---------------------------------------------------------------------


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
