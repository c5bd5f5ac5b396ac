"""Guards: what users do with weights works with a folder of every family."""

import json

import cv2
import numpy as np
import pytest

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
pytest.importorskip('timm')

from tests.interop import theirs  # noqa: E402
from vit_jax import interop  # noqa: E402
from vit_jax.interop import families  # noqa: E402

pytestmark = [pytest.mark.hf, pytest.mark.usefixtures('programs')]
# One case of each layout, and the image processors of those of transformers.
CASES = {
  'vit': ('ViTForImageClassification', 'ViTImageProcessor'),
  'deit': ('DeiTForImageClassificationWithTeacher', 'DeiTImageProcessor'),
  'vit_mae': ('ViTMAEForPreTraining', 'ViTImageProcessor'),
  'vit_msn': ('ViTMSNModel', 'ViTImageProcessor'),
  'ijepa': ('IJepaModel', 'ViTImageProcessor'),
  'dinov2': ('Dinov2ForImageClassification', 'BitImageProcessor'),
  'dinov2_with_registers': ('Dinov2WithRegistersModel', 'BitImageProcessor'),
  'dinov3_vit': ('DINOv3ViTModel', 'DINOv3ViTImageProcessor'),
  'siglip_vision_model': ('SiglipModel', 'SiglipImageProcessor'),
  'clip_vision_model': ('CLIPVisionModelWithProjection', 'CLIPImageProcessor'),
  'timm': ('deit3_small_patch16_224', ''),
  'timm_dinov3': ('vit_small_plus_patch16_dinov3', ''),
}


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  folder, rng = tmp_path_factory.mktemp('photos'), np.random.default_rng(0)
  for i in range(24):
    path = folder / 'ab'[i % 2] / f'{i}.jpg'
    path.parent.mkdir(exist_ok=True)
    coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
    assert cv2.imwrite(str(path), cv2.resize(coarse, (80, 60)))
  return folder


@pytest.mark.parametrize('layout', families.OTHERS)
def test_commands(layout, tmp_path, photos, command):
  source, processor = CASES[layout]
  case = next(case for case in theirs.CASES if case.source == source)
  folder, run = tmp_path / 'folder', tmp_path / 'run'
  theirs.save(case, theirs.build(case, real=False), folder)
  if processor:
    make = getattr(transformers, f'{processor}Pil', None)
    make = make or getattr(transformers, processor)
    square = {'height': 32, 'width': 32}
    crop = {'crop_size': square} if make().do_center_crop else {}
    make(size=square, **crop).save_pretrained(folder)
  weights = interop.read(folder)
  assert weights.layout == layout

  def done(module, *words, code=0):
    result = command(f'vit_jax.{module}', *words)
    assert result.returncode == code, result.stderr[-3000:]
    return result

  given = f'--checkpoint={folder}'
  has_head = 'head/kernel' in weights.params
  result = done('predict', given, photos, code=0 if has_head else 1)
  assert has_head or 'has no head' in result.stderr
  dense = ('--layer=encoded/patches', f'--to={tmp_path}/f', '--format=npz')
  done('features', given, *dense, photos)
  shape = json.loads((tmp_path / 'f/_metadata.json').read_text())['shape']
  assert shape == [*weights.grid, weights.model.width]
  result = done('inspect', given, f'--to={tmp_path}/i', photos / 'a')
  assert (tmp_path / 'i/patch_pca.png').exists()
  assert (tmp_path / 'i/registers.png').exists() == (
    weights.model.registers > 0
  )
  config = f'configs/finetune.py:auto,folder:{photos},tune=head,epochs=1'
  done(
    *('main', f'--config={config}', f'--workdir={run}'),
    f'--config.init.checkpoint={folder}',
  )
  saved = interop.read(run)
  assert saved.image_size == weights.image_size
  assert saved.preprocessing == weights.preprocessing
  assert saved.model.image_mean == weights.model.image_mean
  done('predict', f'--checkpoint={run}', photos)
