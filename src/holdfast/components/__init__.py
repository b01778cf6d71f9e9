"""Components: plain typed functions that make an app, found by name, and turned into flags.

The builtin ones are in `dist` and `utils`; `finder` finds all of them, `arguments` calls one with what was typed.
"""
