"""Models of transformers and timm with random weights, and their outputs."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
import transformers

_BLOCK = re.compile(r'(?:\w+\.)*(?:layers?|blocks)\.(\d+)')
_NORM = re.compile(r'(?!head|attn_pool)(\w+\.)?((post_)?layer)?norm')
# Sizes of transformers, and of timm.
_TINY = dict(num_hidden_layers=2, image_size=32, patch_size=8)
_TINY |= dict(hidden_size=64, num_attention_heads=2, intermediate_size=128)
_TINY_TIMM = dict(depth=2, embed_dim=128, num_heads=2, patch_size=8)
_DEIT = dict(hidden_size=192, num_attention_heads=3, intermediate_size=768)
_SMALL = dict(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
_DINOV2_SMALL = _SMALL | dict(image_size=518, patch_size=14)
# As deep as DINOv2's giant, half as wide, with 5x5 patches.
_GIANT = dict(num_hidden_layers=40, image_size=70, patch_size=14)
_GIANT_TIMM = dict(embed_dim=768, num_heads=12, img_size=70)
_GATED = dict(use_gated_mlp=True, hidden_act='silu')


class Case(NamedTuple):
  """A kind of model, which a row of docs/models.md names.

  Attributes:
    source: a class of transformers, or an architecture of timm.
    real: options of the smallest released model, beside the library's
      defaults; None if another case has its encoder.
    options: of any size.
    tower: what of the model is compared; '' for all.
  """

  source: str
  real: Mapping[str, Any] | None = None
  options: Mapping[str, Any] = {}
  tower: str = ''

  @property
  def is_timm(self) -> bool:
    return not hasattr(transformers, self.source)


CASES = (
  Case('ViTForImageClassification', {}),
  Case('ViTModel', _SMALL),  # DINO.
  Case('DeiTForImageClassificationWithTeacher', _DEIT),
  Case('DeiTModel'),
  Case('ViTMAEForPreTraining', {}, tower='vit'),
  Case('ViTMSNModel', _SMALL),
  Case('ViTMSNForImageClassification'),
  Case('IJepaModel', {}),
  Case('IJepaForImageClassification'),
  Case('Dinov2Model', _DINOV2_SMALL),
  Case('Dinov2Model', _GIANT, dict(use_swiglu_ffn=True)),
  Case('Dinov2ForImageClassification'),
  Case('Dinov2WithRegistersModel', _DINOV2_SMALL),
  Case('Dinov2WithRegistersForImageClassification'),
  Case('DINOv3ViTModel', _SMALL, dict(num_register_tokens=4)),
  Case('DINOv3ViTModel', _SMALL, dict(num_register_tokens=4) | _GATED),
  Case('SiglipVisionModel', {}),
  Case('SiglipForImageClassification'),
  Case('SiglipModel', tower='vision_model'),
  Case('CLIPVisionModel', {}),
  Case('CLIPVisionModelWithProjection'),
  Case('CLIPModel', tower='vision_model'),
  Case('vit_tiny_patch16_224', {}),
  Case('vit_base_patch16_224_miil', {}),
  Case('vit_base_patch16_224.mae', None, dict(num_classes=0)),
  Case('vit_base_patch16_224', None, dict(global_pool='avg')),
  Case('vit_small_patch16_224.dino', {}, dict(num_classes=0)),
  Case('deit3_small_patch16_224', {}),
  Case('deit_tiny_distilled_patch16_224', {}),
  Case('vit_small_patch14_dinov2', {}, dict(num_classes=0)),
  Case('vit_small_patch14_reg4_dinov2', {}, dict(num_classes=0)),
  Case('vit_giant_patch14_dinov2', _GIANT_TIMM),
  Case('vit_small_patch16_dinov3', {}, dict(num_classes=0)),
  Case('vit_small_patch16_dinov3', None, dict(global_pool='token')),
  Case('vit_small_patch16_dinov3', None, dict(global_pool='avg')),
  Case('vit_tiny_patch16_dinov3_qkvb', {}),
  Case('vit_small_plus_patch16_dinov3', {}),
  Case('vit_base_patch16_siglip_224', {}, dict(num_classes=0)),
  Case('vit_base_patch16_siglip_gap_224'),
  Case('vit_base_patch32_siglip_256'),  # With the GELU by tanh.
  Case('vit_xsmall_patch16_clip_224', {}),
  Case('vit_base_patch32_clip_quickgelu_224'),
  Case('vit_little_patch16_reg4_gap_256', {}),
)


def build(case: Case, *, real: bool) -> torch.nn.Module:
  """Returns a model of a released or a tiny size with random weights."""
  if case.is_timm:
    sizes = case.real if real else _TINY_TIMM | dict(img_size=32)
    options = dict(num_classes=5) | sizes | case.options
    return randomize(timm.create_model(case.source, **options))
  make = getattr(transformers, case.source)
  sizes = (case.real if real else _TINY) | case.options
  if 'vision_config' in make.config_class.sub_configs:
    sizes = dict(vision_config=sizes, text_config=_TINY)
  return randomize(make(make.config_class(**sizes, num_labels=5)))


def randomize(model: torch.nn.Module) -> torch.nn.Module:
  """Gives all parameters values of about a trained model's scale."""
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      if re.search('token|position|pos_embed|probe|latent', name):
        parameter.copy_(noise * 0.5)
      elif parameter.ndim > 1:
        parameter.copy_(noise / parameter[0].numel() ** 0.5)
      else:
        parameter.add_(noise * 0.2)
  return model.requires_grad_(True).eval()


