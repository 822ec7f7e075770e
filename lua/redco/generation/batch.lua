--- Continuous batching: rows that begin when they come, are decoded together, and end one by one.
local arguments = require "redco.arguments"
local check_choice = require "redco.check_choice"
local check_decoder = require "redco.generation.check_decoder"
local check_integer = require "redco.check_integer"
local check_params = require "redco.generation.check_params"
local fail = require "redco.fail"
local generation_options = require "redco.generation.options"
local native = require "redco.native"
local new_processor = require "redco.generation.processors"
local new_slots = require "redco.generation.slots"
local registry = require "redco.registry"
local sample = require "redco.generation.sample"
local torch = require "redco.torch"

local methods = registry.define("GenerationBatch", [[
GenerationBatch {max_rows: integer, max_length}
Rows of text that a model continues together, each with its own prompt and options.]], {})

local meta = { __name = "GenerationBatch" }

function meta.__index(_, key)
  return methods[key] or fail("a GenerationBatch has no '%s'", key)
end

function meta.__tostring(self)
  return ("GenerationBatch(%d open, %d waiting)"):format(#self.open, #self.queue)
end

-- Options of model.generate that a row may have: those of sampling, and those that change which
-- token is most probable. Options of of_own_row depend on the row's prompt, or are tables and
-- functions.
local of_sampling = { "temperature", "top_k", "top_p", "min_p", "typical_p" }
local of_any_row = { "repetition_penalty" }
local of_own_row = { "frequency_penalty", "presence_penalty", "sequence_bias", "logits_processor" }

local row_options = arguments("GenerationBatch:add",
  { temperature = 1, top_k = 0, n_logprobs = 0, logprobs = "raw", first = false },
  { "max_new_tokens", "top_p", "min_p", "typical_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "sequence_bias", "logits_processor", "eos_token_id", "seed", "on_token" })

local greedy = {}  -- what model.generate reads of a row without sampling

-- Returns how the tokens of rows with these options are chosen.
local function new_kind(o, given)
  return { process = new_processor(o), is_sampled = given.do_sample,
    needs_ids = given.repetition_penalty ~= nil }
end

-- Returns the kind of a row with options of its own.
local function own_kind(row, given)
  local o = generation_options.read({ config = greedy }, given)
  o.prompt_length = #row.prompt
  for token in pairs(row.is_end) do table.insert(o.eos, token) end
  table.sort(o.eos)
  local kind = new_kind(o, given)
  kind.needs_ids = true
  return kind
end

-- Returns the kind of a row's options. Rows of equal options share it, and are computed together.
local function kind_of(self, row, o)
  local given, is_own = { do_sample = o.temperature > 0 }, false
  local function copy(names)
    for _, name in ipairs(names) do given[name] = o[name] end
  end
  if given.do_sample then copy(of_sampling) end
  copy(of_any_row)
  local names = {}
  for name, value in pairs(given) do names[#names + 1] = name .. "=" .. tostring(value) end
  copy(of_own_row)
  for _, name in ipairs(of_own_row) do is_own = is_own or o[name] ~= nil end
  if is_own then return own_kind(row, given) end
  table.sort(names)
  local key = table.concat(names, " ")
  local kind = self.kinds[key]
  if not kind then
    kind = new_kind(generation_options.read({ config = greedy }, given), given)
    self.kinds[key] = kind
  end
  return kind
end

local function prompt_of(self, prompt)
  local where = "GenerationBatch:add"
  if torch.is_tensor(prompt) then prompt = prompt:tolist() end
  if type(prompt) ~= "table" or #prompt == 0 then
    fail("%s: prompt: expected a list or a tensor [n] of tokens, got %s", where,
      type(prompt) == "table" and "none" or native.describe(prompt))
  end
  local tokens, vocab_size = {}, self.model.config.vocab_size or math.huge
  for i, token in ipairs(prompt) do
    if type(token) ~= "number" or token % 1 ~= 0 or token < 0 or token >= vocab_size then
      fail("%s: prompt: token %d is %s, expected an integer from 0 to %.0f", where, i,
        tostring(token), vocab_size - 1)
    end
    tokens[i] = token
  end
  return tokens
end

methods.add = registry.define("GenerationBatch:add", [[
add(self, prompt: list or Tensor, {max_new_tokens = nil, temperature: number = 1, top_k = 0, top_p: number = nil,
  min_p = nil, typical_p: number = nil, repetition_penalty: number = nil, frequency_penalty: number = nil,
  presence_penalty: number = nil, sequence_bias: list = nil, logits_processor = nil, eos_token_id = nil,
  seed = nil, logprobs = "raw", n_logprobs: integer = 0, first = false, on_token: function = nil}) -> table
Adds a row that continues the tokens `prompt` [n], and returns it. It begins with the next `step`,
or when another row ends if max_rows are open. Rows begin in the order in which they were added.
  max_new_tokens: by default as many as max_length leaves
  temperature: 0 takes the most probable token. top_k (0: all tokens), top_p, min_p, typical_p, the
    penalties, sequence_bias and logits_processor are as in `Model.generate`, but never come from the
    model's files
  eos_token_id: a token or a list of tokens that end the row; by default those of the model's files
  seed: what is drawn depends on it, the prompt, the options and the parameters, but not on other
    rows, max_rows or the layout. (Products of other sizes are rounded differently: a draw may differ
    if it is within rounding of the border between two tokens.) By default the number of rows added
    before
  logprobs: "raw" are log-probabilities of the model, "sampled" those of what was drawn from, with
    temperature, top_k and the others
  n_logprobs: how many of the most probable tokens on_token gets
  first: whether the row begins before those that wait
  on_token: on_token(row, token, logprob, top) is called with each token, at the end of the step. `top`
    is a list of {token, logprob}
The row has prompt and tokens, which are lists of tokens, logprobs, a list of numbers, and at its end
finish_reason: "stop" after a token of eos_token_id, which is the last of `tokens`, "length" or
"cancelled".]], function(self, prompt, given)
  local where, o = "GenerationBatch:add", row_options(given)
  local row = { prompt = prompt_of(self, prompt), tokens = {}, logprobs = {} }
  local room = self.max_length - #row.prompt
  if room < 1 then
    fail("%s: the prompt has %d tokens, and max_length is %d: shorten it, or raise max_length",
      where, #row.prompt, self.max_length)
  end
  row.max_new_tokens = o.max_new_tokens or room
  check_integer(where, "max_new_tokens", row.max_new_tokens, 1)
  if row.max_new_tokens > room then
    fail("%s: max_new_tokens is %d, but after a prompt of %d tokens max_length, %d, leaves %d",
      where, row.max_new_tokens, #row.prompt, self.max_length, room)
  end
  if type(o.temperature) ~= "number" or not (o.temperature >= 0 and o.temperature < math.huge) then
    fail("%s: temperature: expected a number from 0 on, got %s", where, tostring(o.temperature))
  end
  check_choice(where, "logprobs", o.logprobs, "raw", "sampled")
  check_integer(where, "n_logprobs", o.n_logprobs, 0)
  row.logprobs_of, row.n_logprobs, row.on_token = o.logprobs, o.n_logprobs, o.on_token
  row.is_end = self.is_end
  if o.eos_token_id then
    row.is_end = {}
    for _, token in ipairs(type(o.eos_token_id) == "table" and o.eos_token_id or { o.eos_token_id })
    do
      row.is_end[token] = true
    end
  end
  row.kind = kind_of(self, row, o)
  if row.kind.is_sampled then
    row.draws = torch.rand({ row.max_new_tokens }, { dtype = "float64",
      generator = torch.Generator(o.seed or self.n_added) }):tolist()
  end
  self.n_added = self.n_added + 1
  table.insert(self.queue, o.first and 1 or #self.queue + 1, row)
  return row
end)

-- Gives waiting rows slots. Returns the rows that have one now.
local function admitted(self)
  local slots, n_parts = self.slots, self.slots.n_parts
  local wanted = math.min(self.max_rows, #self.open + #self.queue)
  local each = math.max(math.ceil(wanted / n_parts), slots:most_in_a_part())
  if #self.open == 0 then
    if #self.queue > 0 then slots:resize(each) end
  elseif each * n_parts > slots.size then
    slots:resize(math.min(math.max(each, 2 * slots.size / n_parts),
      math.ceil(self.max_rows / n_parts)))
  elseif #self.queue == 0 and 2 * each * n_parts <= slots.size then
    slots:resize(each)
  end
  local new, free = {}, slots:free_slots(math.min(#self.queue, self.max_rows - #self.open))
  for i = 1, #free do
    new[i] = table.remove(self.queue, 1)
    slots:take(free, new[i])
  end
  return new
end

-- Returns the tokens of rows [n, length], padded on the left with the first token of each row.
local function ids_of(rows)
  local lists, length = {}, 0
  for _, row in ipairs(rows) do length = math.max(length, #row.prompt + #row.tokens) end
  for i, row in ipairs(rows) do
    local list, first = {}, #row.prompt + #row.tokens - length
    for at = 1, length do
      local place = at + first
      list[at] = place > #row.prompt and row.tokens[place - #row.prompt] or row.prompt[place]
        or row.prompt[1]
    end
    lists[i] = list
  end
  return torch.tensor(lists, { dtype = "int64" })
end

-- Chooses the next tokens [n] of rows of one kind, by scores [n, V]. The second result returns the
-- log-probabilities [n, V] of a name.
local function chosen(rows, kind, scores)
  local processed = kind.process(scores, kind.needs_ids and ids_of(rows):to(scores.device) or nil)
  local tokens
  if kind.is_sampled then
    local draws = {}
    for i, row in ipairs(rows) do draws[i] = { row.draws[#row.tokens + 1] } end
    tokens = sample(processed, torch.tensor(draws, { dtype = "float64" }))
  else
    tokens = processed:argmax(-1)
  end
  local function logprobs_of(name)
    return (name == "raw" and scores or processed):log_softmax(-1)
  end
  return tokens, logprobs_of
end

-- Adds a token to each of these rows, by scores [n, V]. Appends the calls of on_token to `events`.
local function extend(rows, kind, scores, events)
  local tokens, logprobs_of = chosen(rows, kind, scores)
  local lists, all = {}, {}
  for _, row in ipairs(rows) do
    local name = row.logprobs_of
    if not lists[name] then
      all[name] = logprobs_of(name)
      lists[name] = all[name]:gather(1, tokens:unsqueeze(1)):squeeze(1):tolist()
    end
  end
  tokens = tokens:tolist()
  for i, row in ipairs(rows) do
    local token, logprob = tokens[i], lists[row.logprobs_of][i]
    row.tokens[#row.tokens + 1], row.logprobs[#row.logprobs + 1] = token, logprob
    if row.is_end[token] then
      row.finish_reason = "stop"
    elseif #row.tokens == row.max_new_tokens then
      row.finish_reason = "length"
    end
    if row.on_token then
      local top
      if row.n_logprobs > 0 then
        local own = all[row.logprobs_of][i - 1]
        local values, places = own:topk(math.min(row.n_logprobs, own:size(0)))
        values, places, top = values:tolist(), places:tolist(), {}
        for k, value in ipairs(values) do top[k] = { places[k], value } end
      end
      events[#events + 1] = { row, token, logprob, top }
    end
  end
end

-- Returns lists of the rows of one kind, with the places of their scores.
local function grouped(rows, places)
  local of_kind, groups = {}, {}
  for i, row in ipairs(rows) do
    local group = of_kind[row.kind]
    if not group then
      group = { kind = row.kind, rows = {}, places = {} }
      of_kind[row.kind], groups[#groups + 1] = group, group
    end
    group.rows[#group.rows + 1], group.places[#group.places + 1] = row, places[i]
  end
  return groups
end

-- Returns the scores of all open rows, of which `new` begin, and their places there.
local function scores_of(self)
  local slots, scores, places = self.slots, {}, {}
  if #self.open > 0 then scores[1] = slots:decode() end
  for i, row in ipairs(self.open) do places[i] = row.slot end
  local n_slots = scores[1] and scores[1]:size(0) or 0
  local new = admitted(self)
  if #new > 0 then
    local of_new, rows = slots:fill(new)
    scores[#scores + 1] = of_new
    for i, row in ipairs(rows) do
      self.open[#self.open + 1], places[#places + 1] = row, n_slots + i - 1
    end
  end
  return #scores > 1 and torch.cat(scores) or scores[1], places
end

local function step(self)
  native.check_stop()
  local scores, places = scores_of(self)
  local events = {}
  for _, group in ipairs(grouped(self.open, places)) do
    extend(group.rows, group.kind,
      scores:index_select(0, torch.tensor(group.places,
        { dtype = "int64", device = scores.device })), events)
  end
  local ended, open = {}, {}
  for _, row in ipairs(self.open) do
    local list = row.finish_reason and ended or open
    list[#list + 1] = row
  end
  self.slots:free(ended)
  self.open = open
  for _, event in ipairs(events) do
    local row = event[1]
    if row.finish_reason ~= "cancelled" then row.on_token(unpack(event, 1, 4)) end
  end
  return ended
end

methods.step = registry.define("GenerationBatch:step", [[
step(self) -> list
Reads the prompts of rows that begin, and appends a token to each open row. Returns the rows that
ended with it. On several processes all must call it.]], function(self)
  return torch.no_grad(step, self)
end)

methods.cancel = registry.define("GenerationBatch:cancel", [[
cancel(self, row: table)
Ends a row, whether it is open or waits, with the finish_reason "cancelled". A row that has ended
stays as it is. A function on_token may call it.]], function(self, row)
  if row.finish_reason then return end
  row.finish_reason = "cancelled"
  if row.slot then self.slots:free { row } end
  for _, list in ipairs { self.open, self.queue } do
    for i, other in ipairs(list) do
      if other == row then
        table.remove(list, i)
        return
      end
    end
  end
end)

methods.forget = registry.define("GenerationBatch:forget", [[
forget(self)
Forgets the rows that kept_rows keeps. Call it when the parameters have changed.]], function(self)
  self.slots.kept:clear()
end)

methods.is_idle = registry.define("GenerationBatch:is_idle", [[
is_idle(self) -> boolean
Returns whether no row is open and none waits.]], function(self)
  return #self.open == 0 and #self.queue == 0
end)

methods.run = registry.define("GenerationBatch:run", [[
run(self) -> self
Calls `step` until no row is open and none waits.]], function(self)
  while not self:is_idle() do self:step() end
  return self
end)

local options = arguments("models.new_batch",
  { max_rows = 8, kept_rows = 0, cache_implementation = "dynamic" }, { "max_length", "deployer" })

return registry.define("redco.models.new_batch", [[
new_batch(model, params: table, {max_rows: integer = 8, max_length: integer = nil, kept_rows = 0,
  deployer = nil, cache_implementation = "dynamic"}) -> GenerationBatch
Returns an empty batch for continuous batching with a decoder, a model that continues texts: rows
begin and end on their own, and a row that ends makes room for the next.
  params: the parameters; those of a Trainer may be sharded
  max_rows: how many rows are decoded together at most. Further ones wait
  max_length: the most tokens of a row, with its prompt; by default the model's number of positions
  kept_rows: the number of ended rows whose keys and values are kept. A row whose prompt begins
    with the tokens of one, like the next turn of a conversation, reads only the rest, if that is
    at most half of it. When the parameters change, call `forget`
  deployer: splits the rows over the processes that do not share a copy of the model. All processes
    add the same rows, and all get the tokens. Without it each process decodes all rows
  cache_implementation: as in `Model.generate`. A new CUDA graph is captured when the number of rows
    changes, or the cache grows]],
function(model, params, given)
  local where, o = "models.new_batch", options(given)
  check_decoder(where, model)
  check_params(where .. ": params", model, params)
  check_integer(where, "max_rows", o.max_rows, 1)
  check_integer(where, "kept_rows", o.kept_rows, 0)
  check_choice(where, "cache_implementation", o.cache_implementation, "dynamic", "static")
  local most = generation_options.n_positions(model)
  local max_length = o.max_length or most
    or fail("%s: max_length is missing, and the model has no greatest number of positions", where)
  check_integer(where, "max_length", max_length, 2, most)
  local is_end = {}
  for _, token in ipairs(generation_options.read(model).eos) do is_end[token] = true end
  return setmetatable({
    model = model, max_rows = o.max_rows, max_length = max_length, is_end = is_end,
    slots = new_slots(model, params, max_length, most, o.kept_rows, o.deployer,
      o.cache_implementation == "static"),
    open = {}, queue = {}, kinds = {}, n_added = 0,
  }, meta)
end)
