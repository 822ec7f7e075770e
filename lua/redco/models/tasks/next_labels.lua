--- Labels of decoders: the next tokens.
local fail = require "redco.fail"
local torch = require "redco.torch"
local warn = require "redco.warn"

local next_labels = {}

-- Moves the columns of x [B, T] to the left, with `last` as the last column.
local function moved(x, last)
  return torch.cat({ x:narrow(1, 1, x:size(1) - 1), torch.full_like(x:narrow(1, 0, 1), last) }, 1)
end

--- Returns labels [B, T] that are aligned with input_ids, shifted to the left. The label of a
--- sequence's last token is ignore_index, and so are labels that are padding, or of padding.
function next_labels.shifted(inputs, ignore_index)
  local labels = inputs.labels
  if labels:dim() ~= 2 then
    fail("model.loss: shift: expected labels [batch, length], got %s", labels)
  end
  local shifted = moved(labels, ignore_index)
  local segments, mask = inputs.segment_ids, inputs.attention_mask
  if segments then
    shifted = shifted:masked_fill(moved(segments, -1):ne(segments), ignore_index)
  end
  if mask then
    local is_kept = mask:ne(0):logical_and(moved(mask, 0):ne(0))
    shifted = shifted:masked_fill(is_kept:logical_not(), ignore_index)
  end
  return shifted
end

local function local_part(x) return x:is_sharded() and x:to_local() or x end

local function are_copies(labels, ids, ignore_index)
  if labels.shape ~= ids.shape then return false end
  local is_label = labels:ne(ignore_index)
  return is_label:any():item() and labels:eq(ids):logical_or(is_label:logical_not()):all():item()
end

--- Shows a warning if labels equal input_ids wherever they are not ignore_index. It compares the
--- parts of this process, without communication. Other models than decoders predict masked tokens.
--- Returns false if the tensors have no values, as when the layout is found.
function next_labels.warn_of_copies(inputs, ignore_index, is_decoder)
  if not torch.is_tensor(inputs.input_ids) then return true end
  local labels, ids = local_part(inputs.labels), local_part(inputs.input_ids)
  if labels.device == "meta" then return false end
  -- Under vmap a tensor has no single value.
  local ok, is_copy = pcall(torch.no_grad, function()
    return are_copies(labels, ids, ignore_index)
  end)
  if ok and is_copy then
    local advice = is_decoder and "not to predict the next one. Pass shift = true to model.loss, "
      .. "or labels that are the next tokens"
      or "not to predict masked ones. Mask tokens in input_ids, and set other labels to "
      .. ignore_index
    warn("the labels equal input_ids: the model learns to copy each token, " .. advice)
  end
  return true
end

return next_labels
