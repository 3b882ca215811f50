"""Tasks that ship, beside the embedded policy's arithmetic: each module has `task()`, and
`source()` if it makes its rows. `loading` finds them by name.
"""