def save(case: Case, model: torch.nn.Module, folder) -> None:
  """Writes a folder as the Hub has it."""
  if not case.is_timm:
    model.save_pretrained(folder)
    return
  timm.models.save_for_hf(model, folder, safe_serialization=True)
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  # Most of the Hub's are older than these.
  path.write_text(json.dumps({**config, 'model_args': {}}))


def load(case: Case, folder) -> tuple[torch.nn.Module, set[str]]:
  """Returns the model of a folder, and which of its arrays are missing."""
  if case.is_timm:
    name = f'local-dir:{folder}'
    return timm.create_model(name, pretrained=True).eval(), set()
  config = json.loads((folder / 'config.json').read_text())
  make = getattr(transformers, config['architectures'][0])
  model, info = make.from_pretrained(folder, output_loading_info=True)
  missing = info.pop('missing_keys')
  assert not any(info.values())
  return model.eval(), missing


def run(
  case: Case, model: torch.nn.Module, images: np.ndarray
) -> dict[str, torch.Tensor]:
  """Returns outputs by our names: of each block, the last norm and the heads.

  Args:
    case: the model's.
    model: from `build` or `load`.
    images: [B, height, width, channels], normalised for the model.
  """
  tower = getattr(model, case.tower) if hasattr(model, case.tower) else model
  names = {module: name for name, module in tower.named_modules()}
  images = torch.tensor(images.transpose(0, 3, 1, 2))
  found, options = {}, {}
  if not case.is_timm:
    options['interpolate_pos_encoding'] = True
  if case.tower == 'vit':  # MAE masks nothing here, and keeps the order.
    tower.config.mask_ratio = 0.0
    patches = images[0, 0].numel() // tower.config.patch_size**2
    options['noise'] = torch.arange(1.0 * patches)[None]

  def keep(module, args, out):
    name = names.get(module, '')
    if block := _BLOCK.fullmatch(name):
      found[f'block_{block[1]}'] = out[0] if isinstance(out, tuple) else out
    elif _NORM.fullmatch(name):
      found['encoded'] = out

  with torch.nn.modules.module.register_module_forward_hook(keep):
    call = tower.forward_features if case.is_timm else tower
    out = call(images, **options)
  if case.is_timm and not hasattr(tower, 'head_dist'):
    found['pre_logits'] = tower.forward_head(out, pre_logits=True)
  if case.is_timm and tower.num_classes:
    found['logits'] = tower.forward_head(out)
  pairs = dict(pooler_output='pre_logits', image_embeds='logits')
  for theirs, ours in (pairs | dict(logits='logits')).items():
    if getattr(out, theirs, None) is not None:
      found[ours] = getattr(out, theirs)
  if case.source == 'DeiTModel':  # Its pooler is left out.
    del found['pre_logits']
  if found['encoded'].ndim == 2:  # CLIP has the norm of the class token alone.
    found['pre_logits'] = found.pop('encoded')
  if tower is not model and hasattr(model, 'visual_projection'):
    found['logits'] = model.visual_projection(found['pre_logits'])
  return found
