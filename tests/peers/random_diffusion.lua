-- Opens the cases of random_diffusion.py: random_diffusion.lua FOLDER...
-- Compares what it computes with them, and writes beside each case `saved`, the same pipeline;
-- `adapters`, the output of the UNet with them, and adapters in two formats; `learned`, the vectors
-- of the file of textual inversion that token.txt names. Reads the single file, if there is one.
package.path = os.getenv "REDCO_SOURCE" .. "/tests/lua/?.lua;" .. package.path
local cases = require "model_cases"
local diffusion = require "diffusion_cases"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch

local function train(case, pipeline)
  local losses, params = {}, pipeline.params
  local trainer = redco.Trainer {
    deployer = redco.Deployer { seed = 1, verbose = false }, params = params,
    collate_fn = function(rows) return rows[1] end,
    optimizer = redco.optim.freeze(diffusion.optimizer(case),
      diffusion.is_frozen(pipeline)),
    loss_fn = function(_, _, given, batch) return diffusion.loss(pipeline, given, batch) end,
    train_step_fn = function(_, _, batch, defaults)
      local loss, gradients = defaults.value_and_grad(function(given)
        return diffusion.loss(pipeline, given, batch)
      end)
      if #losses == 0 then cases.expect_gradients(case, gradients[pipeline.kind.model]) end
      losses[#losses + 1] = loss:item()
      return { loss = loss, norm = defaults.apply_gradients(gradients) }
    end,
  }
  for step = 0, #case.expected.training.adamw.losses - 1 do
    trainer:train { examples = { diffusion.batch(case, step) }, per_device_batch_size = 1 }
  end
  diffusion.expect_trained(case, losses, trainer.params[pipeline.kind.model])
end

-- Whether a part has attention: a random UNet may have none.
local function has_layer(params, name)
  for key in pairs(params) do
    if key:find("." .. name .. ".weight", 1, true) then return true end
  end
  return false
end

local function write_adapters(case, pipeline)
  local params, generator = {}, torch.Generator(1)
  for name, part in pairs(pipeline.params) do params[name] = part end
  local targets = { unet = { "to_q", "to_k", "to_v", "to_out.0" },
    transformer = { "to_q", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "linear",
      "net.2" },
    text_encoder = { "q_proj", "k_proj", "v_proj", "out_proj" } }
  local model = pipeline.kind.model
  if model == "unet" and not has_layer(params.unet, "to_q") then model = nil end
  for _, name in ipairs { "text_encoder", model } do
    params[name] = redco.lora.add(params[name], { r = 2, lora_alpha = 5,
      target_modules = targets[name], generator = generator })
    torch.no_grad(function()
      for key, tensor in pairs(params[name]) do
        if key:find "lora_B" then tensor:normal_(0, 0.3, { generator = generator }) end
      end
    end)
  end
  local is_flux = pipeline.class_name == "FluxPipeline"
  for _, format in ipairs { "diffusers", not is_flux and "kohya" or nil } do
    redco.diffusion.save_lora(case.dir .. "/lora_" .. format, params, { format = format })
  end
  return torch.no_grad(function()
    return diffusion.predict(pipeline, params, diffusion.batch(case, 0))
  end)
end

local function check_single_file(case, pipeline)
  local path = case.dir .. "/single.safetensors"
  local file = io.open(path)
  if not file then return end
  file:close()
  local read = redco.diffusion.from_single_file(path, case.dir)
  for part, params in pairs(read.params) do
    for name, tensor in pairs(params) do
      testing.expect_close(tensor, pipeline.params[part][name], 0, 0)
    end
  end
end

local function check_token(case, pipeline)
  local file = io.open(case.dir .. "/token.txt")
  if not file then return end
  local path, prompt = file:read("*l", "*l")
  file:close()
  local params = redco.diffusion.load_textual_inversion(pipeline, path,
    { token = path:find "safetensors$" and "<x>" or nil })
  local states, pooled = torch.no_grad(function()
    return pipeline.encode_text(params, pipeline.tokenize(prompt))
  end)
  local expected = torch.load(case.dir .. "/inverted.safetensors")
  testing.expect_close(states, expected.states, 1e-4, 1e-5)
  if expected.pooled then testing.expect_close(pooled, expected.pooled, 1e-4, 1e-5) end
  redco.diffusion.save_textual_inversion(pipeline, case.dir .. "/learned", params)
end

cases.folders = { ... }
if #cases.folders == 0 then cases.folders = arg end
diffusion.each(function(case)
  local ok, message = xpcall(function()
    local pipeline = redco.diffusion.from_pretrained(case.dir)
    diffusion.expect_outputs(case, pipeline)
    pipeline.save_pretrained(case.dir .. "/saved")
    if pipeline.kind.texts then
      torch.save({ adapted = write_adapters(case, pipeline) }, case.dir .. "/adapted.safetensors")
    end
    check_single_file(case, pipeline)
    check_token(case, pipeline)
    train(case, pipeline)
  end, debug.traceback)
  if not ok then error(("%s: %s"):format(case.dir, message)) end
end)
print "the same"
