-- Text from the folder of a language model, shown as it is written.
local redco = require "redco"

local o = redco.options {
  model_dir = "workdir/model",  -- what train.lua wrote, or any decoder's folder
  prompt = "The king said",
  seed = 42,
  n_model_shards = 1,
  dtype = "float32",
  max_new_tokens = 200,
  do_sample = true,
  temperature = 0.7,
  top_k = 50,
  top_p = 1.0,
  repetition_penalty = 1.0,
}

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, verbose = false,
}
local tokenizer = redco.Tokenizer.from_pretrained(o.model_dir)
local model = redco.models.from_pretrained(o.model_dir, { dtype = o.dtype })

local text = tokenizer:decode_stream { skip_special_tokens = true }
local function show(piece)
  if deployer.process_id ~= 0 then return end
  io.stdout:write(piece)
  io.stdout:flush()
end

local predictor = redco.Predictor {
  deployer = deployer,
  collate_fn = function(prompts) return tokenizer(prompts) end,
  pred_fn = function(rng, params, batch)
    return model.generate(params, batch, {
      max_new_tokens = o.max_new_tokens, do_sample = o.do_sample, temperature = o.temperature,
      top_k = o.top_k, top_p = o.top_p, repetition_penalty = o.repetition_penalty, rng = rng,
      streamer = function(tokens) show(text:step(tokens[0]:item())) end,
    })
  end,
}
show(o.prompt)
predictor:predict { examples = { o.prompt }, params = model.params, per_device_batch_size = 1 }
show(text:finish() .. "\n")
