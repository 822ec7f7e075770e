-- tokenizer_settings.lua JOBS OUT: opens the tokenizers of folders, adds tokens, and saves them. A
-- line of JOBS is {folder, texts, added, special}.
local native = require "redco.native"
local redco = require "redco"

local jobs_path, out_path = unpack(arg)
local jobs = redco.data.jsonl(jobs_path)
local out = assert(io.open(out_path, "wb"))

local roles = { "bos", "eos", "unk", "sep", "pad", "cls", "mask" }

local function state_of(tokenizer, texts)
  local rows, ids = {}, {}
  for i, text in ipairs(texts) do
    local plain = tokenizer:encode(text, { add_special_tokens = false })
    rows[i] = { ids = tokenizer:encode(text), plain = plain, decoded = tokenizer:decode(plain),
      skipped = tokenizer:decode(plain, { skip_special_tokens = true }) }
  end
  for _, role in ipairs(roles) do ids[role] = tokenizer[role .. "_token_id"] end
  return { rows = rows, size = #tokenizer, roles = ids, more = tokenizer.additional_special_tokens }
end

for i = 1, #jobs do
  local job = jobs[i]
  local ok, result = pcall(function()
    local tokenizer = redco.Tokenizer.from_pretrained(job.folder)
    local opened = state_of(tokenizer, job.texts)
    local counts = { tokenizer:add_tokens(job.added), tokenizer:add_special_tokens(job.special) }
    local added = state_of(tokenizer, job.texts)
    tokenizer:save_pretrained(job.folder .. ".saved")
    return { states = { opened, added }, counts = counts }
  end)
  out:write(native.json_encode("line " .. i, ok and result or { error = tostring(result) }), "\n")
end
out:close()
