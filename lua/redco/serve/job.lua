--- A request that is being answered: its rows of the batch, and what the client gets of them.
local answers = require "redco.serve.answers"
local calls = require "redco.serve.calls"
local format_processor = require "redco.serve.formats"
local messages_of = require "redco.serve.messages"
local new_choice = require "redco.serve.choice"
local parameters_of = require "redco.serve.parameters"
local refusals = require "redco.serve.refuse"
local without_position = require "redco.without_position"

local refuse = refusals.refuse

local Job = {}
Job.__index = Job

local default_max_tokens = 16  -- of completions, as in the OpenAI API; a chat has the whole room

-- Formats messages with the chat template. Returns tokens or a text.
local function formatted(tokenizer, messages, variables, is_text)
  local ok, formed = refusals.try(tokenizer.apply_chat_template, tokenizer, messages,
    { add_generation_prompt = true, variables = variables, tokenize = not is_text })
  if ok then return formed end
  refuse(400, { param = "messages", code = "invalid_value" },
    "the model's chat template does not take these messages: %s", without_position(formed))
end

-- Returns the tokens that begin the answer to a chat, and how it writes tool calls, if it may.
local function prompt_of_chat(given, tokenizer)
  if not tokenizer.chat_template then
    refuse(400, { param = "messages" }, "this model has no chat template; /v1/completions "
      .. "continues a text")
  end
  local messages, variables = messages_of(given.messages), given.chat_template_kwargs or {}
  local call_format
  if given.tools and #given.tools > 0 and given.tool_choice ~= "none" then
    calls.check(given.tools)
    local without = formatted(tokenizer, messages, variables, true)
    variables.tools = given.tools
    call_format = calls.format(tokenizer, variables)
    if formatted(tokenizer, messages, variables, true) == without or not call_format then
      refuse(400, { param = "tools", code = "unsupported_parameter" },
        "the model's chat template takes no tools, or it does not write calls as JSON objects")
    end
  end
  return formatted(tokenizer, messages, variables), call_format
end

-- Returns the lists of tokens that the request asks to continue, and the format of tool calls.
local function prompts_of(endpoint, given, tokenizer)
  if endpoint == "chat" then
    local prompt, call_format = prompt_of_chat(given, tokenizer)
    return { prompt }, call_format
  end
  local prompt = given.prompt
  if type(prompt) == "string" then return { tokenizer:encode(prompt) } end
  if type(prompt[1]) == "number" then return { prompt } end
  local prompts = {}
  for i, each in ipairs(prompt) do
    prompts[i] = type(each) == "string" and tokenizer:encode(each) or each
  end
  return prompts
end

local function check_prompt(prompt, param, server)
  if #prompt == 0 then
    refuse(400, { param = param, code = "invalid_value" }, "the prompt is empty")
  end
  for _, token in ipairs(prompt) do
    if token < 0 or token >= server.vocab_size then
      refuse(400, { param = param, code = "invalid_value" },
        "the prompt has the token %d, and the vocabulary has %d", token, server.vocab_size)
    end
  end
  if #prompt >= server.max_length then
    refuse(400, { param = param, code = "context_length_exceeded" },
      "the prompt has %d tokens; prompt and answer together may have %d", #prompt,
      server.max_length)
  end
end

local function max_tokens_of(endpoint, given, n_prompt, server)
  local asked = given.max_completion_tokens or given.max_tokens
  local room = server.max_length - n_prompt
  if not asked then return endpoint == "chat" and room or math.min(room, default_max_tokens) end
  if asked > room then
    refuse(400, { param = given.max_completion_tokens and "max_completion_tokens" or "max_tokens",
      code = "context_length_exceeded" },
      "the prompt has %d tokens and the answer may get %d; together they may have %d", n_prompt,
      asked, server.max_length)
  end
  return asked
end

-- Returns the number of most likely tokens that the answer shows, or nil.
local function n_top_of(endpoint, given)
  if endpoint == "completions" then return given.logprobs end
  if given.top_logprobs and not given.logprobs then
    refuse(400, { param = "top_logprobs" }, "top_logprobs needs logprobs = true")
  end
  return given.logprobs and (given.top_logprobs or 0) or nil
end

-- Adds the sampling options of the model's files, as `redco-lua chat` does. If neither the request
-- nor the files ask for sampling, the likeliest tokens are taken.
local function sampling_of(model, o)
  local files = model.generation_config or {}
  if not o.temperature then
    local samples = o.top_p or o.top_k or o.min_p or files.do_sample
    o.temperature = samples and (files.temperature or 1) or 0
  end
  for _, name in ipairs { "top_p", "top_k", "min_p", "typical_p", "repetition_penalty" } do
    if o[name] == nil then o[name] = files[name] end
  end
  return o
end

