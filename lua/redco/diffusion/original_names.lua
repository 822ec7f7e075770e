--- The names of weights in single files of the original layout (CompVis' and Stability's), from
--- those of diffusers and transformers. Each function returns function(name) -> original name, and
--- how the original holds it: nil, "conv" (a 1 x 1 convolution), "transposed", or 0, 1, 2 (the part
--- of a joined weight).
local plan_of = require "redco.diffusion.unet_plan"

local names = {}

local of_resnet = { norm1 = "in_layers.0", conv1 = "in_layers.2", time_emb_proj = "emb_layers.1",
  norm2 = "out_layers.0", conv2 = "out_layers.3", conv_shortcut = "skip_connection" }

local heads = {
  ["time_embedding.linear_1"] = "time_embed.0", ["time_embedding.linear_2"] = "time_embed.2",
  ["time_embedding.cond_proj"] = "time_embed.cond_proj", conv_in = "input_blocks.0.0",
  conv_norm_out = "out.0", conv_out = "out.2", class_embedding = "label_emb",
  ["add_embedding.linear_1"] = "label_emb.0.0", ["add_embedding.linear_2"] = "label_emb.0.2",
}

-- The original names of the layers of a UNet's blocks, by their names.
local function unet_stems(c)
  local stems, n_in, n_out = {}, 1, 0
  for _, block in ipairs(plan_of(c, "unet").blocks) do
    local count = #block.resnets
    for j = 0, count - 1 do
      local own = function(kind) return ("%s.%s.%d"):format(block.name, kind, j) end
      if block.is_down then
        stems[own "resnets"] = ("input_blocks.%d.0"):format(n_in)
        stems[own "attentions"] = ("input_blocks.%d.1"):format(n_in)
        n_in = n_in + 1
      elseif block.is_up then
        stems[own "resnets"] = ("output_blocks.%d.0"):format(n_out)
        stems[own "attentions"] = ("output_blocks.%d.1"):format(n_out)
        n_out = n_out + 1
      else
        stems[own "resnets"] = ("middle_block.%d"):format(2 * j)
        stems[own "attentions"] = ("middle_block.%d"):format(2 * j + 1)
      end
    end
    if block.sampler and block.is_down then
      stems[block.name .. block.sampler] = ("input_blocks.%d.0.op"):format(n_in)
      n_in = n_in + 1
    elseif block.sampler then
      stems[block.name .. block.sampler] = ("output_blocks.%d.%d.conv"):format(n_out - 1,
        block.n_attentions > 0 and 2 or 1)
    end
  end
  for own, original in pairs(heads) do stems[own] = original end
  return stems
end

--- For names without the prefix "model.diffusion_model.". `c`: the UNet's configuration.
function names.unet(c)
  local stems = unet_stems(c)
  return function(name)
    local layer, last = name:match "^(.*)%.([^.]+)$"
    if stems[layer] then return stems[layer] .. "." .. last end
    local block, rest = name:match "^([%a_]+%.?%d*%.%a+%.%d+)%.(.*)$"
    local original = stems[block]
    if not original then return nil end
    local part, ending = rest:match "^([%w_]+)(%..*)$"
    return original .. "." .. (block:find "resnets" and of_resnet[part] or part) .. ending
  end
end

local of_attention = { group_norm = "norm", to_q = "q", to_k = "k", to_v = "v",
  ["to_out.0"] = "proj_out" }

--- For names without the prefix "first_stage_model.". `c`: the autoencoder's configuration.
function names.vae(c)
  local n = #c.block_out_channels
  return function(name)
    local side, rest = name:match "^(%a+coder)%.(.*)$"
    if not side then return name end
    local part, last = rest:match "^mid_block%.attentions%.0%.(.*)%.(%a+)$"
    if part then
      return ("%s.mid.attn_1.%s.%s"):format(side, of_attention[part], last),
        part ~= "group_norm" and last == "weight" and "conv" or nil
    end
    local i, ending = rest:match "^mid_block%.resnets%.(%d)%.(.*)$"
    if i then
      return ("%s.mid.block_%d.%s"):format(side, i + 1, ending)
    end
    local way, block, inner = rest:match "^(%a+)_blocks%.(%d+)%.(.*)$"
    if not way then return side .. "." .. rest:gsub("conv_norm_out", "norm_out") end
    if way == "up" then block = n - 1 - block end
    inner = inner:gsub("^resnets%.(%d+)", "block.%1"):gsub("conv_shortcut", "nin_shortcut")
      :gsub("^downsamplers%.0", "downsample"):gsub("^upsamplers%.0", "upsample")
    return ("%s.%s.%d.%s"):format(side, way, block, inner)
  end
end

local of_open_clip = {
  ["text_model.embeddings.position_embedding.weight"] = "positional_embedding",
  ["text_model.embeddings.token_embedding.weight"] = "token_embedding.weight",
  ["text_model.final_layer_norm.weight"] = "ln_final.weight",
  ["text_model.final_layer_norm.bias"] = "ln_final.bias",
}

local joined = { q = 0, k = 1, v = 2 }

--- OpenCLIP's names, for names without a prefix.
function names.open_clip(name)
  if name == "text_projection.weight" then return "text_projection", "transposed" end
  if of_open_clip[name] then return of_open_clip[name] end
  local layer, rest = name:match "^text_model%.encoder%.layers%.(%d+)%.(.*)$"
  if not layer then return nil end
  local start = ("transformer.resblocks.%d."):format(layer)
  local part, last = rest:match "^self_attn%.(%a)_proj%.(%a+)$"
  if part then return start .. "attn.in_proj_" .. last, joined[part] end
  rest = rest:gsub("^layer_norm", "ln_"):gsub("%.fc1%.", ".c_fc."):gsub("%.fc2%.", ".c_proj.")
    :gsub("^self_attn", "attn")
  return start .. rest
end

return names
