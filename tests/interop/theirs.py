"""Models of transformers and timm with random weights, and their outputs."""

import copy
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
import transformers
from safetensors.torch import save_file

_BLOCK = re.compile(r'(?:\w+\.)*(?:layers?|blocks)\.(\d+)')
_NORM = re.compile(
  r'(?!head|attn_pool)(?:\w+\.)?(layernorm|norm|post_layernorm)'
)
_OUTPUTS = {
  'pooler_output': 'pre_logits',
  'image_embeds': 'logits',
  'logits': 'logits',
  'distillation_logits': 'distilled',
}
_SMALL = dict(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
_GIANT_DEPTH = dict(num_hidden_layers=40, image_size=70)  # In 5x5 patches.
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

  def __str__(self) -> str:
    return '-'.join([self.source, *map(str, self.options.values())])

  @property
  def is_timm(self) -> bool:
    return not hasattr(transformers, self.source)


def _timm(source, real=True, **options):
  return Case(source, {} if real else None, options)


CASES = (
  Case('ViTForImageClassification', {}),
  Case('ViTModel', _SMALL),  # DINO.
  Case(
    'DeiTForImageClassificationWithTeacher',
    dict(hidden_size=192, num_attention_heads=3, intermediate_size=768),
  ),
  Case('DeiTModel'),
  Case('ViTMAEForPreTraining', {}, tower='vit'),
  Case('ViTMSNModel', _SMALL),
  Case('ViTMSNForImageClassification'),
  Case('Dinov2Model', _SMALL | dict(image_size=518, patch_size=14)),
  Case('Dinov2Model', _GIANT_DEPTH, dict(use_swiglu_ffn=True)),
  Case('Dinov2ForImageClassification'),
  Case(
    'Dinov2WithRegistersModel', _SMALL | dict(image_size=518, patch_size=14)
  ),
  Case('Dinov2WithRegistersForImageClassification'),
  Case('DINOv3ViTModel', _SMALL, dict(num_register_tokens=4)),
  Case('DINOv3ViTModel', _SMALL, dict(num_register_tokens=4) | _GATED),
  Case('SiglipVisionModel', {}),
  Case('SiglipForImageClassification'),
  Case('SiglipModel', tower='vision_model'),
  Case('CLIPVisionModel', {}),
  Case('CLIPVisionModelWithProjection'),
  Case('CLIPModel', tower='vision_model'),
  _timm('vit_tiny_patch16_224'),
  _timm('vit_base_patch16_224_miil'),
  _timm('vit_base_patch16_224.mae', num_classes=0),
  _timm('vit_base_patch16_224', real=False, global_pool='avg'),
  _timm('vit_small_patch16_224.dino', num_classes=0),
  _timm('deit3_small_patch16_224'),
  _timm('deit_tiny_distilled_patch16_224'),
  _timm('vit_small_patch14_dinov2', num_classes=0),
  _timm('vit_small_patch14_reg4_dinov2', num_classes=0),
  Case('vit_giant_patch14_dinov2', dict(embed_dim=768, img_size=70)),
  _timm('vit_small_patch16_dinov3', num_classes=0),
  _timm('vit_small_patch16_dinov3', real=False, global_pool='token'),
  _timm('vit_small_patch16_dinov3', real=False, global_pool='avg'),
  _timm('vit_tiny_patch16_dinov3_qkvb'),
  _timm('vit_small_plus_patch16_dinov3'),
  _timm('vit_base_patch16_siglip_224', num_classes=0),
  _timm('vit_base_patch16_siglip_gap_224', real=False),
  _timm('vit_base_patch32_siglip_256'),  # With the GELU by tanh.
  _timm('vit_xsmall_patch16_clip_224'),
  _timm('vit_base_patch32_clip_quickgelu_224'),
  _timm('vit_little_patch16_reg4_gap_256'),
)


def build(case: Case, *, real: bool) -> torch.nn.Module:
  """Returns a model of a released or a tiny size with random weights."""
  if case.is_timm:
    sizes = dict(img_size=32, patch_size=8, embed_dim=128, depth=2, num_heads=2)
    sizes = {'num_classes': 5} | (case.real if real else sizes)
    return randomize(timm.create_model(case.source, **sizes | case.options))
  make = getattr(transformers, case.source)
  tiny = dict(hidden_size=64, num_attention_heads=2, intermediate_size=128)
  tiny |= dict(num_hidden_layers=2, image_size=32, patch_size=8)
  sizes = (case.real if real else tiny) | case.options
  other = {'num_labels': 5}
  if 'vision_config' in make.config_class.sub_configs:
    text = tiny | dict(vocab_size=50)
    sizes = dict(vision_config=sizes, text_config=text)
  return randomize(make(make.config_class(**sizes | other)))


def randomize(model: torch.nn.Module) -> torch.nn.Module:
  """Gives all parameters values of about a trained model's scale."""
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      noise = torch.randn(parameter.shape, generator=generator)
      if 'token' in name or 'pos' in name or 'probe' in name:
        parameter.copy_(noise * 0.5)
      elif parameter.ndim > 1:
        parameter.copy_(noise / parameter[0].numel() ** 0.5)
      elif 'bias' in name:
        parameter.copy_(noise * 0.2)
      else:  # Norms' and LayerScale's.
        parameter.add_(noise * 0.2)
  return model.requires_grad_(True).eval()


def save(case: Case, model: torch.nn.Module, folder, tensors=None) -> None:
  """Writes a folder as the Hub has it, with other `tensors` if given."""
  if not case.is_timm:
    model.save_pretrained(folder, state_dict=tensors)
    return
  timm.models.save_for_hf(model, folder, safe_serialization=True)
  if tensors:
    save_file(tensors, folder / 'model.safetensors')
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  # Most of the Hub's are older than these.
  path.write_text(json.dumps({**config, 'model_args': {}}))


def load(case: Case, folder) -> tuple[torch.nn.Module, set[str]]:
  """Returns the model of a folder, and which of its arrays are missing."""
  if case.is_timm:
    return timm.create_model(f'local-dir:{folder}', pretrained=True).eval(), ()
  config = json.loads((folder / 'config.json').read_text())
  make = getattr(transformers, config['architectures'][0])
  model, info = make.from_pretrained(folder, output_loading_info=True)
  assert not info['unexpected_keys']
  assert not info['mismatched_keys']
  return model.eval(), {*info['missing_keys']}


def resized(
  case: Case, model: torch.nn.Module, size: tuple[int, int]
) -> torch.nn.Module:
  """Returns a model for images of another size; transformers' take any."""
  if case.is_timm:
    model = copy.deepcopy(model)
    model.set_input_size(size)
  return model


def run(
  case: Case, model: torch.nn.Module, images: np.ndarray
) -> dict[str, torch.Tensor]:
  """Returns outputs by our names: of each block, the last norm and the heads.

  Args:
    case: the model's.
    model: from `build`, `resized` or `load`.
    images: [B, height, width, channels], normalised for the model.
  """
  tower = getattr(model, case.tower) if hasattr(model, case.tower) else model
  found, hooks = {}, []

  def keep(key):
    def hook(module, args, out):
      found[key] = out[0] if isinstance(out, tuple) else out

    return hook

  for name, module in tower.named_modules():
    if block := _BLOCK.fullmatch(name):
      hooks.append(module.register_forward_hook(keep(f'block_{block[1]}')))
    elif _NORM.fullmatch(name):
      hooks.append(module.register_forward_hook(keep('encoded')))
  images = torch.tensor(images.transpose(0, 3, 1, 2))
  if case.is_timm:
    features = tower.forward_features(images)
    if not hasattr(tower, 'head_dist'):
      found['pre_logits'] = tower.forward_head(features, pre_logits=True)
    if tower.num_classes:
      found['logits'] = tower.forward_head(features)
  else:
    options = {}
    takes = inspect.signature(tower.forward).parameters
    if 'interpolate_pos_encoding' in takes:
      options['interpolate_pos_encoding'] = True
    if 'noise' in takes:  # Nothing is masked, and the order stays.
      tower.config.mask_ratio = 0.0
      patches = images[0, 0].numel() // tower.config.patch_size**2
      options['noise'] = torch.arange(1.0 * patches).repeat(len(images), 1)
    out = tower(images, **options)
    for theirs, ours in _OUTPUTS.items():
      if getattr(out, theirs, None) is not None:
        found[ours] = getattr(out, theirs)
    if hasattr(model, 'visual_projection') and tower is not model:
      found['logits'] = model.visual_projection(found['pre_logits'])
  for hook in hooks:
    hook.remove()
  if found['encoded'].ndim == 2:  # CLIP has the norm of the class token alone.
    found['pre_logits'] = found.pop('encoded')
  return found
