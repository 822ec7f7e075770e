-- conversations.lua FOLDER CASES OUT: makes examples of the conversations of a JSONL file,
-- {template, record, turns, variables}, with the tokenizer in the folder; writes
-- {input_ids, labels} or {error}, a line for each.
local native = require "redco.native"
local redco = require "redco"

local folder, cases_path, out_path = unpack(arg)
local tokenizer = redco.Tokenizer.from_pretrained(folder)
local out = assert(io.open(out_path, "wb"))
for i, case in redco.data.jsonl(cases_path):ipairs() do
  tokenizer.chat_template = case.template
  local ok, made = pcall(function()
    local example = redco.data.conversations({ case.record },
      { tokenizer = tokenizer, turns = case.turns, variables = case.variables })[1]
    return { input_ids = example.input_ids:tolist(), labels = example.labels:tolist() }
  end)
  out:write(native.json_encode("line " .. i, ok and made or { error = tostring(made) }), "\n")
end
out:close()
