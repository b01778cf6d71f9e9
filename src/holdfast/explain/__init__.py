"""What messages mean: every message of the package, found in its source, with a code and an explanation.

`holdfast explain` shows one; docs/MESSAGES.md is made of all of them. On a terminal, the code of an error stands behind
its message.
"""
