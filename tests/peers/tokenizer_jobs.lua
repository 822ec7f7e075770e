-- tokenizer_jobs.lua JOBS OUT: what tokenizers make of texts. A line of JOBS is {tokenizer = path}
-- for the lines that follow, or {text, text_pair, add_special_tokens, skip_special_tokens,
-- max_length, truncation, truncation_side, stride}; OUT gets a line for each of those.
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
    truncation = job.max_length ~= nil and (job.truncation or true), max_length = job.max_length,
    truncation_side = job.truncation_side,
  }
  local ids, tokens = tokenizer:encode(job.text, options), tokenizer:tokenize(job.text, options)
  options.return_offsets_mapping, options.return_special_tokens_mask = true, true
  options.return_token_type_ids = true
  if job.stride then
    options.return_overflowing_tokens, options.stride, options.padding = true, job.stride, true
    tokenizer.pad_token = "<pad>"
  end
  local batch = tokenizer(job.text, options)
  local function row(tensor, i)
    return tensor[i]:narrow(0, 0, batch.attention_mask[i]:sum():item()):tolist()
  end
  local overflow = {}
  for i = 1, batch.input_ids:size(0) - 1 do
    overflow[i] = { row(batch.input_ids, i), row(batch.offset_mapping, i),
      row(batch.token_type_ids, i) }
  end
  local decode = { skip_special_tokens = job.skip_special_tokens }
  local stream, parts = tokenizer:decode_stream(decode), {}
  for i, id in ipairs(ids) do parts[i] = stream:step(id) end
  parts[#parts + 1] = stream:finish()
  return {
    ids = ids, tokens = tokens, offsets = row(batch.offset_mapping, 0),
    special = row(batch.special_tokens_mask, 0), types = row(batch.token_type_ids, 0),
    decoded = tokenizer:decode(ids, decode), stream = parts, overflow = overflow,
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
