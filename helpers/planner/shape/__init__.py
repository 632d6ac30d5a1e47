"""What a model is, in the few numbers that all formulas follow from.

Read shape.py first: the widths, and a block as a list of linear layers. families.py makes a shape
from transformers' configuration, by a short formula for each family; counted.py from the class
itself where there is none, and products.py its matrix products; where its blocks differ, kinds.py
has their mean. parameters.py says which tensors a model holds, and what of each a rank has.

The names below are the room's face.
"""

from helpers.engine import lazy

HOMES = {
    "Linear": "shape",
    "Shape": "shape",
    "model_shape": "families",
}
__all__ = list(HOMES)
__getattr__, __dir__ = lazy(__name__, HOMES, __all__)
