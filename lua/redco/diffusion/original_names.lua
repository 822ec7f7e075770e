--- The names of weights in single files of the original layout (CompVis', Stability's and Meta's),
--- from those of diffusers and transformers. Each function returns function(name) -> original name,
--- and how the original holds it: nil, "conv" (a 1 x 1 convolution), "transposed", "swapped" (the
--- second half of the rows first), "shared" (one for several of diffusers), or 0, 1, 2 (the part of
--- a joined weight).
local plan_of = require "redco.diffusion.unet_plan"
local torch = require "redco.torch"

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

-- The facts of a transformer: `block` is the prefix of its blocks' names; `in_block` and `others`
-- have {original name, form} of the layers inside and outside of blocks.
local sd3 = {
  block = "joint_blocks.%d.",
  others = {
    ["pos_embed.proj"] = { "x_embedder.proj" },
    ["time_text_embed.timestep_embedder.linear_1"] = { "t_embedder.mlp.0" },
    ["time_text_embed.timestep_embedder.linear_2"] = { "t_embedder.mlp.2" },
    ["time_text_embed.text_embedder.linear_1"] = { "y_embedder.mlp.0" },
    ["time_text_embed.text_embedder.linear_2"] = { "y_embedder.mlp.2" },
    context_embedder = { "context_embedder" },
    ["norm_out.linear"] = { "final_layer.adaLN_modulation.1", "swapped" },
    proj_out = { "final_layer.linear" },
  },
  in_block = {
    ["attn.to_out.0"] = { "x_block.attn.proj" },
    ["attn.to_add_out"] = { "context_block.attn.proj" },
    ["attn2.to_out.0"] = { "x_block.attn2.proj" },
  },
}

local dit = {
  block = "blocks.%d.",
  others = {
    ["pos_embed.proj"] = { "x_embedder.proj" },
    ["norm1.emb.timestep_embedder.linear_1"] = { "t_embedder.mlp.0", "shared" },
    ["norm1.emb.timestep_embedder.linear_2"] = { "t_embedder.mlp.2", "shared" },
    ["norm1.emb.class_embedder.embedding_table"] = { "y_embedder.embedding_table", "shared" },
    proj_out_1 = { "final_layer.adaLN_modulation.1" },
    proj_out_2 = { "final_layer.linear" },
  },
  in_block = { ["attn1.to_out.0"] = { "attn.proj" } },
}

-- Layers of each side of a block: {facts, beginning of original names, feed-forward layer, norm};
-- and of attentions: {facts, beginning of original names, names of q, k, v, names of their norms}.
for _, row in ipairs { { sd3, "x_block.", "ff", "norm1" },
  { sd3, "context_block.", "ff_context", "norm1_context" }, { dit, "", "ff", "norm1" } } do
  local facts, start, feed_forward, norm = unpack(row)
  facts.in_block[feed_forward .. ".net.0.proj"] = { start .. "mlp.fc1" }
  facts.in_block[feed_forward .. ".net.2"] = { start .. "mlp.fc2" }
  facts.in_block[norm .. ".linear"] = { start .. "adaLN_modulation.1" }
end
for _, row in ipairs {
  { sd3, "x_block.attn.", "attn.to_%s", "attn.norm_%s" },
  { sd3, "x_block.attn2.", "attn2.to_%s", "attn2.norm_%s" },
  { sd3, "context_block.attn.", "attn.add_%s_proj", "attn.norm_added_%s" },
  { dit, "attn.", "attn1.to_%s", "attn1.norm_%s" } } do
  local facts, start, projection, norm = unpack(row)
  for part, place in pairs(joined) do
    facts.in_block[projection:format(part)] = { start .. "qkv", place }
    facts.in_block[norm:format(part)] = { start .. "ln_" .. part }
  end
end

local function transformer(facts, name)
  local layer, last = name:match "^(.*)%.(%a+)$"
  local i, rest = layer:match "^transformer_blocks%.(%d+)%.(.*)$"
  local row = i and facts.in_block[rest]
  local start = row and facts.block:format(i) or ""
  row = row or facts.others[rest or layer]
  if row then return start .. row[1] .. "." .. last, row[2] end
end

--- For names without the prefix "model.diffusion_model.". `own`: the set of diffusers' names.
function names.sd3(_, own)
  return function(name)
    if name == "pos_embed.pos_embed" then return "pos_embed" end
    local original, form = transformer(sd3, name)
    -- In the last block of the text, diffusers has the scale before the shift.
    local block = name:match "^(.*)%.norm1_context%."
    if block and not own[block .. ".attn.to_add_out.weight"] then form = "swapped" end
    return original, form
  end
end

--- For the names of DiT's files, which have only the transformer.
function names.dit()
  return function(name) return transformer(dit, name) end
end

local function half(t, i) return t:narrow(0, i * t:size(0) / 2, t:size(0) / 2) end

local own_forms = {
  conv = function(t) return t:dim() == 4 and t:flatten(1) or t end,
  transposed = function(t) return t:t() end,
  swapped = function(t) return torch.cat({ half(t, 1), half(t, 0) }, 0) end,
}

--- Returns a weight of diffusers from the original one.
function names.from_original(t, form)
  if type(form) == "number" then
    local size = t:size(0) / 3
    return t:narrow(0, form * size, size)
  end
  return own_forms[form] and own_forms[form](t) or t
end

return names
