"""Uses a trained model: classes, features and attention maps of images.

    import vit_jax
    model = vit_jax.load('runs/birds')
    model.predict(['robin.jpg', 'photos'])

`python -m vit_jax.predict` does the same from the command line, and `python -m
vit_jax.features` writes features (`extraction.py`) into files (`store.py`).
"""

from vit_jax.predict.predictions import Predictions
from vit_jax.predict.predictor import Predictor, load

__all__ = ['Predictions', 'Predictor', 'load']
