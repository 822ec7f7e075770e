--- Greedy search and sampling: each row chooses its next token independently.
local torch = require "redco.torch"

local function next_tokens(scores, o)
  if not o.do_sample then return scores:argmax(-1) end
  return scores:softmax(-1):multinomial(1, { generator = o.rng }):squeeze(1)
end

--- Writes tokens into ids [rows, max_length] from position `length` on until all rows have ended.
--- Returns the length of the longest row. `ended(ids, length)` returns which rows have ended.
return function(decoder, scores, process, ended, ids, length, o)
  local open = torch.ones({ ids:size(0) }, { dtype = "bool" })
  while true do
    local seen = ids:narrow(1, 0, length)
    local tokens = next_tokens(process(scores, seen), o):full()
    tokens = torch.where(open, tokens, o.pad_token_id)
    ids:select(1, length):copy_(tokens)
    length = length + 1
    if o.streamer then o.streamer(tokens, open) end
    open:logical_and_(ended(ids, length):logical_not())
    if length == o.max_length or not open:any():item() then return length end
    scores = decoder:step(tokens)
  end
end
