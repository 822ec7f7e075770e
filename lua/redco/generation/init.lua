--- Text and other sequences from models, token by token.
local beam_search = require "redco.generation.beam_search"
local fail = require "redco.fail"
local generation_options = require "redco.generation.options"
local new_decoder = require "redco.generation.decoder"
local new_processor = require "redco.generation.processors"
local registry = require "redco.registry"
local search = require "redco.generation.search"
local torch = require "redco.torch"

-- A function of ids [rows, max_length] and of how many are known: which rows the last one ends.
local function end_of_rows(o, prompt_length)
  local eos = torch.tensor(#o.eos > 0 and o.eos or { -1 }, { dtype = "int64" })
  local longest = 0
  for _, stop in ipairs(o.stop_strings) do longest = math.max(longest, #stop) end
  -- The text of tokens that are enough to hold any of the strings and to end in one.
  local function is_stopped(row, length)
    local first = math.max(prompt_length, length - longest - 1)
    local text = o.tokenizer:decode(row:narrow(0, first, length - first))
    for _, stop in ipairs(o.stop_strings) do
      if text:find(stop, 1, true) then return true end
    end
    return false
  end
  return function(ids, length)
    local ended = torch.isin(ids:select(1, length - 1), eos)
    if longest > 0 then
      for i = 0, ids:size(0) - 1 do
        if is_stopped(ids[i], length) then ended[i]:fill_(true) end
      end
    end
    return ended
  end
end

local function generate(model, params, inputs, options)
  local prompt = inputs[model.is_encoder_decoder and "decoder_input_ids" or "input_ids"]
  if not prompt and not model.is_encoder_decoder then
    fail "model.generate: the inputs have no input_ids"
  end
  local prompt_length = prompt and prompt:size(1) or 1
  local o = generation_options(model, options, prompt_length)
  o.rng = o.rng or (o.seed and torch.Generator(o.seed))
  local decoder = new_decoder(model, params, inputs, o)
  local scores = decoder:start(o.max_length)
  -- Only watched, to decide how the parameters lie: the prompt has shown every layer, and what
  -- follows hangs on values.
  if scores:to_local().device == "meta" then return scores:argmax(-1, true) end
  local n = math.max(o.num_beams, o.num_return_sequences)
  if n > 1 then scores = decoder:expand(n, scores) end

  local rows = scores:size(0)
  local fill = o.pad_token_id
  -- Hugging Face's beam search takes a padding token 0 for none.
  if o.num_beams > 1 and fill == 0 then fill = o.eos[1] or fill end
  local ids = torch.full({ rows, o.max_length }, fill, { dtype = "int64" })
  ids:narrow(1, 0, prompt_length):copy_(decoder.ids:full())
  local process, ended = new_processor(o), end_of_rows(o, prompt_length)
  if o.num_beams == 1 then
    local length = search(decoder, scores, process, ended, ids, prompt_length, o)
    return ids:narrow(1, 0, length)
  end
  local best, best_scores, lengths = beam_search(decoder, scores, process, ended, ids,
    prompt_length, o)
  lengths = lengths:narrow(1, 0, o.num_return_sequences)
  return best:narrow(1, 0, o.num_return_sequences):narrow(2, 0, lengths:max():item())
    :reshape { -1, lengths:max():item() },
    best_scores:narrow(1, 0, o.num_return_sequences):reshape { -1 }
end

return registry.define("redco.models.generate", [[
generate(model, params, inputs, options) -> sequences [rows, length], scores [rows] (beam search)
Tokens after a prompt, as `model.generate(params, inputs, options)`. inputs: those of the model;
prompts may be padded on either side, and come back padded on the left. Options, by Hugging Face's
names, with the model's generation_config.json before these defaults:
  max_length = 20 or max_new_tokens; min_length = 0 or min_new_tokens
  do_sample = false, temperature = 1, top_k = 50, top_p = 1, seed or rng (a Generator)
  repetition_penalty = 1, no_repeat_ngram_size = 0
  num_beams = 1, length_penalty = 1, early_stopping = false (or true, "never")
  num_return_sequences = 1: rows of one prompt lie side by side
  eos_token_id (a number or a list), pad_token_id, decoder_start_token_id
  forced_bos_token_id, forced_eos_token_id
  stop_strings (a list) with tokenizer: a row ends when its text has one of them
  streamer: called after each step with the new tokens [rows], and which rows were still open
Greedy and beam search give the tokens that Hugging Face's library gives. On several processes all
must call it, with the same options.]],
function(model, params, inputs, options)
  return torch.no_grad(generate, model, params, inputs, options)
end)
