--- Greedy search and sampling: each row chooses its next token independently.
local sample = require "redco.generation.sample"
local torch = require "redco.torch"

local function next_tokens(scores, o)
  if not o.do_sample then return scores:argmax(-1):full() end
  local draws = torch.rand({ scores:size(0), 1 }, { dtype = "float64", generator = o.rng })
  return sample(scores:full(), draws)
end

--- Writes tokens into ids [rows, max_length] from position `length` on until all rows have ended.
--- Returns the length of the longest row. `ended(ids, length)` returns which rows have ended.
return function(decoder, scores, process, ended, ids, length, o)
  local open = torch.ones({ ids:size(0) }, { dtype = "bool", device = ids.device })
  while true do
    local seen = ids:narrow(1, 0, length)
    local tokens = next_tokens(process(scores, seen), o)
    tokens = torch.where(open, tokens, o.pad_token_id)
    ids:select(1, length):copy_(tokens)
    length = length + 1
    if o.streamer then o.streamer(tokens, open) end
    open:logical_and_(ended(ids, length):logical_not())
    if length == o.max_length or not open:any():item() then return length end
    scores = decoder:step(tokens)
  end
end
