"""Maps names and layouts of arrays in Hugging Face's ViTs to ours, and back."""

import re
from collections.abc import Collection, Mapping

import numpy as np
from etils import epath

from vit_jax.interop import released

# Hugging Face's module -> ours, and its arrays' layout (see `_reordered`).
_MODULES = {
  'embeddings.patch_embeddings.projection': ('embedding', 'conv'),
  'layernorm': ('Transformer/encoder_norm', 'norm'),
  'pooler.dense': ('pre_logits', 'dense'),
  'classifier': ('head', 'dense'),
}
_ATTENTION = 'MultiHeadDotProductAttention_0'
_BLOCK_MODULES = {
  'layernorm_before': ('LayerNorm_0', 'norm'),
  'attention.attention.query': (f'{_ATTENTION}/query', 'heads'),
  'attention.attention.key': (f'{_ATTENTION}/key', 'heads'),
  'attention.attention.value': (f'{_ATTENTION}/value', 'heads'),
  'attention.output.dense': (f'{_ATTENTION}/out', 'out'),
  'layernorm_after': ('LayerNorm_1', 'norm'),
  'intermediate.dense': ('MlpBlock_0/Dense_0', 'dense'),
  'output.dense': ('MlpBlock_0/Dense_1', 'dense'),
}
_ARRAYS = {
  'embeddings.cls_token': released.CLS,
  'embeddings.position_embeddings': released.POSITION,
}
# Names of other layouts, which are not read, -> whose layout it is.
_LAYOUTS = {
  r'(visual\.)?(trunk\.)?blocks\.\d+\.attn\.': "timm's",
  r'encoder\.layers\.encoder_layer_\d+\.': "torchvision's",
  r'(visual\.)?transformer\.resblocks\.\d+\.': "OpenAI's CLIP's",
  r'vision_model\.': "CLIP's or SigLIP's, as transformers has it",
}
# Names that newer versions of transformers use in memory -> names in files. The
# first are those that DDP, torch.compile and Lightning put before all others.
_RENAMED = (
  (r'^((module|_orig_mod|model)\.)+', ''),
  (r'^(vit|deit)\.', ''),
  (r'^layers\.', 'encoder.layer.'),
  (r'\.attention\.q_proj\.', '.attention.attention.query.'),
  (r'\.attention\.k_proj\.', '.attention.attention.key.'),
  (r'\.attention\.v_proj\.', '.attention.attention.value.'),
  (r'\.attention\.o_proj\.', '.attention.output.dense.'),
  (r'\.mlp\.fc1\.', '.intermediate.dense.'),
  (r'\.mlp\.fc2\.', '.output.dense.'),
)


def name_in_file(name: str) -> str:
  """Returns an array's name in files of any version, without model prefix."""
  for pattern, replacement in _RENAMED:
    name = re.sub(pattern, replacement, name)
  return name


def check_layout(
  names: Collection[str], path: epath.PathLike, *, expected: bool
) -> None:
  """Checks whose layout of PyTorch's ViTs the arrays of a file have.

  Args:
    names: the names in the file.
    path: the file or folder, for the message.
    expected: whether Hugging Face's layout is expected. Otherwise PyTorch's
      layouts are refused.

  Raises:
    ValueError: another layout was found. The message has the file's names.
  """
  plain = [name_in_file(name) for name in names]
  found = [
    layout
    for pattern, layout in _LAYOUTS.items()
    if any(re.match(pattern, name) for name in plain)
  ]
  is_huggingface = any(_ours(name)[0] != name for name in plain)
  if found or is_huggingface != expected:
    found += ["Hugging Face's" if is_huggingface else 'not known']
    raise ValueError(
      f'{path} has arrays called {", ".join(sorted(names)[:4])}, ...: their'
      f' layout is {found[0]}, which is not read here. Expected a folder that'
      ' save_pretrained of transformers wrote for a ViT or DeiT, or a .npz file'
      ' with the released names.'
    )


def _module(name: str) -> tuple[str, str] | None:
  """Returns our name of a Hugging Face module, and its layout, or None."""
  if name in _MODULES:
    return _MODULES[name]
  match = re.fullmatch(r'encoder\.layer\.(\d+)\.(.+)', name)
  if not match or match[2] not in _BLOCK_MODULES:
    return None
  ours, layout = _BLOCK_MODULES[match[2]]
  return f'Transformer/encoderblock_{match[1]}/{ours}', layout


