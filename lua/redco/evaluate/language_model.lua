--- A model as an evaluation asks it: log-likelihoods of texts, and generated texts. Prompts that
--- are too long lose their beginnings, as in lm-evaluation-harness.
local check_decoder = require "redco.generation.check_decoder"
local check_params = require "redco.generation.check_params"
local fail = require "redco.fail"
local native = require "redco.native"
local padding_collate = require "redco.data.padding_collate"
local python_text = require "redco.evaluate.python_text"
local torch = require "redco.torch"
local warn = require "redco.warn"

local LanguageModel = {}
LanguageModel.__index = LanguageModel

local default_length = 2048  -- of models that name no longest one

-- Returns how many tokens the model reads.
local function context_of(config, tokenizer)
  local length = config.n_positions or config.max_position_embeddings or config.n_ctx
    or tokenizer.model_max_length
  return length and length < 1e9 and length or default_length
end

-- Sorts rows by length, the longest first: if memory runs out, it does so at once, and the rows of
-- a batch have similar lengths. `length(row)` is a row's length.
local function sorted(rows, length)
  local order = {}
  for i in ipairs(rows) do order[i] = i end
  table.sort(order, function(a, b)
    local la, lb = length(rows[a]), length(rows[b])
    if la ~= lb then return la > lb end
    return a < b
  end)
  local examples = {}
  for i, at in ipairs(order) do examples[i] = rows[at] end
  return examples, order
end

-- Calls see(row, prediction) for each row.
function LanguageModel:predict(rows, o)
  if #rows == 0 then return end
  local examples, order = sorted(rows, o.length)
  local predictor = native.Predictor { deployer = self.deployer, collate_fn = o.collate_fn,
    pred_fn = o.pred_fn, params_sharding_rules = self.params_sharding_rules }
  local predictions = predictor:predict { examples = examples, params = self.params,
    per_device_batch_size = self.batch_size, desc = o.desc }
  for i, prediction in ipairs(predictions) do o.see(rows[order[i]], prediction) end
end

