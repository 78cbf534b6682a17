"""Proof that the simulator can fail: versions of the code with one rule taken away, each of which it must catch.

A mutant undoes one amendment to the paper, or one rule that everything rests on, together with what would mask it.
Nothing but the mutant run imports these modules; a mutant lives only inside its `with` block.
"""
