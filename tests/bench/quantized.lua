-- Tokens a second of a prompt, and of greedy decoding after it, of a GGUF file (--file), beside
-- llama.cpp: --python= one with llama-cpp-python. `peer_llama_cpp.py make` writes a file of the
-- sizes of TinyLlama. Each number is the best of some interleaved rounds. Prints one JSON line.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  file = "", python = "", prompt = 512, new = 32, threads = 1, rounds = 3, dtype = "float32",
  -- Count the processor's time, which other work disturbs less, not the clock's.
  is_processor_time = false,
}
local now = o.is_processor_time and os.clock or clock.now
torch.set_num_threads(o.threads)

local model = redco.models.from_pretrained(o.file, { dtype = o.dtype })
local tokens = {}
for i = 0, o.prompt - 1 do tokens[i + 1] = 100 + 7 * i % 1000 end
local input_ids = torch.tensor { tokens }

local function seconds_of(new)
  local start = now()
  model.generate(model.params, { input_ids = input_ids },
    { min_new_tokens = new, max_new_tokens = new, pad_token_id = 0 })
  return now() - start
end

-- Returns the seconds of the prompt and those of the new tokens.
local function own()
  local prompt = seconds_of(1)
  return prompt, seconds_of(o.new + 1) - prompt
end

local function peer()
  local script = debug.getinfo(1, "S").source:match "^@(.*)quantized.lua$" .. "peer_llama_cpp.py"
  local output = os.tmpname()
  local command = "'%s' '%s' '%s' %d %d %d %s >'%s'"
  assert(os.execute(command:format(o.python, script, o.file, o.prompt, o.new, o.threads,
    o.is_processor_time and "process_time" or "perf_counter", output)) == 0, "the peer failed")
  local file = assert(io.open(output))
  local prompt, new, memory = file:read("*n", "*n", "*n")
  file:close()
  os.remove(output)
  return prompt, new, memory
end

local function best(list, prompt, new)
  list.prompt = math.min(list.prompt or math.huge, prompt)
  list.new = math.min(list.new or math.huge, new)
end

own()
local ours, theirs = {}, {}
for _ = 1, o.rounds do
  best(ours, own())
  if o.python ~= "" then
    local prompt, new, memory = peer()
    best(theirs, prompt, new)
    theirs.memory = math.max(theirs.memory or 0, memory)
  end
end

local line = ('"name": "quantized", "prompt_tokens_per_s": %.1f, "new_tokens_per_s": %.2f, '
  .. '"peak_rss_mb": %.1f, "threads": %d, "dtype": "%s"'):format(o.prompt / ours.prompt,
  o.new / ours.new, clock.peak_rss_mb(), o.threads, o.dtype)
if theirs.prompt then
  line = line .. (', "llama_cpp_prompt_tokens_per_s": %.1f, "llama_cpp_new_tokens_per_s": %.2f, '
    .. '"llama_cpp_peak_rss_mb": %.1f, "prompt_ratio": %.2f, "new_ratio": %.2f'):format(
    o.prompt / theirs.prompt, o.new / theirs.new, theirs.memory, theirs.prompt / ours.prompt,
    theirs.new / ours.new)
end
print("{" .. line .. "}")
