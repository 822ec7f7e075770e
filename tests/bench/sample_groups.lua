-- Tokens a second of sampling 64 prompts x 8 completions of different lengths, as a step of GRPO
-- does, beside transformers' `generate` of the same model: --python= one with transformers. Prints
-- one JSON line. SmolLM2-135M has --layers=30 --hidden=576 --intermediate=1536 --heads=9
-- --kv_heads=3 --vocab=49152.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  prompts = 64, n = 8, prompt = 32, new = 128, max_rows = 128, rounds = 3, threads = 2, python = "",
  layers = 4, hidden = 256, intermediate = 1024, heads = 4, kv_heads = 4, vocab = 4096, mean = 32,
}
torch.set_num_threads(o.threads)

-- Of random weights; as many tokens end a row as make completions of `mean` tokens on average.
local ends = {}
for i = 1, o.vocab / o.mean do ends[i] = i end
local model = redco.models.from_config({
  model_type = "llama", vocab_size = o.vocab, hidden_size = o.hidden,
  intermediate_size = o.intermediate, num_hidden_layers = o.layers,
  num_attention_heads = o.heads, num_key_value_heads = o.kv_heads,
  max_position_embeddings = o.prompt + o.new, eos_token_id = ends,
}, { generator = torch.Generator(0) })
model.generation_config = { eos_token_id = ends }
local prompts = torch.randint(#ends + 1, o.vocab, { o.prompts, o.prompt },
  { generator = torch.Generator(1) }):tolist()

local function sample(seed, n_prompts)
  local batch = redco.models.new_batch(model, model.params, { max_rows = o.max_rows })
  local rows = {}
  for i = 1, n_prompts do
    for _ = 1, o.n do
      rows[#rows + 1] = batch:add(prompts[i], { max_new_tokens = o.new, seed = seed + #rows })
    end
  end
  batch:run()
  local tokens = 0
  for _, row in ipairs(rows) do tokens = tokens + #row.tokens end
  return tokens
end

local peer
if o.python ~= "" then
  local folder = os.tmpname()
  os.remove(folder)
  model.save_pretrained(folder)
  local script = debug.getinfo(1, "S").source:match "^@(.*)sample_groups.lua$" .. "peer_sample.py"
  peer = function(round)
    local command = "'%s' '%s' '%s' %d %d %d %d %d %d >'%s/output'"
    assert(os.execute(command:format(o.python, script, folder, o.prompts, o.n, o.prompt, o.new,
      o.threads, round, folder)) == 0, "the peer failed")
    local output = assert(io.open(folder .. "/output"))
    local seconds, tokens = output:read("*n", "*n")
    output:close()
    return seconds, tokens
  end
end

sample(0, 1)
local own, others = {}, {}
for round = 1, o.rounds do
  local start = clock.now()
  local tokens = sample(round * 1000, o.prompts)
  own[round] = tokens / (clock.now() - start)
  if peer then
    local seconds, n = peer(round)
    others[round] = n / seconds
  end
end
local speed = clock.median(own)
local line = ('"name": "sample_groups", "tokens_per_s": %.1f, "peak_rss_mb": %.1f, "threads": %d')
  :format(speed, clock.peak_rss_mb(), o.threads)
if peer then
  local other = clock.median(others)
  line = line .. (', "transformers_tokens_per_s": %.1f, "ratio": %.2f'):format(other, speed / other)
end
print("{" .. line .. "}")
