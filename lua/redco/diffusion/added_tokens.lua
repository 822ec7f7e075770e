--- Tokens that textual inversion adds to a pipeline, each of one or more vectors. Their numbers
--- follow the vocabulary of the text encoder, and their vectors are a parameter beside the table of
--- embeddings, so that training them leaves the table as it is.
local fail = require "redco.fail"
local torch = require "redco.torch"

local added = {}

-- The name of the parameter that has the vectors of added tokens.
local function name_in(model) return model.family.prefix .. "embeddings.added_tokens.weight" end

--- Returns the text encoders of CLIP of a pipeline, in order, with the names of two parameters: of
--- the vectors of added tokens, and of the table. T5 sees an added token as text.
function added.places(where, pipeline)
  local found = {}
  for _, part in ipairs(pipeline.kind.texts or {}) do
    local model = pipeline[part.encoder]
    if model and not part.is_t5 then
      found[#found + 1] = { part = part, model = model, tokenizer = pipeline[part.tokenizer],
        name = name_in(model),
        table_name = model.family.prefix .. "embeddings.token_embedding.weight" }
    end
  end
  if #found == 0 then fail("%s: a %s has no text encoder of CLIP", where, pipeline.class_name) end
  return found
end

-- Returns the first added token in a text; if several begin at its place, the longest.
local function first_in(tokens, prompt)
  local first, at
  for _, entry in ipairs(tokens) do
    local place = prompt:find(entry.token, 1, true)
    if place and (not at or place < at or place == at and #entry.token > #first.token) then
      first, at = entry, place
    end
  end
  return first, at
end

-- The numbers of the tokens of a prompt, without those around it.
local function numbers(tokens, tokenizer, prompt, vocab_size)
  local ids = {}
  while prompt do
    local entry, at = first_in(tokens, prompt)
    local before = prompt:sub(1, at and at - 1)
    for _, id in ipairs(tokenizer:encode(before, { add_special_tokens = false })) do
      ids[#ids + 1] = id
    end
    for i = 0, entry and entry.n_vectors - 1 or -1 do
      ids[#ids + 1] = vocab_size + entry.first_row + i
    end
    prompt = entry and prompt:sub(at + #entry.token)
  end
  return ids
end

--- Returns the tokens of prompts as the tokenizer does, with all that are added: ids [B, length],
--- and the list of all of them for each prompt, which may be longer.
function added.tokenize(pipeline, part, prompts, length)
  local tokenizer, rows, all = pipeline[part.tokenizer], {}, {}
  local vocab_size = pipeline[part.encoder].config.vocab_size
  for i, prompt in ipairs(prompts) do
    local ids = numbers(pipeline.added_tokens, tokenizer, prompt, vocab_size)
    table.insert(ids, 1, tokenizer.bos_token_id)
    ids[#ids + 1] = tokenizer.eos_token_id
    all[i], rows[i] = ids, {}
    for j = 1, length do rows[i][j] = ids[j] or tokenizer.pad_token_id end
    if #ids > length then rows[i][length] = tokenizer.eos_token_id end
  end
  return torch.tensor(rows, { dtype = "int64" }), all
end

--- Raises an error if tokens of a part are added ones whose vectors the parameters lack.
function added.check(pipeline, part, params, ids)
  local tokens, model = pipeline.added_tokens, pipeline[part.encoder]
  if #tokens == 0 or part.is_t5 then return end
  if params[part.encoder][name_in(model)] then return end
  if ids:max():item() >= model.config.vocab_size then
    fail("pipeline.encode_text: the parameters of the %s have no vectors of the added token %s: "
      .. "use those that redco.diffusion.add_token or load_textual_inversion returned",
      part.encoder, tokens[1].token)
  end
end

return added
