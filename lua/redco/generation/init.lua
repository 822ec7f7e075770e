--- Generates sequences with a model: greedy search, sampling and beam search.
local beam_search = require "redco.generation.beam_search"
local check_inputs = require "redco.models.check_inputs"
local fail = require "redco.fail"
local generation_options = require "redco.generation.options"
local new_decoder = require "redco.generation.decoder"
local new_processor = require "redco.generation.processors"
local registry = require "redco.registry"
local search = require "redco.generation.search"
local torch = require "redco.torch"

-- Returns a function of ids [rows, max_length] on a device and the number of known tokens. The
-- function returns which rows end with the last token.
local function end_of_rows(o, device)
  local eos = torch.tensor(#o.eos > 0 and o.eos or { -1 }, { dtype = "int64", device = device })
  local longest = 0
  for _, stop in ipairs(o.stop_strings) do longest = math.max(longest, #stop) end
  -- Decodes enough of the last tokens to contain any of the strings. As in transformers, one may
  -- begin in the prompt.
  local function is_stopped(row, length)
    local first = math.max(0, length - longest - 1)
    local text = o.tokenizer:decode(row:narrow(0, first, length - first))
    local before = o.tokenizer:decode(row:narrow(0, first, length - first - 1))
    local n = 0  -- equal bytes: the last token may complete a character
    while n < #before and text:byte(n + 1) == before:byte(n + 1) do n = n + 1 end
    for _, stop in ipairs(o.stop_strings) do
      -- A new stop string ends after these bytes.
      if text:find(stop, math.max(1, n - #stop + 2), true) then return true end
    end
    return false
  end
  return function(ids, length)
    local ended = torch.isin(ids:select(1, length - 1), eos)
    if longest > 0 then
      for i = 0, ids:size(0) - 1 do
        if is_stopped(ids[i]:cpu(), length) then ended[i]:fill_(true) end
      end
    end
    return ended
  end
end

-- `rule` is a family's own processor of scores, or nil.
local function generate(model, params, inputs, options, rule)
  if not model.is_encoder_decoder and not inputs.input_ids then
    fail "model.generate: the inputs have no input_ids"
  end
  local o = generation_options.read(model, options)
  o.rule = rule
  o.rng = o.rng or (o.seed and torch.Generator(o.seed))
  local decoder = new_decoder(model, params, inputs, o)
  local prompt_length = decoder.ids:size(1)
  generation_options.set_lengths(o, model, prompt_length)
  local scores = decoder:start(o.max_length, o.cache)
  -- This is a meta pass that decides the layout of the parameters. The prompt has used every layer,
  -- and further steps depend on values.
  if scores:to_local().device == "meta" then return scores:argmax(-1, true) end
  local n = math.max(o.num_beams, o.num_return_sequences)
  if n > 1 and o.cache then fail "model.generate: a cache is for one row, not for beams" end
  if n > 1 then scores = decoder:expand(n, scores) end

  local rows = scores:size(0)
  local fill = o.pad_token_id
  -- Hugging Face's beam search treats padding token 0 as no padding token.
  if o.num_beams > 1 and fill == 0 then fill = o.eos[1] or fill end
  -- The search runs where the scores are.
  local device = scores.device
  local ids = torch.full({ rows, o.max_length }, fill, { dtype = "int64", device = device })
  ids:narrow(1, 0, prompt_length):copy_(decoder.ids:full())
  o.prompt_length = prompt_length
  o.encoder_ids = decoder.prompt and decoder.prompt:full()
  local process, ended = new_processor(o), end_of_rows(o, device)
  if o.num_beams == 1 then
    local length = search(decoder, scores, process, ended, ids, prompt_length, o)
    return ids:narrow(1, 0, length):cpu()
  end
  local best, best_scores, lengths = beam_search(decoder, scores, process, ended, ids,
    prompt_length, o)
  lengths = lengths:narrow(1, 0, o.num_return_sequences)
  local longest = lengths:max():item()
  return best:narrow(1, 0, o.num_return_sequences):narrow(2, 0, longest)
    :reshape { -1, longest }:cpu(),
    best_scores:narrow(1, 0, o.num_return_sequences):reshape { -1 }:cpu()
end

return registry.define("redco.models.generate", [[
generate(model, params, inputs, options = nil) -> sequences [rows, length], scores [rows] (beam search)
Generates tokens after a prompt. `Model.generate` describes the options.]],
function(model, params, inputs, options)
  check_inputs("models.generate", model.family, params, inputs)
  local own = model.family.generate
  if own then return torch.no_grad(own, generate, model, params, inputs, options) end
  return torch.no_grad(generate, model, params, inputs, options)
end)
