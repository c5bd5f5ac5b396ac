"""Guards mixup and CutMix against timm, on the same images and draws."""

import jax
import numpy as np
import pytest

from tests.losses.test_mix_by import (
  BOTH,
  KERNEL,
  batch_of,
  loss_and_metrics,
  prepared,
)
from tests.losses.test_mixing import CLASSES, B
from vit_jax.losses import mixing

timm_mixup = pytest.importorskip('timm.data.mixup')
timm_loss = pytest.importorskip('timm.loss')
torch = pytest.importorskip('torch')

pytestmark = pytest.mark.hf


def _theirs(batch, smoothing, monkeypatch):
  """Returns timm's blends and targets, for the draws of a batch of ours.

  timm's partner of row i is the row i from the end, so partners stand there.
  """
  both = [
    torch.from_numpy(np.concatenate([x, y[::-1]]))
    for x, y in (
      (batch['image'] / 127.5 - 1, batch['partner_image'] / 127.5 - 1),
      (batch['label'].astype(np.int64), batch['partner_label']),
    )
  ]
  both[0] = both[0].permute(0, 3, 1, 2).contiguous()  # [2 B, C, H, W]
  mix = timm_mixup.Mixup(
    **{'mixup_alpha': 0.8, 'cutmix_alpha': 1.0, 'mode': 'elem'},
    **{'label_smoothing': smoothing, 'num_classes': CLASSES},
  )
  share, cuts = batch['share'].astype(np.float64), batch['outside'] == 1
  # The rows behind ours are of no interest, and stay as they are.
  draws = np.append(share, np.ones(B)), np.append(cuts, np.zeros(B, bool))
  monkeypatch.setattr(mix, '_params_per_elem', lambda _: draws)
  boxes = iter(batch['box'][cuts & (share != 1)])
  monkeypatch.setattr(
    timm_mixup, 'rand_bbox', lambda *_, **__: next(boxes)[[0, 2, 1, 3]]
  )
  images, targets = mix(*both)
  assert next(boxes, None) is None
  return images[:B].permute(0, 2, 3, 1), targets[:B]


@pytest.mark.parametrize('by', ['batch', 'pair', 'element'])
@pytest.mark.parametrize('name', ['softmax', 'sigmoid', 'binary'])
def test_blends_and_losses_are_timms(by, name, monkeypatch):
  smoothing = 0.1 if name == 'softmax' else 0.0
  batch, kinds = batch_of(), set()
  for step in range(2):
    ours = prepared(batch, step, (1, 1, 1), mix_by=by, **BOTH)
    kinds |= set(ours['outside'] == 1)
    images, targets = _theirs(ours, smoothing, monkeypatch)
    blended = np.asarray(jax.jit(mixing.blended_images)(ours))
    np.testing.assert_allclose(blended, images, atol=1e-6)

    found, _ = loss_and_metrics(
      *(ours, name.replace('binary', 'sigmoid'), smoothing),
      binary=name == 'binary',
      reduce='sum' if name == 'softmax' else 'mean',
    )
    logits = images.reshape(B, -1) @ torch.from_numpy(KERNEL)
    if name == 'softmax':
      expected = timm_loss.SoftTargetCrossEntropy()(logits, targets)
    else:
      threshold = 0.0 if name == 'binary' else None
      bce = timm_loss.BinaryCrossEntropy(0.0, target_threshold=threshold)
      expected = bce(logits, targets.double())
    np.testing.assert_allclose(found, expected.item(), rtol=1e-6)
  assert kinds == {True, False}  # Mixup and CutMix.
