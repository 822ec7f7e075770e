--- XLNet (Yang et al., 2019), as Hugging Face's `XLNetLMHeadModel` and other classes: an encoder
--- whose attention knows how far apart tokens are, and whether they are of the same type. With
--- perm_mask [B, T, T] token i does not attend to the tokens j where it is 1. With target_mapping
--- [B, M, T] a second stream predicts M tokens without seeing them: the logits are [B, M, size].
local blocks = require "redco.models.layers.blocks"
local masks = require "redco.models.layers.masks"
local native = require "redco.native"
local nn = require "redco.nn"
local relative_shift = require "redco.models.layers.relative_shift"
local tasks = require "redco.models.tasks"
local torch = require "redco.torch"

local summary = { "last",
  { linear = "sequence_summary.summary", activation = "summary_activation" },
  { dropout = { "summary_last_dropout" } } }

local xlnet = {
  model_type = "xlnet",
  models = "XLNet",
  remarks = "generates no text",
  architecture = "XLNetModel",
  base_model_prefix = "transformer",
  default_task = "masked_lm",
  size_key = "d_model",
  inputs = { "input_ids", "attention_mask", "token_type_ids", "perm_mask", "target_mapping" },
  aliases = { hidden_size = "d_model", num_attention_heads = "n_head",
    num_hidden_layers = "n_layer", n_token = "vocab_size" },
  nullable = { "pad_token_id" },
  defaults = {
    vocab_size = 32000,
    d_model = 1024,
    n_layer = 24,
    n_head = 16,
    d_inner = 4096,
    ff_activation = "gelu",
    initializer_range = 0.02,
    layer_norm_eps = 1e-12,
    dropout = 0.1,
    clamp_len = -1,
    summary_activation = "tanh",
    summary_last_dropout = 0.1,
    pad_token_id = 5,
    bos_token_id = 1,
    eos_token_id = 2,
    tie_word_embeddings = true,
  },
  -- Keys for states of earlier texts, keys of another class, and keys that transformers ignores.
  optional = { "d_head", "end_n_top", "mem_len", "reuse_len", "same_length", "start_n_top",
    "untie_r", "use_mems_eval", "use_mems_train" },
  only = { attn_type = "bi", bi_data = false, summary_type = "last", summary_use_proj = true,
    summary_proj_to_labels = false, summary_first_dropout = 0 },
  ignored = { "^lm_loss%.", "^logits_proj%.", "^sequence_summary%.", "^classifier%.",
    "^qa_outputs%.", "^start_logits%.", "^end_logits%.", "^answer_class%." },
  tasks = {
    features = tasks.features "XLNet",
    masked_lm = {
      architecture = "XLNetLMHeadModel", bias = "lm_loss.bias", layers = {},
      weight = "transformer.word_embedding.weight", untied = "lm_loss.weight",
    },
    sequence_classification = {
      architecture = "XLNetForSequenceClassification", head = "logits_proj", layers = summary,
    },
    multiple_choice = {
      architecture = "XLNetForMultipleChoice", head = "logits_proj", layers = summary,
    },
    token_classification = {
      architecture = "XLNetForTokenClassification", head = "classifier", layers = {},
    },
    question_answering = {
      architecture = "XLNetForQuestionAnsweringSimple", head = "qa_outputs", layers = {},
    },
  },
}

function xlnet.check(c) blocks.check_multiple(c, "d_model", "n_head") end

function xlnet.add_parameters(c, add)
  local normal, head_size = blocks.normal(c.initializer_range), c.d_model / c.n_head
  add("transformer.mask_emb", { 1, 1, c.d_model }, normal)
  add("transformer.word_embedding.weight", { c.vocab_size, c.d_model }, normal, "embedding")
  for i = 0, c.n_layer - 1 do
    local layer = ("transformer.layer.%d."):format(i)
    for _, part in ipairs { "q", "k", "v", "o", "r" } do
      add(layer .. "rel_attn." .. part, { c.d_model, c.n_head, head_size }, normal)
    end
    for _, part in ipairs { "r_r_bias", "r_s_bias", "r_w_bias" } do
      add(layer .. "rel_attn." .. part, { c.n_head, head_size }, normal)
    end
    add(layer .. "rel_attn.seg_embed", { 2, c.n_head, head_size }, normal)
    blocks.add_layer_norm(add, layer .. "rel_attn.layer_norm", c.d_model)
    blocks.add_linear(add, layer .. "ff.layer_1", c.d_model, c.d_inner, normal)
    blocks.add_linear(add, layer .. "ff.layer_2", c.d_inner, c.d_model, normal)
    blocks.add_layer_norm(add, layer .. "ff.layer_norm", c.d_model)
  end
end

