--- Losses of models that compare texts and images: functions(c, logits [images, texts]) -> loss,
--- count, the number of pairs. Image i belongs to text i; all others in the batch are wrong, also
--- those of other processes.
local fail = require "redco.fail"
local torch = require "redco.torch"

local contrastive = {}

-- Returns the logits, in float32 at least, and the number of pairs.
local function pairs_of(c, logits)
  local n = logits:size(0)
  if n ~= logits:size(1) then
    fail("%s: the loss needs a text for each image, got %d images and %d texts", c.model_type, n,
      logits:size(1))
  end
  return logits.dtype == "float64" and logits or logits:float(),
    torch.full({}, n, { device = logits.device })
end

--- CLIP's loss: the mean of two cross-entropies, those of the text of each image and of the image
--- of each text.
function contrastive.softmax_loss(c, logits)
  local count
  logits, count = pairs_of(c, logits)
  local of_images, of_texts = logits:logsumexp { 1 }, logits:logsumexp { 0 }
  return (of_images + of_texts):mean() / 2 - logits:diagonal():mean(), count
end

--- CLAP's loss: the mean of the cross-entropies of a list of logits, of the column of each row.
function contrastive.loss_of_rows(c, list)
  local sum, count = 0, nil
  for _, logits in ipairs(list) do
    logits, count = pairs_of(c, logits)
    sum = sum + (logits:logsumexp { 1 } - logits:diagonal()):mean()
  end
  return sum / #list, count
end

--- SigLIP's loss: the sum over texts of the mean logistic losses of all images.
function contrastive.sigmoid_loss(c, logits)
  local count
  logits, count = pairs_of(c, logits)
  local n = logits:size(0)
  -- log sigmoid(x) = log sigmoid(-x) + x, so only the diagonal differs from the wrong pairs.
  return -(torch.log_sigmoid(-logits):sum() + logits:diagonal():sum()) / n, count
end

return contrastive
