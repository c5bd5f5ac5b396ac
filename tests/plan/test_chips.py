"""Guards: the table of TPU generations agrees with the published figures."""

import math

import pytest

from vit_jax.plan import chips


def test_a_chip_is_found_by_generation_slice_and_device_kind():
  v3 = chips.get('v3')
  assert chips.get('v3:16x16') is v3
  assert chips.get('TPU v3') is v3
  assert v3.clock_mhz == 940
  assert v3.peak_flops == 61.6e12
  assert v3.hbm_usable_bytes == pytest.approx(15.48 * 2**30, abs=1)


def test_an_unknown_generation_is_refused():
  with pytest.raises(ValueError, match=r"'v9:2x2'.*'v2', 'v3'"):
    chips.get('v9:2x2')


@pytest.mark.parametrize(
  'slice_',
  ['v2:2x2', 'v3:2x2', 'v4:2x2x1', 'v5e:2x2', 'v5p:2x2x1', 'v6e:2x2']
  + ['tpu7x:2x2x1'],
)
def test_links_go_along_the_dimensions_of_a_slice(slice_):
  shape = slice_.partition(':')[2].split('x')
  assert chips.get(slice_).torus_dimensions == len(shape)


@pytest.mark.parametrize('name', list(chips.CHIPS))
def test_the_figures_of_a_chip_agree(name):
  chip = chips.get(name)
  assert (
    chip.devices_per_chip == {'chip': 1, 'core': 2, 'chiplet': 2}[chip.device]
  )
  # The matrix units have 2^n multipliers, each with two operations a cycle.
  in_a_cycle = chip.peak_flops / (chip.clock_mhz * 1e6)
  assert in_a_cycle == pytest.approx(
    2 ** round(math.log2(in_a_cycle)), rel=0.002
  )
