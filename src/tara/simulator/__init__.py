"""A deterministic simulator that runs the real protocol code on a virtual network, clock, disk and store.

One seed decides everything: `plan.py` turns it into a plan (sizes, noise, faults), `world.py` runs the plan,
`client.py` plays the clients, `faults/` makes things go wrong, `stories/` those that take several steps, and `checks/`
judges: the invariants while it runs, the clients' history at the end. `campaign.py` runs many seeds; `transcript.py`
tells one as a story.
"""
