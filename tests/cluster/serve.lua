-- A served model on every layout, between the steps of a training run: the first process has the
-- clients, and its answers are those of one process.
local client = require "http_client"
local native = require "redco.native"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch
local dir = assert(os.getenv "REDCO_SOURCE") .. "/tests/cases/llama"
local model = redco.models.from_pretrained(dir)
local tokenizer = redco.Tokenizer.from_pretrained(dir)
local prompt = tokenizer:encode "the sea"

local function expected(n)
  local ids = model.generate(model.params, { input_ids = torch.tensor { prompt } },
    { max_new_tokens = n, do_sample = false })[0]
  local stream, text = tokenizer:decode_stream { skip_special_tokens = true }, ""
  for _, token in ipairs(ids:narrow(0, #prompt, n):tolist()) do
    text = text .. stream:step(token)
  end
  return text .. stream:finish()
end

for _, options in ipairs { { n_model_shards = 1 }, { n_model_shards = 2 },
  { n_model_shards = 1, zero = 3 }, { n_model_shards = 2, zero = 3 } } do
  options.seed, options.verbose = 1, false
  local deployer = redco.Deployer(options)
  local name = ("%dx%d with zero %d"):format(deployer.mesh.dp, deployer.mesh.mp, options.zero or 0)
  testing.test("answers between steps on " .. name, function()
    local trainer = redco.Trainer {
      deployer = deployer, params = redco.tree.map(function(p) return p:detach():clone() end,
        model.params),
      optimizer = redco.optim.sgd { learning_rate = 0 },
      collate_fn = function(rows)
        local ids = torch.stack(rows)
        return { input_ids = ids, labels = ids:roll(-1, 1) }
      end,
      loss_fn = model.loss_fn,
    }
    local server = redco.serve(model, trainer.params, tokenizer,
      { port = 0, deployer = deployer, max_rows = 3 })
    local guests = {}
    if deployer.process_id == 0 then
      for i = 1, 5 do
        guests[i] = client.connect(server.port)
        guests[i]:send(client.request_text { path = "/v1/completions",
          body = { prompt = "the sea", max_tokens = 2 + i, temperature = 0 } })
      end
    end
    local examples = {}
    for i = 1, 4 * deployer.mesh.dp do examples[i] = torch.tensor(prompt) end
    trainer:fit { train_examples = examples, per_device_batch_size = 1, n_epochs = 10,
      on_step = function() server:poll() end }
    testing.expect_equal(server:poll(), 0)
    for i, guest in ipairs(guests) do
      while guest:receive(10) do end
      local answer = native.json_decode("answer", guest:response().body)
      testing.expect_equal(answer.choices[1].text, expected(2 + i))
      guest:close()
    end
    server:close()
  end)
end

testing.finish()