-- Returns sinusoids of the distances T to 1 - T: [2 T, size].
local function distances(c, length, x)
  local options = { device = x.device }
  local places = length - torch.arange(2 * length, options):float()
  if c.clamp_len > 0 then places = places:clamp(-c.clamp_len, c.clamp_len) end
  local steps = torch.pow(10000, torch.arange(0, c.d_model, 2, options):float() / c.d_model)
    :reciprocal()
  local angles = places:unsqueeze(1) * steps
  return torch.cat({ angles:sin(), angles:cos() }, -1):to(x.dtype)
end

-- Returns the additive masks of the first and the second stream, [B, 1, T, T], or nil. In the first
-- stream each token sees itself.
local function new_masks(inputs, x)
  local padding, permuted = inputs.attention_mask, inputs.perm_mask
  local seen = padding and padding:ne(0):unsqueeze(1)
  if permuted then seen = seen and seen:logical_and(permuted:eq(0)) or permuted:eq(0) end
  if not seen then return end
  local itself = torch.eye(x:size(1), { device = x.device }):ne(0)
  return masks.additive(seen:logical_or(itself):unsqueeze(1), x.dtype),
    masks.additive(seen:expand { -1, x:size(1), -1 }:unsqueeze(1), x.dtype)
end

-- Returns whether tokens are of different types, [B, 1, T, T], or nil.
local function new_types(inputs)
  local types = inputs.token_type_ids
  return types and types:unsqueeze(2):ne(types:unsqueeze(1)):unsqueeze(1)
end

-- Returns function(params, name, h, g, given, o) -> what attention adds to both streams; g may be
-- nil. given: distances [2 T, size], masks, types, targets [B, 1, M, T].
local function new_attention(c)
  local n_heads, head_size = c.n_head, c.d_model / c.n_head
  local scale = head_size ^ -0.5

  return function(params, name, h, g, given, o)
    local function weight(part) return params[name .. part]:flatten(1) end
    local function heads(part, x)
      return blocks.split_heads(native.linear(x, weight(part):t()), n_heads)
    end
    local function bias(part) return params[name .. part]:unsqueeze(1) end
    local k, v, r = heads("k", h), heads("v", h), heads("r", given.distances:unsqueeze(0))
    local types = given.types and params[name .. "seg_embed"]:permute { 1, 2, 0 }

    local function attend(q, mask)
      local more = relative_shift((q + bias "r_r_bias"):matmul(r:transpose(2, 3)))
      if types then
        local same, other = unpack((q + bias "r_s_bias"):matmul(types):split(1, -1))
        more = more + torch.where(given.types, other, same)
      end
      more = more * scale
      return blocks.attend(q + bias "r_w_bias", k, v, { mask = mask and more + mask or more,
        scale = scale, dropout = c.dropout }, o)
    end
    local function out(y)
      return blocks.dropout(native.linear(blocks.merge_heads(y), weight "o"), c.dropout, o)
    end

    local of_h = out(attend(heads("q", h), given.mask))
    if not g then return of_h end
    local q = given.targets:transpose(2, 3):matmul(heads("q", g))
    return of_h, out(given.targets:matmul(attend(q, given.mask_of_targets)))
  end
end

function xlnet.new_forward(c)
  local activation, attend = blocks.activation("xlnet", c.ff_activation), new_attention(c)

  return function(params, inputs, o)
    local function drop(x) return blocks.dropout(x, c.dropout, o) end
    local function norm(name, x) return blocks.layer_norm(params, name, x, c.layer_norm_eps) end
    local h = drop(blocks.embedding(params, "transformer.word_embedding", inputs.input_ids))
    local targets, g = inputs.target_mapping, nil
    if targets then
      targets = targets:to(h.dtype):unsqueeze(1)
      g = drop(params["transformer.mask_emb"]:expand { h:size(0), targets:size(2), -1 })
    end
    local mask, mask_of_targets = new_masks(inputs, h)
    local given = { distances = drop(distances(c, h:size(1), h)), types = new_types(inputs),
      mask = mask, mask_of_targets = mask_of_targets, targets = targets }

    local function fed(layer, x)
      local y = drop(activation(blocks.linear(params, layer .. "ff.layer_1", x, o)))
      y = drop(blocks.linear(params, layer .. "ff.layer_2", y, o))
      return norm(layer .. "ff.layer_norm", y + x)
    end
    local function apply_layer(layer, x, y)
      local of_x, of_y = attend(params, layer .. "rel_attn.", x, y, given, o)
      local function after(z, more)
        return fed(layer, norm(layer .. "rel_attn.layer_norm", z + more))
      end
      return after(x, of_x), y and after(y, of_y)
    end
    for i = 0, c.n_layer - 1 do
      h, g = nn.block(apply_layer, ("transformer.layer.%d."):format(i), h, g)
    end
    return drop(g or h)
  end
end

return xlnet
