"""Measures inference speed and the largest batch (Figure 12, Section D.5).

    python -m vit_jax.inference_speed --to=speed.json ViT-B/16 BiT-R50x1

    store.read('speed.json').speeds(size=224)  # {'ViT-B/16': 1234.5, ...}

The timed program is the forward pass alone, from uint8 images on the device to
logits. Parameters are float32.
"""
