"""The forward pass against an independent one: Hugging Face's ViT."""

import numpy as np
import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
safetensors = pytest.importorskip('safetensors.numpy')

from vit_jax import models  # noqa: E402

pytestmark = pytest.mark.hf


def _converted(state, heads):
  """Hugging Face's arrays, by their names in the file, as our parameters."""

  def dense(name):
    return {'kernel': state[f'{name}.weight'].T, 'bias': state[f'{name}.bias']}

  def norm(name):
    return {'scale': state[f'{name}.weight'], 'bias': state[f'{name}.bias']}

  def projection(name):  # [D, D] -> [D, H, K]
    kernel, bias = dense(name).values()
    return {
      'kernel': kernel.reshape(len(kernel), heads, -1),
      'bias': bias.reshape(heads, -1),
    }

  encoder = {
    'posembed_input': {
      'pos_embedding': state['vit.embeddings.position_embeddings']
    },
    'encoder_norm': norm('vit.layernorm'),
  }
  depth = sum(name.endswith('layernorm_before.bias') for name in state)
  for i in range(depth):
    layer = f'vit.encoder.layer.{i}'
    out = dense(f'{layer}.attention.output.dense')
    out['kernel'] = out['kernel'].reshape(heads, -1, len(out['bias']))
    encoder[f'encoderblock_{i}'] = {
      'LayerNorm_0': norm(f'{layer}.layernorm_before'),
      'MultiHeadDotProductAttention_0': {
        'out': out,
        **{
          name: projection(f'{layer}.attention.attention.{name}')
          for name in ('query', 'key', 'value')
        },
      },
      'LayerNorm_1': norm(f'{layer}.layernorm_after'),
      'MlpBlock_0': {
        'Dense_0': dense(f'{layer}.intermediate.dense'),
        'Dense_1': dense(f'{layer}.output.dense'),
      },
    }
  patches = 'vit.embeddings.patch_embeddings.projection'
  return {
    'cls': state['vit.embeddings.cls_token'],
    'embedding': {  # [D, C, P, P] -> [P, P, C, D]
      'kernel': state[f'{patches}.weight'].transpose(2, 3, 1, 0),
      'bias': state[f'{patches}.bias'],
    },
    'Transformer': encoder,
    'head': dense('classifier'),
  }


@pytest.mark.parametrize(
  'width, depth, heads, mlp_dim, patch, size',
  [
    (32, 2, 2, 64, 8, (16, 16)),
    (48, 3, 6, 40, 4, (12, 12)),
    (32, 2, 4, 64, 8, (16, 40)),
  ],
)
def test_logits_equal(width, depth, heads, mlp_dim, patch, size, tmp_path):
  reference = transformers.ViTForImageClassification(
    transformers.ViTConfig(
      hidden_size=width,
      num_hidden_layers=depth,
      num_attention_heads=heads,
      intermediate_size=mlp_dim,
      image_size=size,
      patch_size=patch,
      num_labels=7,
      hidden_act='gelu_pytorch_tanh',
      layer_norm_eps=1e-6,
    )
  ).eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for parameter in reference.parameters():
      # Far from zero everywhere: biases, class token and head too.
      parameter.normal_(std=0.3, generator=generator)
  # Names in files, unlike those in memory, are the same in all versions.
  reference.save_pretrained(tmp_path)
  state = safetensors.load_file(tmp_path / 'model.safetensors')
  model = models.build(
    'ViT-B/16',
    num_classes=7,
    width=width,
    depth=depth,
    heads=heads,
    mlp_dim=mlp_dim,
    patch_size=patch,
  )
  images = np.random.default_rng(0).uniform(-1, 1, (3, *size, 3))
  images = images.astype(np.float32)
  logits, _ = model.apply({'params': _converted(state, heads)}, images)
  with torch.no_grad():
    expected = reference(torch.tensor(images.transpose(0, 3, 1, 2))).logits
  assert np.std(expected.numpy()) > 0.5
  np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
