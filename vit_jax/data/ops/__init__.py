"""What is done to an image: decoding, geometry, and changes of colours.

`parse('inception_crop|flip', image_size=224, channels=3)` returns a function of
an encoded image and a random generator.
"""

from vit_jax.data.ops.decoding import MAX_PIXELS as MAX_PIXELS
from vit_jax.data.ops.decoding import CorruptImageError as CorruptImageError
from vit_jax.data.ops.decoding import decode as decode
from vit_jax.data.ops.preprocess import OPS as OPS
from vit_jax.data.ops.preprocess import Op as Op
from vit_jax.data.ops.preprocess import Preprocess as Preprocess
from vit_jax.data.ops.preprocess import parse as parse