-- Encodes a text with the tokenizer's special tokens, unless it begins with them.
function LanguageModel:encode(text)
  local prefix = self.prefix_text
  return self.tokenizer:encode(text, { add_special_tokens = text:sub(1, #prefix) ~= prefix })
end

-- Returns the entries from number `first` on.
local function from(list, first)
  local rest = {}
  for at = first, #list do rest[#rest + 1] = list[at] end
  return rest
end

local function last_of(list, n) return from(list, math.max(1, #list - n + 1)) end

-- Returns the tokens of a prompt and of its continuation. Encodes both together, because blanks at
-- the end of the prompt belong to the words that follow.
function LanguageModel:encode_pair(prompt, continuation, place)
  local before, after
  if prompt == "" then
    after = self.tokenizer:encode(continuation, { add_special_tokens = false })
    if after[1] == self.prefix then
      before, after = { after[1] }, from(after, 2)
    else
      before = { self.prefix }
    end
  else
    local text, blanks = python_text.split_end(prompt)
    if text ~= self.last_text then  -- the choices of a document have the same prompt
      self.last_text, self.last_tokens = text, self:encode(text)
    end
    before = self.last_tokens
    local all = self:encode(text .. blanks .. continuation)
    after = from(all, #before + 1)
  end
  if #before == 0 then fail("%s: the prompt has no tokens: %q", place, prompt) end
  if #after == 0 then
    fail("%s: %q adds no token to the prompt, so it has no probability", place, continuation)
  end
  if #after > self.max_length then
    fail("%s: a text of %d tokens is to be scored, and the model reads at most %d", place, #after,
      self.max_length)
  end
  return before, after
end

-- Returns the inputs of a row: all tokens but the last, without the first ones if there are too
-- many.
function LanguageModel:inputs_of(before, after)
  local all = from(before, 1)
  for _, token in ipairs(after) do all[#all + 1] = token end
  local kept = last_of(all, self.max_length + 1)
  if #kept < #all then self.n_truncated = self.n_truncated + 1 end
  kept[#kept] = nil
  return kept
end

function LanguageModel:tell_truncated(what)
  if self.n_truncated > 0 then
    warn("evaluate: %s: %d prompts are longer than the model reads, %d tokens, and lost their "
      .. "beginnings", what, self.n_truncated, self.max_length)
  end
  self.n_truncated = 0
end

local function padded(lists, length, filler)
  local batch = torch.full({ #lists, length }, filler, { dtype = "int64" })
  for i, list in ipairs(lists) do
    local row = torch.is_tensor(list) and list or torch.tensor(list, { dtype = "int64" })
    batch[i - 1]:narrow(0, 0, row:size(0)):copy_(row)
  end
  return batch
end

-- Returns input_ids [B, T]; places [B, K], where a token is predicted; is_scored [B, K]; and
-- candidates [B, K, C], the tokens at these places.
local function collate_candidates(rows)
  local length, n_places, n_candidates = 1, 1, 1
  for _, row in ipairs(rows) do
    length, n_places = math.max(length, row.inputs:size(0)), math.max(n_places, row.count)
    n_candidates = math.max(n_candidates, #row.candidates)
  end
  local inputs, places, scored, candidates = {}, {}, {}, {}
  for i, row in ipairs(rows) do
    inputs[i], places[i], scored[i] = row.inputs, {}, {}
    for at = 1, row.count do
      places[i][at], scored[i][at] = row.inputs:size(0) - row.count + at - 1, 1
    end
    for c = 1, n_candidates do table.insert(candidates, row.candidates[c] or row.candidates[1]) end
  end
  return { input_ids = padded(inputs, length, 0), places = padded(places, n_places, 0),
    is_scored = padded(scored, n_places, 0),
    candidates = padded(candidates, n_places, 0):reshape { #rows, n_candidates, n_places }
      :transpose(1, 2):contiguous() }
end

-- Returns one row for each distinct input; requests with equal inputs differ only in the last
-- token.
function LanguageModel:candidate_rows(requests)
  local rows, by_key = {}, {}
  for i, request in ipairs(requests) do
    local before, after = self:encode_pair(unpack(request, 1, 3))
    local inputs = self:inputs_of(before, after)
    local key = table.concat(inputs, " ") .. ":" .. #after
    local row = by_key[key]
    if not row then
      row = { inputs = torch.tensor(inputs, { dtype = "int32" }), count = #after,
        candidates = {}, numbers = {} }
      rows[#rows + 1], by_key[key] = row, row
    end
    table.insert(row.candidates, after)
    table.insert(row.numbers, i)
  end
  return rows
end

--- Returns for each request { prompt, continuation, place } { logprob, is_greedy }: the
--- log-likelihood of the continuation, and whether greedy search would write it.
function LanguageModel:loglikelihoods(requests, desc)
  local rows = self:candidate_rows(requests)
  self:tell_truncated(desc)
  local model, found = self.model, {}
  self:predict(rows, {
    desc = desc, length = function(row) return row.inputs:size(0) end,
    collate_fn = collate_candidates,
    pred_fn = function(_, params, batch)
      local hidden = model.hidden_states(params, { input_ids = batch.input_ids })
      local places = batch.places:unsqueeze(-1):expand { -1, -1, hidden:size(-1) }
      local logits = model.logits(params, hidden:gather(1, places))
      if logits.dtype ~= "float64" then logits = logits:float() end
      local is_scored = batch.is_scored:unsqueeze(-1)
      local each = logits:log_softmax(-1):gather(2, batch.candidates)
      local is_greedy = batch.candidates:eq(logits:argmax(-1, true)):logical_or(is_scored:eq(0))
      return { logprobs = (each * is_scored):sum { 1 }, is_greedy = is_greedy:all(1) }
    end,
    see = function(row, prediction)
      local logprobs, is_greedy = prediction.logprobs:tolist(), prediction.is_greedy:tolist()
      for c, number in ipairs(row.numbers) do
        found[number] = { logprob = logprobs[c], is_greedy = is_greedy[c] }
      end
    end,
  })
  return found
end

-- Returns windows { inputs, labels } of a text that predict each token once. The first one predicts
-- max_length tokens; each other one predicts `stride` tokens, with the tokens before as context.
function LanguageModel:windows_of(tokens, stride)
  local longest, windows, predicted = self.max_length, {}, 0
  while predicted < #tokens do
    local count = math.min(predicted == 0 and longest or stride, #tokens - predicted)
    local last = predicted + count
    local inputs, labels = {}, {}
    for at = math.max(0, last - longest), last - 1 do
      inputs[#inputs + 1] = at == 0 and self.prefix or tokens[at]
      labels[#labels + 1] = at >= predicted and tokens[at + 1] or -100
    end
    windows[#windows + 1] = { input_ids = inputs, labels = labels }
    predicted = last
  end
  return windows
end

--- Returns the log-likelihoods of whole texts. Without `stride` windows do not overlap.
function LanguageModel:rolling(texts, stride, desc)
  local rows, found = {}, {}
  stride = stride or self.max_length
  if stride > self.max_length then
    fail("evaluate: %s: stride is %d, and the model reads at most %d tokens", desc, stride,
      self.max_length)
  end
  for i, text in ipairs(texts) do
    found[i] = 0
    for _, window in ipairs(self:windows_of(self:encode(text), stride)) do
      window.number = i
      rows[#rows + 1] = window
    end
  end
  local model, collate = self.model, padding_collate { return_attention_mask = false }
  self:predict(rows, {
    desc = desc, length = function(row) return #row.input_ids end,
    collate_fn = function(batch)
      for i, row in ipairs(batch) do
        batch[i] = { input_ids = row.input_ids, labels = row.labels }
      end
      return collate(batch)
    end,
    pred_fn = function(_, params, batch)
      return (model.logprobs(params, batch):sum { 1 })
    end,
    see = function(row, sum) found[row.number] = found[row.number] + sum:item() end,
  })
  return found
end

-- Returns input_ids and attention_mask [B, T], padded on the left.
local function collate_prompts(rows)
  local length, ids, mask = 0, {}, {}
  for _, row in ipairs(rows) do length = math.max(length, #row.prompt) end
  for i, row in ipairs(rows) do
    ids[i], mask[i] = {}, {}
    local n_padding = length - #row.prompt
    for at = 1, length do
      ids[i][at] = row.prompt[at - n_padding] or 0
      mask[i][at] = at > n_padding and 1 or 0
    end
  end
  return { input_ids = torch.tensor(ids, { dtype = "int64" }),
    attention_mask = torch.tensor(mask, { dtype = "int64" }) }
end

-- Returns whether a stop string may begin in one of the prompts. Such a string would end the
-- search, although only generated text counts.
local function may_begin_in_prompt(requests, stops)
  for _, stop in ipairs(stops) do
    for n = 1, #stop - 1 do
      for _, request in ipairs(requests) do
        if request[1]:sub(-n) == stop:sub(1, n) then return true end
      end
    end
  end
  return false
end

local function before_stops(text, stops)
  for _, stop in ipairs(stops) do
    local at = text:find(stop, 1, true)
    if at then text = text:sub(1, at - 1) end
  end
  return text
end

-- Returns the generated tokens of a row up to the first that ends it.
local function generated_tokens(ids, start, is_end)
  local tokens = {}
  for at = start + 1, #ids do
    tokens[#tokens + 1] = ids[at]
    if is_end[ids[at]] then break end
  end
  return tokens
end

function LanguageModel:end_tokens()
  local config = self.model.generation_config or self.model.config
  local given, is_end, list = config.eos_token_id, {}, {}
  for _, token in ipairs(type(given) == "table" and given or { given }) do is_end[token] = true end
  if self.tokenizer.eos_token_id then is_end[self.tokenizer.eos_token_id] = true end
  for token in pairs(is_end) do list[#list + 1] = token end
  table.sort(list)
  return list, is_end
end

-- Returns the prompts as rows, with room for what follows them.
function LanguageModel:prompt_rows(requests, n_new, desc)
  local room, rows = self.max_length - n_new, {}
  if room < 1 then
    fail("evaluate: %s: max_gen_toks is %d, and the model reads at most %d tokens, prompt included",
      desc, n_new, self.max_length)
  end
  for i, request in ipairs(requests) do
    local tokens = self:encode(request[1])
    if #tokens == 0 then fail("%s: the prompt has no tokens", request[2]) end
    if #tokens > room then self.n_truncated = self.n_truncated + 1 end
    rows[i] = { prompt = last_of(tokens, room), number = i }
  end
  self:tell_truncated(desc)
  return rows
end

--- Returns the text that follows each prompt of the requests { prompt, place }, up to the first of
--- the texts o.until. `o` also has max_gen_toks and options of `model.generate`.
function LanguageModel:generate(requests, o, desc)
  local stops, options = {}, {}
  for name, value in pairs(o) do options[name] = value end
  for _, stop in ipairs(o["until"]) do stops[#stops + 1] = stop ~= "" and stop or nil end
  local n_new = o.max_gen_toks
  options["until"], options.max_gen_toks = nil, nil
  local rows = self:prompt_rows(requests, n_new, desc)
  local ends, is_end = self:end_tokens()
  options.eos_token_id = #ends > 0 and ends or nil
  options.max_new_tokens = n_new
  if #stops > 0 and not may_begin_in_prompt(requests, stops) then
    options.stop_strings, options.tokenizer = stops, self.tokenizer
  end
  local eos = self.tokenizer.eos_token
  if eos then stops[#stops + 1] = eos end
  local model, found = self.model, {}
  self:predict(rows, {
    desc = desc, length = function(row) return #row.prompt end, collate_fn = collate_prompts,
    pred_fn = function(rng, params, batch)
      options.rng = options.do_sample and rng or nil
      local ids = model.generate(params, batch, options)
      local start = torch.full({ ids:size(0) }, batch.input_ids:size(1), { dtype = "int64" })
      return { ids = ids, start = start }
    end,
    see = function(row, prediction)
      local tokens = generated_tokens(prediction.ids:tolist(), prediction.start:item(), is_end)
      local text = self.tokenizer:decode(tokens, { skip_special_tokens = true })
      found[row.number] = before_stops(text, stops)
    end,
  })
  return found
end

--- Returns the language model of o.model, o.params, o.tokenizer, o.deployer, o.batch_size and
--- o.max_length.
return function(o)
  local model, tokenizer = o.model, o.tokenizer
  check_decoder("evaluate", model)
  if o.params then check_params("evaluate: params", model, o.params) end
  local prefix = tokenizer.bos_token_id or tokenizer.eos_token_id
  if not prefix then
    fail "evaluate: tokenizer: it has neither bos_token nor eos_token, with which a text begins"
  end
  return setmetatable({
    model = model, params = o.params or model.params, tokenizer = tokenizer,
    deployer = o.deployer, params_sharding_rules = o.params_sharding_rules,
    batch_size = o.batch_size, max_length = o.max_length or context_of(model.config, tokenizer),
    prefix = prefix, prefix_text = tokenizer:decode { prefix }, n_truncated = 0,
  }, LanguageModel)
end
