"""Counts a model's parameters, multiply-accumulates and activation memory.

All figures come from the abstract trace of the model itself, so they hold for
any model at any image size, and no formula must follow changes of the models.
Nothing is compiled or allocated.

    account(models.build('ViT-B/16', num_classes=1000), 224).macs
    python -m vit_jax.accounting ViT-B/16 ViT-L/16
"""

from vit_jax.accounting.accounts import (
  Account,
  Part,
  account,
  exaflops,
  forward_macs,
)

__all__ = ['Account', 'Part', 'account', 'exaflops', 'forward_macs']
