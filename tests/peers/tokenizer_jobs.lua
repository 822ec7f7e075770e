-- tokenizer_jobs.lua JOBS OUT: what tokenizers make of texts. A line of JOBS is {tokenizer = path}
-- for the lines that follow, or {text, text_pair, add_special_tokens, skip_special_tokens,
-- max_length, truncation_side}; OUT gets a line for each of those.
local native = require "redco.native"
local redco = require "redco"

local jobs_path, out_path = unpack(arg)
local jobs = redco.data.jsonl(jobs_path)
local out = assert(io.open(out_path, "wb"))
local tokenizer, problem

local function encoded(job)
  if problem then error(problem) end
  local options = {
    text_pair = job.text_pair, add_special_tokens = job.add_special_tokens,
    truncation = job.max_length ~= nil, max_length = job.max_length,
    truncation_side = job.truncation_side,
  }
  local ids, tokens = tokenizer:encode(job.text, options), tokenizer:tokenize(job.text, options)
  options.return_offsets_mapping, options.return_special_tokens_mask = true, true
  local batch = tokenizer(job.text, options)
  local decode = { skip_special_tokens = job.skip_special_tokens }
  local stream, parts = tokenizer:decode_stream(decode), {}
  for i, id in ipairs(ids) do parts[i] = stream:step(id) end
  parts[#parts + 1] = stream:finish()
  return {
    ids = ids, tokens = tokens, offsets = batch.offset_mapping[0]:tolist(),
    special = batch.special_tokens_mask[0]:tolist(), decoded = tokenizer:decode(ids, decode),
    stream = parts,
  }
end

for i = 1, #jobs do
  local job = jobs[i]
  if job.tokenizer then
    local ok, made = pcall(redco.Tokenizer.from_pretrained, job.tokenizer)
    tokenizer, problem = ok and made, not ok and made or nil
  else
    local ok, result = pcall(encoded, job)
    out:write(native.json_encode("line " .. i, ok and result or { error = result }), "\n")
  end
end
out:close()
