-- Greedy generation by a GPT-2 of the small one's size (or --model_dir), and what the machine's
-- memory can do in the same run. Prints one JSON line.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options {
  model_dir = "", batch = 1, prompt = 16, new = 64, steps = 3, warmup = 1, threads = 2,
  dtype = "float32", layers = 12, hidden = 768, heads = 12, vocab = 50257,
}
torch.set_num_threads(o.threads)

local model = o.model_dir ~= "" and redco.models.from_pretrained(o.model_dir, { dtype = o.dtype })
  or redco.models.from_config({
    model_type = "gpt2", vocab_size = o.vocab, n_embd = o.hidden, n_layer = o.layers,
    n_head = o.heads, n_positions = o.prompt + o.new,
  }, { dtype = o.dtype, generator = torch.Generator(0) })

local input_ids = torch.rand({ o.batch, o.prompt }, { generator = torch.Generator(1) })
  :pow(3):mul(model.config.vocab_size):long()

-- Bytes a second that a sum over more memory than any cache holds reads.
local function bandwidth()
  local block, best = torch.ones { 2 ^ 26 }, 0
  for _ = 1, 5 do
    local start = clock.now()
    block:sum()
    best = math.max(best, 4 * 2 ^ 26 / (clock.now() - start))
  end
  return best
end

local function generate()
  return model.generate(model.params, { input_ids = input_ids },
    { min_new_tokens = o.new, max_new_tokens = o.new, pad_token_id = 0 })
end

local ids
for _ = 1, o.warmup do ids = generate() end
local times = {}
for i = 1, o.steps do
  local start = clock.now()
  ids = generate()
  times[i] = clock.now() - start
end
local seconds = clock.median(times)

local item_size = ({ float32 = 4, bfloat16 = 2, float16 = 2 })[o.dtype]
local weights = 0
for name, tensor in pairs(model.params) do
  -- Of an embedding that is no head, only a few rows are read.
  if not name:find "wpe" then weights = weights + tensor:numel() * item_size end
end
local read = bandwidth()
print(('{"name": "generate", "batch": %d, "tokens_per_s": %.2f, "step_ms_median": %.2f, '
  .. '"weights_gb_per_s": %.2f, "memory_gb_per_s": %.2f, "peak_rss_mb": %.1f, "threads": %d, '
  .. '"dtype": "%s", "last_ids": "%s"}'):format(o.batch, o.batch * o.new / seconds,
  seconds / o.new * 1e3, weights * o.new / seconds / 1e9, read / 1e9, clock.peak_rss_mb(),
  o.threads, o.dtype, table.concat(ids[0]:narrow(0, o.prompt, 8):tolist(), " ")))
