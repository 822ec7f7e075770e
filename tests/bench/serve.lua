-- Tokens a second of redco.serve: one client, and several at once, of a GPT-2 of the small one's
-- size (or --model_dir) in this process. Prints one JSON line.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

package.path = redco.script_folder() .. "/../lua/?.lua;" .. package.path
local client = require "http_client"

local o = redco.options {
  model_dir = "", clients = 8, prompt = 16, new = 64, steps = 3, threads = 2, dtype = "float32",
  layers = 12, hidden = 768, heads = 12, vocab = 50257,
}
torch.set_num_threads(o.threads)

local tokenizer_dir = o.model_dir ~= "" and o.model_dir
  or redco.script_folder() .. "/../cases/gpt2"
local model = o.model_dir ~= "" and redco.models.from_pretrained(o.model_dir, { dtype = o.dtype })
  or redco.models.from_config({
    model_type = "gpt2", vocab_size = o.vocab, n_embd = o.hidden, n_layer = o.layers,
    n_head = o.heads, n_positions = o.prompt + o.new,
  }, { dtype = o.dtype, generator = torch.Generator(0) })
local server = redco.serve(model, model.params, redco.Tokenizer.from_pretrained(tokenizer_dir),
  { port = 0, max_rows = o.clients, max_length = o.prompt + o.new })

-- Returns the tokens a second of n clients that ask at once for texts of different seeds.
local function rate(n)
  local requests = {}
  for i = 1, n do
    local prompt = {}
    for j = 1, o.prompt do prompt[j] = (i * 131 + j * 17) % 1000 end
    requests[i] = { path = "/v1/completions",
      body = { prompt = prompt, max_tokens = o.new, temperature = 1, seed = i, stream = true,
        stream_options = { include_usage = true } } }
  end
  local start, n_tokens = clock.now(), 0
  for _, answer in ipairs(client.ask_all(server.port, requests, function() server:poll() end)) do
    n_tokens = n_tokens + answer.events[#answer.events - 1].usage.completion_tokens
  end
  return n_tokens / (clock.now() - start)
end

rate(o.clients)
local one, several = {}, {}
for i = 1, o.steps do one[i], several[i] = rate(1), rate(o.clients) end
one, several = clock.median(one), clock.median(several)
print(('{"name": "serve", "clients": %d, "tokens_per_s_of_one": %.2f, "tokens_per_s": %.2f, '
  .. '"ratio": %.2f, "peak_rss_mb": %.1f, "threads": %d, "dtype": "%s"}'):format(o.clients, one,
  several, several / one, clock.peak_rss_mb(), o.threads, o.dtype))
