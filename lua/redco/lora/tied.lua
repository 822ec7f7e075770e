--- The output layer of a language model that shares the weight of its embedding: the tree has only
--- the embedding. Adapters may give the output layer its own weight: lm_head.weight, or, if the
--- embedding's name begins with language_model., language_model.lm_head.weight.
local saved = require "redco.lora.saved"

local tied = {}

local embeddings = {
  embed_in = true, embed_tokens = true, shared = true, word_embeddings = true, wte = true,
}

-- Returns the name of the embedding, preferably that of the decoder; nil if there is none.
local function embedding_of(params)
  local found
  for name in pairs(saved.parameters(params)) do
    local last = name:match "([^.]*)%.weight$"
    local is_better = not found or name:find "decoder" and not found:find "decoder"
    if last and embeddings[last] and is_better then found = name end
  end
  return found
end

--- Returns the name that a separate output layer has in a tree with this embedding.
function tied.head_of(embedding)
  local is_part = embedding and embedding:find "^language_model%.model%."
  return is_part and "language_model.lm_head" or "lm_head"
end

--- Gives the tree the output layer, with the tensor of the embedding, if it lacks one. Returns the
--- name of its weight if it did.
function tied.add_head(params)
  local name = embedding_of(params)
  local weight = tied.head_of(name) .. ".weight"
  if params[weight] ~= nil or not name or not params[name] then return nil end
  params[weight] = params[name]
  return weight
end

--- Returns whether the embedding of a tree without a head has an adapter.
function tied.has_adapter(params)
  local name = not saved.has_head(params) and embedding_of(params)
  return name and params[name:gsub("weight$", "lora_embedding_A")] ~= nil
end

--- Gives the tree the output layer if a folder has one, or has an embedding that is saved whole.
--- `stored` and `whole` are the folder's adapters and other tensors, by name. If the folder keeps
--- the two tied, it has one weight twice.
function tied.open(params, stored, whole, is_tied)
  local embedding = embedding_of(params)
  local head = tied.head_of(embedding)
  local weight = head .. ".weight"
  if params[weight] ~= nil then return end
  local own = embedding and whole[embedding]
  if is_tied and own then
    whole[weight] = nil
  elseif stored[head] or whole[weight] or own and not own.is_base then
    tied.add_head(params)
  end
end

--- Returns the embedding if it is among the saved modules of a language model and the tree has no
--- output layer, which is then the embedding, too; and the name of the weight of that layer.
function tied.saved_embedding(params, modules, task_type)
  local name = embedding_of(params)
  local weight = tied.head_of(name) .. ".weight"
  if params[weight] ~= nil or saved.has_head(params) then return nil end
  if task_type and not task_type:find "LM$" then return nil end
  for _, module in ipairs(name and modules or {}) do
    if saved.is_below(name, module) then return params[name], weight end
  end
end

return tied
