"""`cfel bench peers`: the same rounds in cfel, in a bare PyTorch loop, in pfl and in Flower, taking turns.

`environment` makes the peers' own virtual environment, `workload` says what everybody computes, each
`…_worker` runs it in one system, and `race` lets the workers take turns. The workers of peers import nothing
of cfel but `workload` and its models, so that they run where cfel's own dependencies are missing.
"""
