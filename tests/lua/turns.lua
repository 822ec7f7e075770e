-- Conversations of several turns in a GenerationBatch.
local redco = require "redco"

local turns = {}

--- Returns a model that counts the tokens that it reads in `counts.n`.
function turns.counted(model, counts)
  local own = {}
  for name, value in pairs(model) do own[name] = value end
  counts.n = 0
  function own.hidden_states(params, inputs, options)
    counts.n = counts.n + inputs.input_ids:numel()
    return model.hidden_states(params, inputs, options)
  end
  return setmetatable(own, getmetatable(model))
end

--- Continues each prompt over three turns, with the options of a batch. Returns all tokens, as
--- text, and how many the model has read. A turn may also begin before the end of the one before.
function turns.run(model, params, prompts, options)
  local counts = {}
  options.max_length = 32
  local batch = redco.models.new_batch(turns.counted(model, counts), params, options)
  local rows, texts = {}, {}
  for turn = 1, 3 do
    for i, prompt in ipairs(prompts) do
      local own = {}
      local function append(list, n)
        for at = 1, n or #list do own[#own + 1] = list[at] % model.config.vocab_size end
      end
      local before = rows[i]
      append(before and before.prompt or prompt, not before and math.min(#prompt, 8))
      if before then
        append(before.tokens, #before.tokens - i * turn % 2)
        append(prompts[1 + (i + turn) % #prompts], 1 + i % 2)
      end
      rows[i] = batch:add(own, { max_new_tokens = 2 + (i + turn) * 5 % 4, seed = i,
        temperature = 0.9, eos_token_id = {}, first = i % 2 == 0 })
    end
    batch:run()
    for i, row in ipairs(rows) do texts[#texts + 1] = i .. ": " .. table.concat(row.tokens, " ") end
  end
  return table.concat(texts, "\n"), counts.n
end

return turns
