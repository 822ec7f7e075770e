--- Models of sound that write a token or a blank for each frame (CTC; Graves et al., 2006): their
--- loss, and greedy decoding. The blank is pad_token_id. Shapes: B batch, T frames.
local arguments = require "redco.arguments"
local blocks = require "redco.models.layers.blocks"
local fail = require "redco.fail"
local nn = require "redco.nn"
local torch = require "redco.torch"

local generate_options = arguments("model.generate with CTC", {}, {})

-- Returns the loss of logits [B, T, tokens]. lengths [B] are the numbers of frames; labels [B, n]
-- are padded with negative numbers or blanks.
local function loss_of(c, logits, labels, lengths)
  local is_label = labels:ge(0):logical_and(labels:ne(c.pad_token_id))
  local log_probs = logits:to(blocks.wide_dtype(logits)):log_softmax(-1):transpose(0, 1)
  -- Moves the labels to the front of their rows.
  local order = is_label:logical_not():to "int64":argsort { stable = true, dim = 1 }
  return nn.ctc_loss(log_probs, labels:clamp_min(0):gather(1, order), lengths, is_label:sum(1),
    { blank = c.pad_token_id, zero_infinity = c.ctc_zero_infinity })
end

--- Gives a family its loss and its decoding. frames_of(c, inputs) returns the number of frames of
--- each row [B], or nil if all are sound.
return { complete = function(family, frames_of)
  function family.loss(c, logits, inputs)
    local labels = inputs.labels
    if not labels then fail("%s: inputs.labels are missing", c.architectures[1]) end
    if c.ctc_loss_reduction ~= "mean" then
      fail("%s: ctc_loss_reduction is '%s': a sum depends on how a batch is split. Open the model "
        .. "with config = { ctc_loss_reduction = \"mean\" }", c.model_type, c.ctc_loss_reduction)
    end
    local lengths = frames_of(c, inputs) or torch.full({ labels:size(0) }, logits:size(1),
      { dtype = "int64", device = labels.device })
    local loss = loss_of(c, logits, labels, lengths)
    return loss, torch.full({}, labels:size(0), { device = loss.device })
  end

  -- The most probable token or blank of each frame [B, T]; blanks on padding.
  function family.generate(_, model, params, inputs, options)
    generate_options(options)
    local ids, lengths = model(params, inputs):argmax(-1), frames_of(model.config, inputs)
    if not lengths then return ids end
    local is_padding = torch.arange(ids:size(1), { device = ids.device }):unsqueeze(0)
      :ge(lengths:unsqueeze(1))
    return ids:masked_fill(is_padding, model.config.pad_token_id)
  end
end }
