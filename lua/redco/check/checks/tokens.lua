--- Checks of the tokens themselves.
local decoded = require "redco.check.decoded"
local new_tally = require "redco.check.tally"

local function context_of(config)
  return config.max_position_embeddings or config.n_positions or config.n_ctx
end

local function are_outside(s)
  local size, tally = s.model.config.vocab_size, new_tally()
  if not size then return nil end
  local function has_outside(list, allows_ignored)
    for _, id in ipairs(list) do
      if id >= size or id < 0 and not (allows_ignored and id == -100) then return true end
    end
    return false
  end
  local rows = s.rows or s.labelled
  for _, row in ipairs(rows) do
    local ids = row.whole and row.whole.ids or row.ids or {}
    local labels = s.kind ~= "other" and (row.labels or {}) or {}
    if has_outside(ids) or has_outside(labels, true) then tally.add(row.example) end
  end
  return tally.result(#rows)
end

local function are_too_long(s)
  local context, tally = context_of(s.model.config), new_tally()
  if not context then return nil end
  for _, row in ipairs(s.rows) do
    if #row.ids > context then tally.add(row.example) end
  end
  local count, of, where = tally.result(#s.rows)
  return count, of, count and ("the model has %d positions; %s"):format(context, where)
end

local function are_unknown(s)
  local tokenizer, count, of = s.tokenizer, 0, 0
  local unknown = tokenizer.unk_token_id
  if not unknown or unknown == tokenizer.eos_token_id or unknown == tokenizer.pad_token_id then
    return nil
  end
  for _, row in ipairs(s.rows) do
    of = of + #row.ids
    for _, id in ipairs(row.ids) do
      if id == unknown then count = count + 1 end
    end
  end
  return count > 0.05 * of and count or nil, of
end

local function is_larger(s)
  local size, own = s.model.config.vocab_size, #s.tokenizer
  if not size or own <= size then return nil end
  return own - size, own, ("the tokenizer has %d tokens, the model %d"):format(own, size)
end

local markers = { "<|[%w_]+|>", "</?s>", "<[be]os>", "<pad>", "%[/?INST%]" }

-- Returns a marker in the text that the tokenizer splits into several tokens, or nil.
local function literals_of(tokenizer, text, known)
  local found
  for _, pattern in ipairs(markers) do
    for marker in text:gmatch(pattern) do
      if known[marker] == nil then
        known[marker] = #tokenizer:encode(marker, { add_special_tokens = false }) > 1
      end
      if known[marker] then found = marker end
    end
  end
  return found
end

-- Templates that mark turns with [INST] use it as plain text.
local function known_of(s)
  local known, text = {}, s.tokenizer.chat_template or ""
  for _, marker in ipairs { "[INST]", "[/INST]" } do
    if text:find(marker, 1, true) then known[marker] = false end
  end
  return known
end

local function are_literal(s)
  local tally, known, shown = new_tally(), known_of(s), nil
  for _, row in ipairs(s.rows) do
    local marker = literals_of(s.tokenizer, decoded(s.tokenizer, row.ids), known)
    if marker then
      shown = shown or marker
      tally.add(row.example)
    end
  end
  local count, of, where = tally.result(#s.rows)
  return count, of, count and shown .. " becomes several tokens; " .. where
end

return {
  { name = "ids_outside", level = "error", title = "rows with tokens outside of the vocabulary",
    advice = "use the model's own tokenizer, or model.resize_token_embeddings(#tokenizer)",
    needs = { "labelled", "model" }, find = are_outside },
  { name = "too_long", level = "error", title = "rows longer than the model's context",
    advice = "cut or leave out long texts: max_length of redco.data.conversations or of the "
      .. "tokenizer's call with truncation = true",
    needs = { "rows", "model" }, find = are_too_long },
  { name = "unknown_tokens", level = "warning", title = "tokens that are unknown",
    advice = "is this the tokenizer of these texts' language?",
    needs = { "rows", "tokenizer" }, find = are_unknown },
  { name = "vocabulary", level = "warning", title = "tokens that the model lacks",
    advice = "model.resize_token_embeddings(#tokenizer) adds them",
    needs = { "tokenizer", "model" }, find = is_larger, is_consequence = true },
  { name = "literal_markers", level = "warning",
    title = "rows with markers of special tokens that the tokenizer does not know",
    advice = "use the tokenizer's own chat template, or tokenizer:add_special_tokens",
    needs = { "rows", "tokenizer" }, find = are_literal },
}