def _ours(name: str) -> tuple[str, str]:
  """Returns our name of an array (else its own name), and its layout or ''."""
  module, _, leaf = name.rpartition('.')
  found = _module(module)
  if name in _ARRAYS:
    return _ARRAYS[name], ''
  if found is None or leaf not in ('weight', 'bias'):
    return name, ''
  ours, layout = found
  if leaf == 'weight':
    leaf = 'scale' if layout == 'norm' else 'kernel'
  return f'{ours}/{leaf}', layout


def _reordered(
  array: np.ndarray, leaf: str, layout: str, heads: int
) -> np.ndarray:
  """Changes Hugging Face's layout to ours; keeps arrays of unexpected shape.

  `fitting` then raises an error that names those arrays.
  """
  if leaf == 'kernel' and layout:
    # [D, C, P, P] -> [P, P, C, D], or [out, in] -> [in, out]
    is_conv = layout == 'conv' and array.ndim == 4
    array = array.transpose(2, 3, 1, 0) if is_conv else array.T
  if not array.ndim:
    return array
  if layout == 'heads' and array.shape[-1] % heads == 0:
    return array.reshape(*array.shape[:-1], heads, -1)  # [D, H, K] or [H, K]
  if (layout, leaf) == ('out', 'kernel') and len(array) % heads == 0:
    return array.reshape(heads, -1, array.shape[-1])  # [H, K, D]
  return array


def from_torch(
  tensors: Mapping[str, np.ndarray], *, heads: int, qkv_bias: bool
) -> dict[str, np.ndarray]:
  """Renames and reorders arrays to ours.

  Args:
    tensors: name in the file (see `name_in_file`) -> array.
    heads: H, which the arrays do not show.
    qkv_bias: whether queries, keys and values have biases; if not, ours are 0.

  Returns:
    Our flat name -> array. Unknown names stay, for the caller to refuse.

  Raises:
    ValueError: two names mean the same array.
  """
  layouts = {}

  def rename(name):
    ours, layout = _ours(name)
    layouts[ours] = layout
    return ours

  params = {
    name: _reordered(array, name.rpartition('/')[2], layouts[name], heads)
    for name, array in released.renamed(tensors, rename).items()
  }
  if not qkv_bias:
    for name in [k for k in params if re.search('(query|key|value)/k', k)]:
      bias = params[name].shape[1:]
      name = name.removesuffix('kernel') + 'bias'
      params.setdefault(name, np.zeros(bias, np.float32))
  return params


def to_torch(flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Inverts `from_torch`.

  Args:
    flat: our flat name -> array, blocks not stacked.

  Returns:
    Name -> array; every version of transformers reads these names.
  """
  arrays = {ours: theirs for theirs, ours in _ARRAYS.items()}
  modules = {ours: (theirs, kind) for theirs, (ours, kind) in _MODULES.items()}
  block_modules = {
    ours: (theirs, kind) for theirs, (ours, kind) in _BLOCK_MODULES.items()
  }
  tensors = {}
  for name, array in flat.items():
    if name in arrays:
      tensors[f'vit.{arrays[name]}'] = np.ascontiguousarray(array)
      continue
    module, _, leaf = name.rpartition('/')
    if match := re.fullmatch(r'Transformer/encoderblock_(\d+)/(.+)', module):
      theirs, layout = block_modules[match[2]]
      theirs = f'encoder.layer.{match[1]}.{theirs}'
    else:
      theirs, layout = modules[module]
    if layout == 'heads':
      array = array.reshape(*array.shape[:-2], -1)  # [D, H * K] or [H * K]
    elif (layout, leaf) == ('out', 'kernel'):
      array = array.reshape(-1, array.shape[-1])  # [H * K, D]
    if leaf == 'kernel':
      # [P, P, C, D] -> [D, C, P, P], or [in, out] -> [out, in]
      array = array.transpose(3, 2, 0, 1) if layout == 'conv' else array.T
    leaf = 'bias' if leaf == 'bias' else 'weight'
    theirs = theirs if theirs == 'classifier' else f'vit.{theirs}'
    tensors[f'{theirs}.{leaf}'] = np.ascontiguousarray(array)
  return tensors
