--- The reference cases of Stable Diffusion and DiT: tests/cases, and larger sets where REDCO_CASES
--- names them (tests/cases/README.md).
local cases = require "model_cases"
local conditions = require "redco.diffusion.sampling.conditions"
local native = require "redco.native"
local original_names = require "redco.diffusion.original_names"
local redco = require "redco"
local start = require "redco.diffusion.sampling.start"
local testing = require "testing"

local torch = redco.torch

local diffusion = {}

local names = { "stable_diffusion", "stable_diffusion_2", "stable_diffusion_xl",
  "stable_diffusion_3", "flux", "dit" }

-- Python writes infinity, which JSON does not have.
local function read_json(path)
  return native.json_decode(path, (redco.data.read(path):gsub("%-?Infinity", "null")))
end

--- Calls body(case) for each case found. A case: `dir`, `name`, `arrays`, `expected`.
function diffusion.each(body)
  for _, folder in ipairs(cases.folders) do
    for _, name in ipairs(names) do
      local dir = folder .. "/" .. name
      local file = io.open(dir .. "/expected.json")
      if file then
        file:close()
        body { dir = dir, name = name, arrays = torch.load(dir .. "/expected.safetensors"),
          expected = read_json(dir .. "/expected.json") }
      end
    end
  end
end

--- The inputs of a step.
function diffusion.batch(case, i)
  local batch = {}
  for name, tensor in pairs(case.arrays) do
    local key = name:match("^batch" .. i .. "%.([%w_]+)$")
    if key then batch[key] = tensor end
  end
  return batch
end

-- Products of 1 - beta, with diffusers' scaled_linear betas of Stable Diffusion.
local function alphas_cumprod()
  local betas = torch.linspace(0.00085 ^ 0.5, 0.012 ^ 0.5, 1000, { dtype = "float32" }):square()
  return (1 - betas):cumprod(0)
end

--- The noisy latents of a batch.
function diffusion.noisy(batch)
  local alphas = alphas_cumprod():index_select(0, batch.timesteps):view { -1, 1, 1, 1 }
  return batch.latents * alphas:sqrt() + batch.noise * (1 - alphas):sqrt()
end

--- The output of the UNet or transformer; `params` are those of the pipeline.
function diffusion.predict(pipeline, params, batch)
  local kind, noisy = pipeline.kind, diffusion.noisy(batch)
  local states, pooled = torch.no_grad(function()
    return kind.says.encode(pipeline, params, batch)
  end)
  return start.without_variance(pipeline, pipeline.denoiser(params[kind.model], noisy,
    batch.timesteps, states, conditions.call(pipeline, pooled, batch.time_ids, 8, 8, 3.5)))
end

function diffusion.loss(pipeline, params, batch)
  return (diffusion.predict(pipeline, params, batch) - batch.noise):square():mean()
end

function diffusion.optimizer(case)
  local adamw = case.expected.training.adamw
  return redco.optim.adamw { learning_rate = adamw.lr, betas = adamw.betas, eps = adamw.eps,
    weight_decay = adamw.weight_decay }
end

local function norm(tensor) return tensor:double():norm():item() end

local function sorted(set)
  local list = {}
  for name in pairs(set) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- Whether a parameter of a pipeline is not of its UNet or transformer, which cases train.
function diffusion.is_frozen(pipeline)
  return function(name) return not name:find("^" .. pipeline.kind.model .. "%.") end
end

--- The losses before each step, and the trained parameters after all.
function diffusion.expect_trained(case, losses, params)
  local adamw = case.expected.training.adamw
  for step, loss in ipairs(adamw.losses_fp64 or adamw.losses) do
    cases.expect_near("the loss of step " .. step, losses[step], loss, 1e-5)
  end
  local after = adamw.param_norms_after_fp64 or adamw.param_norms_after
  local gradients = case.expected.training.grad_norms_fp64
  for _, name in ipairs(sorted(after)) do
    -- Where a gradient is 0 but for rounding, as of a key's bias, AdamW takes any step.
    if (gradients[name] or 1) > 1e-9 then
      cases.expect_near(name, norm(params[name]), after[name], 2e-5)
    end
  end
end

--- Compares what the parts compute with the case.
function diffusion.expect_outputs(case, pipeline)
  local arrays, batch, params = case.arrays, diffusion.batch(case, 0), pipeline.params
  torch.no_grad(function()
    local mean, logvar = pipeline.vae.encode(params.vae, batch.pixel_values)
    local function close(actual, name) testing.expect_close(actual, arrays[name], 1e-4, 1e-4) end
    close(mean, "vae.mean")
    close(logvar, "vae.logvar")
    close(pipeline.vae.decode(params.vae, mean), "vae.decoded_from_mean")
    if arrays["text.last_hidden_state"] then
      close((pipeline.encode_text(params, batch)), "text.last_hidden_state")
    end
    if arrays["text.pooled"] then
      close(select(2, pipeline.encode_text(params, batch)), "text.pooled")
    end
    close(diffusion.predict(pipeline, params, batch), pipeline.kind.model .. ".sample")
  end)
end

-- Adds tensors to `whole`, by the names of name_of, as the original layout holds them.
local function add_originals(whole, params, prefix, name_of)
  local joined = {}
  for name, tensor in pairs(params) do
    local own, form = name_of(name)
    own = prefix .. own
    if type(form) == "number" then
      joined[own] = joined[own] or {}
      joined[own][form + 1] = tensor
    elseif form == "conv" then
      whole[own] = tensor:unsqueeze(-1):unsqueeze(-1)
    elseif form == "swapped" then
      whole[own] = torch.cat({ tensor:chunk(2)[2], tensor:chunk(2)[1] }, 0)
    else
      whole[own] = tensor
    end
  end
  for own, parts in pairs(joined) do whole[own] = torch.cat(parts, 0) end
end

--- The tensors of a file of the original layout with OpenCLIP's names, those of Stable Diffusion 2;
--- or of Stable Diffusion 3.
function diffusion.single_file(pipeline)
  local params, whole = pipeline.params, {}
  add_originals(whole, params.vae, "first_stage_model.", original_names.vae(pipeline.vae.config))
  local model = "model.diffusion_model."
  if pipeline.unet then
    add_originals(whole, params.unet, model, original_names.unet(pipeline.unet.config))
    add_originals(whole, params.text_encoder, "cond_stage_model.model.", original_names.open_clip)
    return whole
  end
  add_originals(whole, params.transformer, model, original_names.sd3(nil, params.transformer))
  for name, place in pairs { text_encoder = "clip_l", text_encoder_2 = "clip_g",
    text_encoder_3 = "t5xxl" } do
    add_originals(whole, params[name], ("text_encoders.%s.transformer."):format(place),
      function(own) return own end)
  end
  return whole
end

return diffusion
