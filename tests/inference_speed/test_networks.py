"""Guards: the right models and sizes are measured, in full and in miniature."""

import pytest

from vit_jax.inference_speed import networks
from vit_jax.paper.items.figures import figure12, figure13


def test_the_default_models_are_those_of_figures_12_and_13():
  similar = {name for pair in figure12.SIMILAR['paper'] for name in pair}
  assert {*networks.MODELS} == similar | {*figure12.LARGEST}
  axial = {start.model for start in figure13.ITEM.shown('paper')}
  assert {*networks.AXIAL_MODELS} == axial - {*networks.MODELS}
  found = networks.pairs((), (), 'paper')
  assert len(found) == 8 * 5 + 3
  assert found[:2] == [('BiT-R50x1', 64), ('BiT-R50x1', 128)]
  assert found[-1] == ('AxialResNet50', 224)
  assert networks.pairs((), (), 'mini')[-1] == ('AxialResNet50', 24)
  # The axial models' size, 224 px, is not among the requested sizes.
  assert len(networks.pairs((), (64,), 'paper')) == 8
  found = networks.pairs(['R50x1', 'BiT-R50x1'], [32, 48], 'mini')
  assert found == [('BiT-R50x1', 32), ('BiT-R50x1', 48)]


def test_miniatures_are_those_of_the_reproduction():
  vit = networks.build('ViT-L/16', 'mini')
  assert (vit.width, vit.depth, vit.patch_size) == (128, 4, (4, 4))
  assert vit.num_classes == 1000
  bit = networks.build('BiT-R152x4', 'mini')
  assert (bit.blocks, bit.width_factor) == ((1, 2, 9, 1), 0.5)


@pytest.mark.parametrize('scale', networks.SCALES)
def test_an_unknown_model_lists_those_there_are(scale):
  with pytest.raises(ValueError, match=r"'ViT-X/16'.*ViT-Ti/16.*BiT-R152x4"):
    networks.build('ViT-X/16', scale)
