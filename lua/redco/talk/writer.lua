--- A model that writes text: a folder, a GGUF file, or a folder of adapters on such a model.
local data = require "redco.data"
local fail = require "redco.fail"
local hub = require "redco.hub"
local lora = require "redco.lora"
local models = require "redco.models"
local native = require "redco.native"
local new_stops = require "redco.talk.stops"
local torch = require "redco.torch"
local without_position = require "redco.without_position"

local adapter_config = "/adapter_config.json"

local function exists(path)
  return path:find "%.gguf$" and native.file_exists(path)
    or native.file_exists(path .. "/config.json")
end

-- Returns the path of the model that the adapters of a folder change.
local function base_of(dir)
  local name = data.json(dir .. adapter_config).base_model_name_or_path
  if type(name) ~= "string" or name == "" then
    fail("%s%s names no base model: give it with --base PATH", dir, adapter_config)
  end
  for _, path in ipairs { name, dir .. "/" .. name } do
    if exists(path) then return path end
  end
  local path = hub.path(dir .. ": the base model, which --base PATH can name", name, "model")
  if exists(path) then return path end
  fail("the base model of %s, %s, is no folder or file here: give it with --base PATH", dir, name)
end

local function has_tokenizer(dir)
  return native.file_exists(dir .. "/tokenizer_config.json")
    or native.file_exists(dir .. "/tokenizer.json")
end

-- Returns the tokenizer of a model's folder or file. The error for a model without one says what
-- kind of model that is.
local function tokenizer_of(path)
  local ok, found = pcall(native.read_tokenizer, path)
  if ok then return found end
  local is_json, config = pcall(data.json, path .. "/config.json")
  for _, row in ipairs(is_json and models.families() or {}) do
    if row.model_type == config.model_type and (row.kind == "images" or row.kind == "sound") then
      fail("%s; %s is a model of %s", without_position(found), config.model_type, row.kind)
    end
  end
  error(found, 0)
end

local function reads_tokens(family)
  for _, name in ipairs(family.inputs) do
    if name == "input_ids" then return true end
  end
  return false
end

local Writer = {}
Writer.__index = Writer

--- Opens only the tokenizer; `load` reads the model.
--- `o` has the flags of the command: base, dtype, seed, temperature, top_p, max_new_tokens and the
--- list `stop`.
local function open(path, o)
  path = hub.path("PATH", path, "text_model")
  local is_adapter = native.file_exists(path .. adapter_config)
  if o.base and not is_adapter then
    fail("--base is for a folder of adapters, and %s has no adapter_config.json", path)
  end
  local base = is_adapter and (o.base and hub.path("--base", o.base, "model") or base_of(path))
    or path
  if not exists(base) then
    fail("%s is neither a model folder, with a config.json, nor a GGUF file", base)
  end
  local own = is_adapter and has_tokenizer(path)
  return setmetatable({
    path = base, adapters = is_adapter and path, options = o,
    tokenizer = tokenizer_of(own and path or base),
  }, Writer)
end

function Writer:load()
  local o = self.options
  self.model = models.from_pretrained(self.path, { dtype = o.dtype })
  self.params = self.model.params
  local family = self.model.family
  if family.task then fail("%s is a %s, which writes no text", self.path, family.architecture) end
  if not reads_tokens(family) then
    fail("%s is a %s, which reads %s and no text: a script can call its model.generate", self.path,
      family.architecture, family.inputs[1])
  end
  if self.adapters then
    self.params = lora.merge(lora.from_pretrained(self.adapters, self.params))
  end
end

-- Returns how many tokens may follow the prompt.
function Writer:room(n_prompt)
  local config, o = self.model.config, self.options
  local context = config.max_position_embeddings or config.n_positions
  if not context then return o.max_new_tokens end
  local room = context - (self.model.is_encoder_decoder and 1 or n_prompt)
  if room < 1 then
    fail("the text has %d tokens, and the model reads at most %d", n_prompt, context)
  end
  return math.min(room, o.max_new_tokens)
end

-- Returns whether to sample, or nil: as generation_config.json says.
local function do_sample(o)
  if o.temperature then return o.temperature > 0 end
  if o.top_p then return true end
end

-- Returns a cache with the tokens that both the prompt and the last text begin with; nil if the
-- model generates without a cache.
function Writer:cache_of(prompt)
  local family, n = self.model.family, 0
  local restarts = family.restart_length and family.restart_length(self.model.config)
  if self.model.is_encoder_decoder or restarts then return end
  while self.cache and n < #prompt - 1 and self.seen[n + 1] == prompt[n + 1] do n = n + 1 end
  if not self.cache or not self.cache:shorten(n) then self.cache = models.new_cache() end
  return self.cache
end

--- Writes what follows the tokens of the list `prompt`. Calls show(text) for each piece.
function Writer:write(prompt, show)
  if #prompt == 0 then fail "the prompt is empty" end
  local o = self.options
  self.rng = self.rng or torch.Generator(o.seed)
  local stream = self.tokenizer:decode_stream { skip_special_tokens = true }
  local push, finish = new_stops(o.stop)
  local seen = {}
  for i, token in ipairs(prompt) do seen[i] = token end
  local ids = torch.tensor({ prompt }, { dtype = "int64" })
  local inputs = { input_ids = ids, attention_mask = torch.ones_like(ids) }
  local ok, message = pcall(self.model.generate, self.params, inputs, {
    max_new_tokens = self:room(#prompt), num_beams = 1, num_return_sequences = 1,
    do_sample = do_sample(o), top_p = o.top_p,
    temperature = o.temperature ~= 0 and o.temperature or nil,
    stop_strings = o.stop[1] and o.stop, tokenizer = self.tokenizer, rng = self.rng,
    cache = self:cache_of(prompt),
    streamer = function(tokens)
      seen[#seen + 1] = tokens:item()
      show(push(stream:step(seen[#seen])))
    end,
  })
  self.seen = seen
  if not ok then self.cache = nil end  -- a step may have been cut
  show(push(stream:finish()))
  show(finish())
  if not ok then error(message, 0) end
end

return open
