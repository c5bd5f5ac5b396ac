"""Guards `models.parse`: a command line's text gives the expected model."""

import pytest

from vit_jax import models


def test_a_name_alone():
  expected = models.build('ViT-S/16', num_classes=7)
  assert models.parse('ViT-S/16', num_classes=7) == expected
  assert models.parse('ViT-S/16:', num_classes=7) == expected


def test_values_are_literals_or_text_and_may_contain_commas():
  model = models.parse(
    'ViT-S/16:patch_size=(1200, 4),gelu=exact,norm_epsilon=1e-3,scan=True',
    num_classes=7,
  )
  assert model == models.build(
    'ViT-S/16',
    num_classes=7,
    patch_size=(1200, 4),
    gelu='exact',
    norm_epsilon=1e-3,
    scan=True,
  )


def test_options_in_the_text_override_keyword_defaults():
  model = models.parse('ViT-S/16:depth=2', num_classes=7, depth=3, gelu='exact')
  assert (model.depth, model.gelu) == (2, 'exact')


@pytest.mark.parametrize(
  'spec, message',
  [
    ('ViT-S/16:remat', r"^ViT-S/16:remat: expected KEY=VALUE, got 'remat'"),
    ('ViT-S/16:num_classes=3', 'num_classes is no option here'),
    ('ViT-S/16:widht=3', 'has no option widht'),
    ('ViT-S', 'Unknown model'),
  ],
)
def test_refused(spec, message):
  with pytest.raises(ValueError, match=message):
    models.parse(spec, num_classes=7)
