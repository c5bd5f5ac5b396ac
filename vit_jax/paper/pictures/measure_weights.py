"""The process that measures weights, see `weight_numbers`.

`python -m vit_jax.paper.pictures.measure_weights` reads the request that
`weight_numbers.measure` sends, as JSON from its standard input, and prints the
numbers as its last line.
"""

import json
import sys

from vit_jax.paper.pictures import measuring

if __name__ == '__main__':
  print(json.dumps(measuring.answer(json.load(sys.stdin))))
