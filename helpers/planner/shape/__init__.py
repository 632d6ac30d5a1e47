"""What a model is, in the few numbers that all formulas follow from.

Read shape.py first: the widths, and a block as a list of linear layers. families.py makes a shape
from transformers' configuration, by a short formula for each family; counted.py from the class
itself where there is none, and products.py its matrix products; where its blocks differ, kinds.py
has their mean. parameters.py says which tensors a model holds, and what of each a rank has.
"""
