"""Writes Hugging Face folders, which `from_pretrained` of transformers loads.

Needs neither torch nor transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import safetensors.numpy
from etils import epath

from vit_jax.interop import (
  inference,
  json_files,
  parameter_shapes,
  torch_names,
  weight_files,
)
from vit_jax.interop.huggingface import WEIGHTS
from vit_jax.interop.huggingface_config import (
  CONFIG,
  DECODING,
  LOSS,
  PREPROCESSING,
  PREPROCESSOR,
)
from vit_jax.interop.weights import ImageSize, check_class_names, pair
from vit_jax.models import vit
from vit_jax.workdir import files


def save_huggingface(
  folder: epath.PathLike,
  params: Any,
  model: nn.Module,
  image_size: ImageSize,
  *,
  class_names: Sequence[str] | None = None,
  preprocessing: str | None = None,
  decoding: Mapping[str, Any] | None = None,
  loss: str = '',
) -> None:
  """Writes a folder that `transformers` loads as ViTForImageClassification.

  Args:
    folder: created if it does not exist; files of the same names are replaced.
    params: the model's parameters, a tree of arrays, blocks stacked or not.
    model: a `vit.ViT`, for the config.
    image_size: side or (height, width) that the position embeddings are for.
    class_names: one for each logit, for `id2label`.
    preprocessing: the operations of our evaluation, which
      `preprocessor_config.json` keeps for information only: transformers just
      resizes to the image size.
    decoding: see `Weights`; kept beside them.
    loss: see `Weights`; kept beside them.

  Raises:
    ValueError: `transformers` lacks the model, for the listed reasons; the
      number of names is not that of the classes; or the parameters do not fit
      the model or are not finite.
  """
  check_savable(model)
  image_size = pair(image_size)
  check_class_names(class_names, model.num_classes)
  flat = inference.flatten(params)
  parameter_shapes.check_params(flat, model, image_size)
  channels = inference.channels(flat)
  config = _config(model, image_size, channels, class_names)
  folder = weight_files.absolute(folder)
  folder.mkdir(parents=True, exist_ok=True)
  with files.atomic(folder / WEIGHTS) as temporary:
    # transformers requires this entry: arrays have PyTorch's names and layouts.
    temporary.write_bytes(
      safetensors.numpy.save(
        torch_names.to_torch(flat), metadata={'format': 'pt'}
      )
    )
  json_files.write(folder / CONFIG, config)
  own = {PREPROCESSING: preprocessing, DECODING: decoding, LOSS: loss}
  json_files.write(
    folder / PREPROCESSOR,
    _preprocessor(image_size, channels)
    | {key: value for key, value in own.items() if value},
  )


def check_savable(model: nn.Module) -> None:
  """Raises ValueError with all reasons why transformers lacks the model."""
  if not isinstance(model, vit.ViT):
    reasons = ['it is not a Vision Transformer']
  else:
    reasons = [
      reason
      for wrong, reason in (
        (
          model.resnet_blocks is not None,
          'it is a hybrid with a ResNet (resnet_blocks)',
        ),
        (
          model.representation_size is not None,
          'it has a hidden layer before the head (representation_size), while'
          ' ViTForImageClassification has one linear layer only',
        ),
        (model.pooling != 'token', f'pooling={model.pooling!r}'),
        (model.attention != 'full', f'attention={model.attention!r}'),
        (
          model.position_embedding != '1d',
          f'position_embedding={model.position_embedding!r}',
        ),
        (
          model.position_site != 'stem',
          f'position_site={model.position_site!r}',
        ),
        (
          model.norm_position != 'pre',
          f'norm_position={model.norm_position!r}',
        ),
        *(
          (getattr(model, name) != expected, f'{name}={not expected}')
          for name, expected in {
            'parallel': False,
            'qk_norm': False,
            'qkv_bias': True,
            'norm_bias': True,
          }.items()
        ),
      )
      if wrong
    ]
  if reasons:
    raise ValueError(
      "Hugging Face's ViT cannot express this model: "
      + '; '.join(reasons)
      + '. Save it as .npz instead.'
    )


def _config(
  model: vit.ViT,
  image_size: tuple[int, int],
  channels: int,
  class_names: Sequence[str] | None,
) -> dict[str, Any]:
  names = class_names or [f'LABEL_{i}' for i in range(model.num_classes)]
  label2id = {}
  for i, name in enumerate(names):
    label2id.setdefault(name, i)  # The first of classes with the same name.
  return {
    'architectures': ['ViTForImageClassification'],
    'model_type': 'vit',
    'hidden_size': model.width,
    'num_hidden_layers': model.depth,
    'num_attention_heads': model.heads,
    'intermediate_size': model.mlp_dim,
    'hidden_act': 'gelu' if model.gelu == 'exact' else 'gelu_pytorch_tanh',
    'layer_norm_eps': model.norm_epsilon,
    'hidden_dropout_prob': model.dropout_rate,
    'attention_probs_dropout_prob': 0.0,
    'qkv_bias': True,
    'image_size': _side(image_size),
    'patch_size': _side(model.patch_size),
    'num_channels': channels,
    'id2label': {str(i): name for i, name in enumerate(names)},
    'label2id': label2id,
    'torch_dtype': 'float32',
  }


def _preprocessor(image_size: tuple[int, int], channels: int) -> dict[str, Any]:
  return {
    'image_processor_type': 'ViTImageProcessor',
    'do_resize': True,
    'size': {'height': image_size[0], 'width': image_size[1]},
    'resample': 2,  # Bilinear.
    'do_rescale': True,
    'rescale_factor': 1 / 255,
    'do_normalize': True,
    'image_mean': [0.5] * channels,
    'image_std': [0.5] * channels,
  }


def _side(size: tuple[int, int]) -> int | list[int]:
  return size[0] if size[0] == size[1] else list(size)
