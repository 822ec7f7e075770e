-- chat_templates.lua FOLDER CASES OUT: renders the cases of a JSONL file, {template, messages,
-- variables}, with the tokenizer in the folder; writes {text} or {error}, a line for each.
local native = require "redco.native"
local redco = require "redco"

local folder, cases_path, out_path = unpack(arg)
local cases = redco.data.jsonl(cases_path)
local out = assert(io.open(out_path, "wb"))

for i = 1, #cases do
  local case = cases[i]
  local file = assert(io.open(folder .. "/tokenizer_config.json", "wb"))
  file:write(native.json_encode("tokenizer_config.json", { chat_template = case.template }))
  file:close()
  local ok, text = pcall(function()
    return redco.Tokenizer.from_pretrained(folder):apply_chat_template(case.messages,
      { tokenize = false, variables = case.variables })
  end)
  out:write(native.json_encode("line " .. i, { [ok and "text" or "error"] = text }), "\n")
end
out:close()
