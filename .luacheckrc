std = "luajit"
max_line_length = 100
-- Method receivers and callback parameters are part of a signature even where a body ignores them.
unused_args = false
exclude_files = { "build", "tests/lua/errors" }
