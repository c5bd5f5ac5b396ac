"""Guards: the paper's runs on one's own photographs have their proportions."""

import pytest

from vit_jax import models
from vit_jax.configs import midi
from vit_jax.paper import cost
from vit_jax.paper.items.tables import table6

OF = 'of=folder:/photos'


@pytest.mark.parametrize('name', ['ViT-B/32', 'ViT-H/14', 'R50+ViT-L/16'])
def test_token_grids_have_the_proportions_of_the_papers(name):
  model = midi.get_config(f'{name},jft300m,{OF}').model.to_dict()
  model['dtype'] = 'float32'
  grid = models.build(model.pop('name'), num_classes=1, **model).token_grid
  papers = models.build(name, num_classes=1).token_grid((224, 224))
  # Of 224 px, 7 patches a side become 4, and 14 or 16 become 8.
  expected = {7: 4, 14: 8, 16: 8}[papers[0]]
  assert grid((64, 64)) == (expected, expected)


def test_compute_has_about_the_proportions_of_table_6():
  ratios = {
    row: cost.teraflops_in_miniature(start, 'midi')
    / table6.PAPER[row, table6.EXAFLOPS].value
    for row, start in table6.STARTS.items()
  }
  assert max(ratios.values()) / min(ratios.values()) < 2.5


def test_photographs_are_needed_and_augmented():
  with pytest.raises(ValueError, match='of=SPEC is needed'):
    midi.get_config('ViT-B/32,jft300m')
  config = midi.get_config(f'ViT-B/32,imagenet21k,{OF}')
  assert config.data.dataset == 'folder:/photos'
  assert config.data.train_split == 'shuffled(train)[:18%]'
  assert config.data.preprocess.startswith('inception_crop')
  assert config.evals.validation.split == 'shuffled(train)[90%:]'
  # The head's bias follows from the classes, which only the data know.
  assert config.model.head_bias is None


def test_tasks_without_photographs_are_those_of_the_miniature():
  config = midi.get_config(f'ViT-B/32,pets,{OF}')
  assert config.data.dataset == 'shapes:shape+colour'
  assert (config.image_size, config.total_steps) == ((64, 64), 320)
  own = midi.get_config(f'ViT-B/32,imagenet,{OF}')
  assert own.data.train_split == 'shuffled(train)[90%:]'
