std = "luajit"
max_line_length = 100
max_string_line_length = 200  -- the first line of a text is a whole call
-- Method receivers and callback parameters are part of a signature even where a body ignores them.
unused_args = false
exclude_files = { "build", "tests/lua/op_cases.lua" }
files["lua/redco/restricted.lua"] = { globals = { "string.dump", "string.gsub" } }
-- Sections that run one by one.
files["lua/redco/reference/examples"] = {
  read_globals = { "redco", "torch", "nn" }, ignore = { "1..", "211", "4.." }, max_line_length = 78,
}
