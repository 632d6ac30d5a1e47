"""GPUs, instances and prices as dated facts, and the clusters that formulas are about.

gpus.csv, instances.csv, networks.csv and prices.csv are the facts, meshes.csv what few GPUs have of
wires without a switch, generations.csv what programs reach of GPUs, protocols.csv how NCCL sends; a
row more is all that a new GPU needs.
catalog.py reads and checks them, lookup.py finds them by name and never guesses. devices.py is a
cluster as the formulas see it, links.py what lies between its ranks. cluster.py turns an instance,
or the numbers of a machine of one's own, into one: what real work reaches of products, memory and
links. rank_groups.py says which ranks of a layout talk to each other.

Sources stand in each row: data sheets of NVIDIA, the EC2 user guide, the AWS price list,
github.com/stas00/ml-engineering for measured products and links, github.com/calculon-ai/calculon
for the shares of nominal rates.
"""
