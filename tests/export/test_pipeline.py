"""Guards: Hugging Face's own pipeline gives our five best classes."""

import cv2
import jax
import numpy as np
import pytest

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from PIL import Image  # noqa: E402

import vit_jax  # noqa: E402
from tests.interop import tiny  # noqa: E402
from vit_jax import convert, interop  # noqa: E402

pytestmark = pytest.mark.hf


def test_the_pipeline_of_transformers_gives_our_top_five(tmp_path):
  model = tiny.vit(num_classes=8)
  # About a trained model's scale; larger weights magnify rounding errors.
  params = jax.tree.map(lambda x: 0.3 * x, tiny.params(model))
  params['head'] = jax.tree.map(lambda x: 6 * x, params['head'])
  names = [f'class {letter}' for letter in 'abcdefgh']
  interop.save_npz(
    tmp_path / 'a.npz', params, model, image_size=8, class_names=names
  )
  convert.convert(f'{tmp_path}/a.npz', f'{tmp_path}/hf')
  rng = np.random.default_rng(0)
  small = rng.integers(0, 256, (6, 8, 8, 3), np.uint8)
  # Smooth, so that an antialiased resize is about the same.
  smooth = [cv2.resize(image, (80, 64)) for image in small[:3]]
  images = [Image.fromarray(image) for image in [*small, *smooth]]
  classify = transformers.pipeline('image-classification', f'{tmp_path}/hf')
  found = classify(images, top_k=5)
  ours = vit_jax.load(f'{tmp_path}/a.npz').predict(images).best(5)
  for theirs, expected in zip(found, ours, strict=True):
    assert [x['label'] for x in theirs] == [x['class'] for x in expected]
  for theirs, expected in zip(found[:6], ours[:6], strict=True):
    np.testing.assert_allclose(
      [x['score'] for x in theirs],
      [x['probability'] for x in expected],
      atol=1e-4,
    )
  # The images are told apart.
  assert len({tuple(x['label'] for x in one) for one in found}) > 1