-- Returns logit_bias as the option sequence_bias, or nil.
local function biases_of(given, server)
  local biases = {}
  for token, bias in pairs(given.logit_bias or {}) do
    token = tonumber(token)
    if token >= server.vocab_size then
      refuse(400, { param = "logit_bias", code = "invalid_value" },
        "logit_bias: the token %.0f does not exist; the vocabulary has %d", token,
        server.vocab_size)
    end
    biases[#biases + 1] = { { token }, bias }
  end
  return #biases > 0 and biases or nil
end

-- Returns the processor of the form that the answer must have, and the tokens that end it, or nil.
local function format_of(endpoint, given, server, call_format)
  if endpoint ~= "chat" then return end
  local processor = format_processor(given, server.tokenizer, call_format)
  if not processor or next(server.batch.is_end) then return processor end
  local last = server.tokenizer.eos_token_id
  if last then return processor, last end
  refuse(400, { param = "response_format", code = "unsupported_parameter" },
    "response_format: this model has no token that ends a text")
end

-- The seed of an answer. The answers of a request have different seeds, which also differ from
-- those of requests with the next seeds. A generator reads 32 bits of a seed.
local function seed_of(seed, index) return (seed + index * 2654435761) % 2 ^ 32 end

--- Reads a request. `server` has model, tokenizer, name, max_length, vocab_size, texts,
--- `check_room` and `new_seed`. Raises a refusal. `seed` takes the place of a new one.
local function new_job(server, request, endpoint, body, seed)
  local given = parameters_of(endpoint, body)
  if given.model and given.model ~= server.name then
    refuse(404, { param = "model", code = "model_not_found" },
      "there is no model %s here; this server has %s", given.model, server.name)
  end
  local required = endpoint == "chat" and "messages" or "prompt"
  if not given[required] then
    refuse(400, { param = required, code = "missing_required_parameter" }, "%s is missing",
      required)
  end
  local n_top = n_top_of(endpoint, given)
  local prompts, call_format = prompts_of(endpoint, given, server.tokenizer)
  server:check_room(#prompts * (given.n or 1))
  local stops = type(given.stop) == "string" and { given.stop } or given.stop or {}
  local has_usage = given.stream_options and given.stream_options.include_usage or false
  local self = setmetatable({
    request = request, is_stream = given.stream, has_usage = has_usage, choices = {}, n_prompt = 0,
    answers = answers.new(endpoint, {
      model = server.name, texts = server.texts, n_top = n_top, has_usage = has_usage,
    }),
  }, Job)
  seed = given.seed or seed or server:new_seed()
  self.seed = seed
  local processor, last = format_of(endpoint, given, server, call_format)
  local biases = biases_of(given, server)
  for _, prompt in ipairs(prompts) do
    check_prompt(prompt, required, server)
    self.n_prompt = self.n_prompt + #prompt
    local max_new_tokens = max_tokens_of(endpoint, given, #prompt, server)
    for _ = 1, given.n or 1 do
      local index = #self.choices
      local choice = new_choice(server.tokenizer, index, stops, call_format)
      choice.prompt, choice.text, choice.shown_tokens, choice.new = prompt, {}, {}, {}
      choice.options = sampling_of(server.model, {
        temperature = given.temperature, top_p = given.top_p, top_k = given.top_k,
        min_p = given.min_p, repetition_penalty = given.repetition_penalty,
        frequency_penalty = given.frequency_penalty, presence_penalty = given.presence_penalty,
        sequence_bias = biases, logits_processor = processor, eos_token_id = last,
        max_new_tokens = max_new_tokens, seed = seed_of(seed, index),
        n_logprobs = n_top or 0,
        on_token = function(_, ...) table.insert(choice.new, { ... }) end,
      })
      self.choices[index + 1] = choice
    end
  end
  return self
end

--- Adds the rows to the batch.
function Job:start(batch)
  self.batch = batch
  for _, choice in ipairs(self.choices) do choice.row = batch:add(choice.prompt, choice.options) end
  if not self.is_stream then return end
  self.is_begun = true
  self.request:begin(200,
    { ["Content-Type"] = "text/event-stream", ["Cache-Control"] = "no-cache" })
  for _, choice in ipairs(self.choices) do self:send(self.answers:first(choice)) end
end

function Job:send(json)
  if json then self.request:write("data: " .. json .. "\n\n") end
end

function Job:show(choice, text, tokens)
  if text == "" then return end
  if self.is_stream then return self:send(self.answers:piece(choice, text, tokens)) end
  table.insert(choice.text, text)
  for _, token in ipairs(tokens) do table.insert(choice.shown_tokens, token) end
end

function Job:advance_choice(choice)
  local new = choice.new
  choice.new = {}
  for _, token in ipairs(new) do
    if not choice.is_stopped then self:show(choice, choice:take(unpack(token))) end
  end
  if not choice.is_stopped and not choice.row.finish_reason then return end
  self:show(choice, choice:finish())
  choice.finish_reason = choice.is_stopped and "stop" or choice.row.finish_reason
  if choice.tool_calls then choice.finish_reason = "tool_calls" end
  if not choice.row.finish_reason then self.batch:cancel(choice.row) end
  if not self.is_stream then return end
  self:send(self.answers:tool_calls(choice))
  self:send(self.answers:last(choice))
end

function Job:usage()
  local n = 0
  for _, choice in ipairs(self.choices) do n = n + choice.n_tokens end
  return { prompt_tokens = self.n_prompt, completion_tokens = n, total_tokens = self.n_prompt + n }
end

function Job:finish()
  if self.is_stream then
    if self.has_usage then self:send(self.answers:usage(self:usage())) end
    self:send "[DONE]"
    return self.request:finish()
  end
  for _, choice in ipairs(self.choices) do
    choice.text, choice.shown = table.concat(choice.text), choice.shown_tokens
  end
  self.request:respond(200, { ["Content-Type"] = "application/json" },
    self.answers:whole(self.choices, self:usage()))
end

--- Sends what the batch has made since the last call. Returns whether the job has ended.
function Job:advance()
  local is_over = true
  for _, choice in ipairs(self.choices) do
    if not choice.finish_reason then self:advance_choice(choice) end
    is_over = is_over and choice.finish_reason ~= nil
  end
  if is_over then self:finish() end
  return is_over
end

function Job:cancel()
  for _, choice in ipairs(self.choices) do
    if choice.row and not choice.row.finish_reason then self.batch:cancel(choice.row) end
  end
end

--- Ends the answer with an error, and frees its rows.
function Job:fail(refusal)
  self:cancel()
  if not self.is_begun then
    return self.request:respond(refusal.status, refusal:headers(), refusal:json())
  end
  self:send(refusal:json())
  self.request:finish()
end

return new_job
